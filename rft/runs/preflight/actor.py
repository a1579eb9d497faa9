"""Memory of the actor on one GPU, from the options: the resident one (see `resident`), and the eager one.

The eager one, measured on one H200, gpt-oss-20b, LoRA r=32, ZeRO-3, reentrant checkpointing, eager attention
(docs/benchmarks.md): the bf16 model takes 41.8 GB; the actor 58.4 GB with 2,176 tokens in a micro-batch and 67.2 GB
with 4,352. The line through both is 7.8 GB and 4.04 MB a token beside the model, five float32 rows of logits.
Attention scores, which those short sequences hardly show, are added by size.
"""

from argparse import Namespace

from rft.options.batches import longest
from rft.runs.preflight import resident
from rft.runs.preflight.batches import ranks
from rft.runs.preflight.lines import gigabytes
from rft.runs.preflight.model import parameters, trained_parameters
from rft.runs.preflight.resident import OPTIMIZER_BYTES

ACTOR_FIXED = 7.8e9  # context, gathered layers, buffers, fragmentation
LOGIT_BYTES = 5 * 4  # a token and vocabulary entry, with gradient
FORWARD_BYTES = 2 + 4  # the same without one: bf16, then float32
SCORE_BYTES = 6  # bf16 scores and float32 softmax of one layer
NEARLY = 0.9  # of a GPU: the rest is for fragmentation, and for what no arithmetic knows
LARGEST_TOKENS = 32_768  # of a micro-batch: beyond it dequantising the experts is under 3% of the time (computed)


def is_resident(args: Namespace) -> bool:
    """Whether the actor keeps its experts in MXFP4."""
    return args.actor == "resident"


def actor_bytes(args: Namespace, config: dict) -> float:
    """Peak of the actor on one GPU; of the resident one without the experts' first products, kept where they fit."""
    if is_resident(args):
        return resident.peak_bytes(config, sizes_of(args), trained_parameters(args, config))
    sizes, vocabulary = sizes_of(args), config["vocab_size"]
    scores = config["num_attention_heads"] * longest(args) * SCORE_BYTES  # a token, of the longest sequences
    training = sizes.tokens * (vocabulary * LOGIT_BYTES + scores)
    scoring = sizes.scored * (vocabulary * FORWARD_BYTES + scores)
    return actor_resting_bytes(args, config) + max(training, scoring)


def actor_resting_bytes(args: Namespace, config: dict) -> float:
    """What the actor holds while the engine works."""
    if is_resident(args):
        return resident.resting_bytes(config, sizes_of(args), trained_parameters(args, config))
    weights = 2 * parameters(config)
    shares = args.actors if args.zero_stage == 3 else 1
    states = OPTIMIZER_BYTES * trained_parameters(args, config) / (args.actors if args.zero_stage else 1)
    return (0 if args.offload else weights / shares) + (0 if args.adam_offload else states) + ACTOR_FIXED


def with_first_products(args: Namespace, config: dict) -> float:
    """Peak of the resident actor that keeps the experts' first products for the backward pass."""
    return resident.peak_bytes(config, sizes_of(args), trained_parameters(args, config), h_kept=True)


def sizes_of(args: Namespace) -> resident.Sizes:
    """The options as the resident actor's arithmetic takes them."""
    trained, scored = (
        budget or samples * longest(args)
        for budget, samples in (
            (args.micro_train_tokens, args.micro_train_batch_size),
            (args.micro_rollout_tokens, args.micro_rollout_batch_size),
        )
    )
    sharded = getattr(args, "shard_experts", False) and args.actors > 1
    return resident.Sizes(trained, scored, args.gradient_checkpointing, args.zero_stage, args.actors, sharded)


def larger_micro_batch(args: Namespace, config: dict, free: float) -> str:
    """What to add to the actor's line where a larger micro-batch of training fits as well.

    The eager actor takes nearly the same time for a micro-batch whatever it holds: the experts' kernels are many and
    small. On an H200 128 samples of 448 tokens trained in 42 s as 16 micro-batches; as 128 they would have taken 240
    (docs/benchmarks.md). The resident one dequantises all experts for each, which 16,384 tokens hide.
    """
    if args.own_reference and args.colocate_actor_ref:
        return ""  # the reference model takes what is free
    share = args.train_batch_size // ranks(args)
    if args.micro_train_tokens:
        name, now, bound = "micro_train_tokens", args.micro_train_tokens, min(LARGEST_TOKENS, share * longest(args))
        sizes = [now * 2**n for n in range(1, 16) if now * 2**n <= bound]
    else:
        name, now = "micro_train_batch_size", args.micro_train_batch_size
        sizes = [size for size in range(now + 1, share + 1) if share % size == 0]
    needs = {size: actor_bytes(Namespace(**vars(args) | {name: size}), config) for size in sizes}
    size = max((size for size, need in needs.items() if need <= NEARLY * free), default=None)
    if size is None:
        return ""
    same = "" if args.loss_normalization == "batch" else ", with another loss unless --loss_normalization batch"
    return f"; --{name} {size} would fit too ({gigabytes(needs[size])}) and is faster{same}"
