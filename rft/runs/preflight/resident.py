"""Bytes of the resident actor (`--actor resident`) on one GPU, as arithmetic on config.json. No torch, nothing read.

The experts stay in MXFP4 and are dequantised a layer at a time into one scratch pair; all else is bf16 (2 bytes). Below
H = hidden_size, I = intermediate_size, E = num_local_experts, k = num_experts_per_tok, V = vocab_size, L = layers; q is
the width of all queries together, kv that of all keys. Computed: peaks of a first version, measured on one H200, are in
tests/unit/test_preflight_resident.py, and the arithmetic is within 10% of them.
"""

from typing import NamedTuple

from rft.record.activations import backward_bytes, first_product_bytes, kept_bytes, log_prob_bytes, scored_bytes
from rft.runs.preflight.model import parameters

PACKED_BYTES = 17 / 32  # a weight: 4 bits, and one scale byte for 32 of them
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
    shards: int = 1  # --shard_experts: ranks that hold a share of the packed bytes each


def expert_weights(config: dict) -> int:
    """Weights of one layer's experts: E x 3 x H x I."""
    return config["num_local_experts"] * 3 * config["hidden_size"] * config["intermediate_size"]


def packed_bytes(config: dict, shards: int = 1) -> float:
    """All layers' experts, L x expert_weights x 17/32, of which each of `shards` ranks has its part.

    10.2 GB at 20b and 60.9 GB at 120b. With several shards come buffers for a gathered layer, 1.7 GB at 120b: one for
    each of its two weights, in turn for the one at work and the next (`rft.actor.sharded`).
    """
    layer = expert_weights(config) * PACKED_BYTES
    return config["num_hidden_layers"] * layer / shards + (layer if shards > 1 else 0)


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


def resting_bytes(config: dict, sizes: Sizes, trained: int) -> float:
    """What the actor holds in every phase: packed experts, other parameters, scratch, adapter and optimizer, context.

    Args:
        trained: parameters of the adapter.
    """
    others = other_bytes(config) / (sizes.ranks if sizes.zero_stage == 3 else 1)
    states = OPTIMIZER_BYTES * trained / (sizes.ranks if sizes.zero_stage else 1)
    weights = packed_bytes(config, sizes.shards) + others + scratch_bytes(config)
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
