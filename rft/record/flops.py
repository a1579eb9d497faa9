"""FLOPs that a decoder's arithmetic needs, from its config.json, and what a GPU could do: model FLOPs utilisation.

What an implementation adds is not counted: padding, recomputed activations, dequantised weights, masked attention. The
first layer's inputs need no gradient under LoRA; that share of one layer is counted all the same.
"""

import re
from collections.abc import Collection, Sequence

MODEL_TYPES = ("gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen3")  # whose layers are as counted here

# Dense bf16 TFLOP/s by the words of a device's name, the first match counts. NVIDIA's data sheets print the double,
# with sparsity: H100 (SXM 1,979, NVL 1,671, PCIe 1,513), H200 (SXM 1,979, NVL 1,671), GH200 (1,979), A100 (624),
# L40S (733), HGX B200 (36,000 for eight), GB200 NVL72 (360,000 for 72).
PEAK_TFLOPS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H200 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "H800": 989.0,
    "GH200": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "B200": 2250.0,
    "GB200": 2500.0,
}


def peak_tflops(device: str) -> float | None:
    """Dense bf16 TFLOP/s of a device by the name that torch and nvidia-smi give it; None where it is not known.

    `NVIDIA H100 80GB HBM3` is 989; a slice of a GPU (`… MIG 1g.10gb`) is not known.
    """
    words = re.split(r"[\s-]+", device)
    if "MIG" in words:
        return None
    return next((peak for name, peak in PEAK_TFLOPS.items() if set(name.split()) <= set(words)), None)


def is_known(config: dict) -> bool:
    """Whether a model's FLOPs can be counted: one of `MODEL_TYPES`."""
    return config.get("model_type") in MODEL_TYPES


def linears(config: dict) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of a layer's linear modules, which may have adapters; a dense feed-forward network included."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    keys = (config.get("num_key_value_heads") or heads) * size
    found = {"q_proj": (hidden, heads * size), "k_proj": (hidden, keys), "v_proj": (hidden, keys)}
    found["o_proj"] = (heads * size, hidden)
    if not config.get("num_local_experts"):
        inner = config["intermediate_size"]
        found |= {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
    return found


def active_parameters(config: dict) -> dict[str, int]:
    """Weights that a token is multiplied with: `projections` of attention, `router`, `experts`, `head`.

    `experts` are those that a token is routed to, or the dense feed-forward network. The head is used by scored tokens
    only. Biases, norms and the embedding, which is looked up, do not count.
    """
    layers, hidden, modules = config["num_hidden_layers"], config["hidden_size"], linears(config)
    sizes = {name: inputs * outputs for name, (inputs, outputs) in modules.items()}
    projections = sum(sizes.pop(name) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    experts, router = sum(sizes.values()), 0
    if count := config.get("num_local_experts"):
        experts = config["num_experts_per_tok"] * 3 * hidden * config["intermediate_size"]
        router = count * hidden
    found = {"projections": layers * projections, "router": layers * router, "experts": layers * experts}
    return found | {"head": config["vocab_size"] * hidden}


def windows(config: dict) -> list[int | None]:
    """Each layer's sliding window in keys, the token itself included; None for full attention."""
    window, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if not window or config.get("use_sliding_window") is False:
        return [None] * layers
    kinds = config.get("layer_types") or ["sliding_attention"] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def attended(length: int, window: int | None) -> int:
    """Pairs of query and key of one causal sequence."""
    width = min(length, window or length)
    return width * (width + 1) // 2 + (length - width) * width


def adapter_parameters(config: dict, rank: int, targets: Collection[str] | str) -> int:
    """Weights of LoRA adapters of that rank; `targets` are module names, as in `q_proj`, or `all-linear`."""
    names = {targets} if isinstance(targets, str) else {str(name).rpartition(".")[2] for name in targets}
    sizes = [sum(shape) for name, shape in linears(config).items() if name in names or "all-linear" in names]
    return config["num_hidden_layers"] * rank * sum(sizes)


def forward(
    config: dict, lengths: Sequence[int], scored: int, rank: int = 0, targets: Collection[str] | str = ()
) -> dict[str, int]:
    """FLOPs of a forward pass by part; a multiplication with an addition counts as two.

    Args:
        config: fields of config.json, of a model that `is_known`.
        lengths: tokens of each sequence.
        scored: tokens whose log-probability is computed.
        rank, targets: of LoRA adapters, see `adapter_parameters`; rank 0 is without.

    Returns:
        `projections`, `router`, `experts`, `attention` (scores and values), `head`, `adapters`.

    Raises KeyError: the config lacks a field.
    """
    tokens = sum(lengths)
    found = {name: 2 * size * tokens for name, size in active_parameters(config).items()}
    found["head"] = found["head"] // tokens * scored if tokens else 0
    per_pair = 4 * linears(config)["o_proj"][0]  # head size of every head, for scores and for values
    kinds = windows(config)
    pairs = {kind: sum(attended(length, kind) for length in lengths) for kind in set(kinds)}
    found["attention"] = per_pair * sum(pairs[kind] for kind in kinds)
    found["adapters"] = 2 * adapter_parameters(config, rank, targets) * tokens
    return found


def training(
    config: dict, lengths: Sequence[int], scored: int, rank: int = 0, targets: Collection[str] | str = ()
) -> dict[str, int]:
    """FLOPs of a forward and a backward pass by part; arguments as for `forward`.

    With adapters (rank above 0) frozen weights cost the gradient of their input, adapters also their own; with rank 0
    every weight is trained. Attention's two products have two gradients each.
    """
    ahead = forward(config, lengths, scored, rank, targets)
    twice = {"attention", "adapters"} if rank else set(ahead)
    return {name: flops * (3 if name in twice else 2) for name, flops in ahead.items()}
