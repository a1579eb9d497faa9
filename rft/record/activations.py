"""Bytes of activations of the resident actor, as arithmetic on config.json: the actor and preflight decide by the same.

All is bf16 (2 bytes) unless said otherwise. H = hidden_size, I = intermediate_size, E = num_local_experts,
k = num_experts_per_tok, V = vocab_size; q is the width of all queries together, kv that of all keys.
"""

from rft.record.flops import linears

LOGIT_ROWS = 1024  # of a chunk; at 201,088 tokens 0.82 GB of float32 logits, and half of that for the gradient in bf16


def first_product_bytes(config: dict) -> int:
    """h, the output of the experts' first GEMM, a token and layer: 2 x k x 2I (46 kB). Kept where memory is left."""
    return 2 * experts_a_token(config) * 2 * config["intermediate_size"]


def kept_bytes(config: dict) -> int:
    """What one layer keeps of a token for its backward pass, without h: 42 kB.

    2 residuals and 2 normed inputs of 2H bytes, queries, keys, values and the attention's output of 2 x (q + 2 kv + q),
    a float32 log-sum-exp a head, and of the router E float32 logits and 16 bytes a chosen expert.
    """
    (hidden, queries), (_, keys) = (linears(config)[name] for name in ("q_proj", "k_proj"))
    attention = 2 * (2 * queries + 2 * keys) + 4 * config["num_attention_heads"]
    router = 4 * config["num_local_experts"] + 16 * experts_a_token(config)
    return 4 * 2 * hidden + attention + router


def backward_bytes(config: dict) -> int:
    """Working set of the experts' backward pass of one layer, a token: 2 x k x (I + H + 2I), 92 kB.

    The activation's gradient, the gathered inputs, and h or its gradient (`rft.actor.experts`).
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return 2 * experts_a_token(config) * (inner + hidden + 2 * inner)


def scored_bytes(config: dict) -> int:
    """Working set of the forward pass alone, a token: one layer's kept_bytes and 2 x k x (H + 2I), 111 kB."""
    return kept_bytes(config) + 2 * experts_a_token(config) * (config["hidden_size"] + 2 * config["intermediate_size"])


def log_prob_bytes(config: dict, tokens: int) -> int:
    """A chunk of float32 logits and their bf16 gradient, 1,024 x V x (4 + 2), and 8H a token.

    The latter: the scored states, the same normed, and their float32 gradient, made in the forward pass.
    """
    return min(LOGIT_ROWS, tokens) * config["vocab_size"] * (4 + 2) + 8 * config["hidden_size"] * tokens


def experts_a_token(config: dict) -> int:
    """k; 4 in every gpt-oss."""
    return config.get("num_experts_per_tok", 4)
