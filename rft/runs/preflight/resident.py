"""Bytes of the resident actor (`--actor resident`) on one GPU, as arithmetic on config.json. No torch, nothing read.

The experts stay in MXFP4 and are dequantised a layer at a time into one scratch pair; all else is bf16 (2 bytes). Below
H = hidden_size, I = intermediate_size, E = num_local_experts, k = num_experts_per_tok, V = vocab_size, L = layers; q is
the width of all queries together, kv that of all keys. Computed: peaks of a first version, measured on one H200, are in
tests/unit/test_preflight_resident.py, and the arithmetic is within 10% of them.
"""

from typing import NamedTuple

from rft.runs.preflight.model import parameters, projection_shapes

PACKED_BYTES = 17 / 32  # a weight: 4 bits, and one scale byte for 32 of them
CHUNK = 1024  # rows of logits at a time
PREFETCHED = 2  # layers of gathered packed experts: the one at work and the next
ADAPTER_BYTES = 2  # a trained parameter, on every rank
OPTIMIZER_BYTES = 14  # likewise, divided by ZeRO's ranks: float32 master copy, two moments, bf16 gradient
CONTEXT = 1e9  # CUDA context, cuBLAS workspaces, NCCL's buffers
REDUCE_BUCKET = 1e9  # DeepSpeed's at stages 1 and 2 while gradients come in: 500,000,000 bf16, however few are trained


class Sizes(NamedTuple):
    """What the arithmetic needs of the options, and of nothing else."""

    tokens: int  # of a micro-batch that is trained on
    scored: int  # of a micro-batch of the forward pass alone
    checkpointing: bool = False  # of whole layers
    zero_stage: int = 2
    ranks: int = 1
    sharded: bool = False  # --shard_experts: each rank holds its share of the packed bytes


def expert_weights(config: dict) -> int:
    """Weights of one layer's experts: E x 3 x H x I."""
    return config["num_local_experts"] * 3 * config["hidden_size"] * config["intermediate_size"]


def packed_bytes(config: dict, shares: int = 1) -> float:
    """All layers' experts: L x expert_weights x 17/32, of `shares` ranks' this one's part.

    10.2 GB at 20b and 60.9 GB at 120b. With several shares the gathered bytes of the layer at work and of the next
    come on top: 2 x 1.7 GB at 120b.
    """
    layer = expert_weights(config) * PACKED_BYTES
    gathered = PREFETCHED * layer if shares > 1 else 0
    return config["num_hidden_layers"] * layer / shares + gathered


def other_bytes(config: dict) -> int:
    """Everything but the experts' weights, 2 bytes each: 3.6 GB at 20b, 4.3 GB at 120b."""
    return 2 * (parameters(config) - config["num_hidden_layers"] * expert_weights(config))


def largest_tensor_bytes(config: dict) -> int:
    """Of the checkpoint, as a rank reads it: one layer's packed gate and up projections, or an embedding of V x H."""
    packed = expert_weights(config) * 2 // 3 // 2  # two of three matrices, 4 bits a weight
    return max(packed, 2 * config["vocab_size"] * config["hidden_size"])


def scratch_bytes(config: dict) -> int:
    """One layer's experts in bf16, both projections: 1.6 GB at 20b, 6.4 GB at 120b."""
    return 2 * expert_weights(config)


def first_product_bytes(config: dict) -> int:
    """h, the output of the experts' first GEMM, a token and layer: 2 x k x 2I (46 kB). Kept where memory is left."""
    return 2 * experts_a_token(config) * 2 * config["intermediate_size"]


def kept_bytes(config: dict) -> int:
    """What one layer keeps of a token for its backward pass, without h: 42 kB.

    2 residuals and 2 normed inputs of 2H bytes, queries, keys, values and the attention's output of 2 x (q + 2 kv + q),
    a float32 log-sum-exp a head, and of the router E float32 logits and 16 bytes a chosen expert.
    """
    (queries, hidden), (keys, _) = (projection_shapes(config)[name] for name in ("q_proj", "k_proj"))
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
    return min(CHUNK, tokens) * config["vocab_size"] * (4 + 2) + 8 * config["hidden_size"] * tokens


def resting_bytes(config: dict, sizes: Sizes, trained: int) -> float:
    """What the actor holds in every phase: packed experts, other parameters, scratch, adapter and optimizer, context.

    Args:
        trained: parameters of the adapter.
    """
    sharded = sizes.ranks if sizes.sharded else 1
    others = other_bytes(config) / (sizes.ranks if sizes.zero_stage == 3 else 1)
    states = OPTIMIZER_BYTES * trained / (sizes.ranks if sizes.zero_stage else 1)
    weights = packed_bytes(config, sharded) + others + scratch_bytes(config)
    return weights + ADAPTER_BYTES * trained + states + CONTEXT


def training_bytes(config: dict, tokens: int, checkpointing: bool, h_kept: bool = False) -> float:
    """Activations at the peak of a micro-batch's forward and backward pass.

    All layers' kept_bytes, h with them if `h_kept`, and what comes on top: the log-probabilities, or the last layer's
    backward pass. With whole layers recomputed, one residual of 2H a layer, and all of one layer, h included.
    """
    layers, h = config["num_hidden_layers"], first_product_bytes(config)
    if checkpointing:
        residuals = layers * 2 * config["hidden_size"] * tokens
        layer = kept_bytes(config) + h + backward_bytes(config)
        return residuals + max(log_prob_bytes(config, tokens), layer * tokens)
    kept = kept_bytes(config) + h * h_kept
    return layers * kept * tokens + max(log_prob_bytes(config, tokens), backward_bytes(config) * tokens)


def scoring_bytes(config: dict, tokens: int) -> float:
    """Activations of a forward pass without gradients: one layer's, or the log-probabilities."""
    return max(log_prob_bytes(config, tokens), scored_bytes(config) * tokens)


def peak_bytes(config: dict, sizes: Sizes, trained: int, h_kept: bool = False) -> float:
    """Peak of the actor on one GPU, without an engine."""
    bucket = REDUCE_BUCKET if sizes.zero_stage in (1, 2) else 0
    training = training_bytes(config, sizes.tokens, sizes.checkpointing, h_kept) + bucket
    return resting_bytes(config, sizes, trained) + max(training, scoring_bytes(config, sizes.scored))


def experts_a_token(config: dict) -> int:
    """k; 4 in every gpt-oss."""
    return config.get("num_experts_per_tok", 4)
