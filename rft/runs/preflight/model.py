"""The model: what gpt-oss cannot be trained with, its sizes, and the lengths that it can hold."""

import ast
from argparse import Namespace
from pathlib import Path

from rft.checkpoint_check import require_gpt_oss
from rft.record.adapters import chain_of, told
from rft.record.flops import linears
from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines, read_config

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_local_experts",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "vocab_size",
)
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def check_model(args: Namespace) -> list[Line]:
    """A checkpoint directory that can be loaded."""
    try:
        require_gpt_oss(args.pretrain or "")
    except (ValueError, OSError) as error:
        return [Line("model", NO_GO, str(error), "--pretrain DIR")]
    config = read_config(args.pretrain)
    missing = [name for name in SIZES if not isinstance(config.get(name), int)]
    if missing:
        measured = f"{args.pretrain}: config.json without {', '.join(missing)}"
        return [Line("model", NO_GO, measured, "download or make the checkpoint again")]
    return [Line("model", GO, f"gpt-oss, {parameters(config) / 1e6:,.1f} M parameters")]


def check_resume(args: Namespace) -> list[Line]:
    """With --load_checkpoint the checkpoint to resume: without one the trainer starts over without a message."""
    if not args.load_checkpoint:
        return []
    latest = Path(args.ckpt_path, "_actor", "latest")  # as DeepSpeed and rft.hooks.checkpoints name it
    tag = latest.read_text().strip() if latest.is_file() else ""
    if not tag or not (latest.parent / tag).is_dir():
        measured = f"--load_checkpoint, and no complete checkpoint in {args.ckpt_path}: it would start over"
        repair = "RUN_DIR=… of the run to resume, or leave --load_checkpoint out"
        return [Line("resume", NO_GO, measured, repair)]
    return [Line("resume", GO, f"from {tag}")]


def check_reward(args: Namespace) -> list[Line]:
    """A file that exists, can be compiled and defines `reward_func`, of an agent `AgentExecutor`; it is not run."""
    if args.agent_func_path:
        return [check_defines(Path(args.agent_func_path), "AgentExecutor", "--agent_func_path")]
    files = [name for name in (args.remote_rm_url or "").split(",") if name.endswith(".py")]
    if not files:
        kind = args.remote_rm_url or args.reward_pretrain
        if kind is None:
            return [Line("reward", NO_GO, "neither a reward function nor a reward model", "--remote_rm_url FILE.py")]
        return [Line("reward", GO, f"{kind}, not checked")]
    return [check_defines(Path(files[0]), "reward_func", "--remote_rm_url")]


EXAMPLES = {
    "reward_func": ("rewards/reward_func_em.py", "def reward_func(queries, prompts, labels)"),
    "AgentExecutor": ("agents/agent_func_search.py", "class AgentExecutor(AgentExecutorBase)"),
}


def check_defines(path: Path, name: str, option: str) -> Line:
    """A Python file that defines what OpenRLHF looks for in it: a function, a class or a name."""
    example, definition = EXAMPLES[name]
    if not path.is_file():
        return Line("reward", NO_GO, f"found no file {path}", f"{option} {example}")
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError) as error:
        return Line("reward", NO_GO, f"{path}: {error}", "fix the file")
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    if name not in {getattr(node, "name", getattr(node, "id", None)) for node in [*body, *targets]}:
        return Line("reward", NO_GO, f"{path} defines no {name}", definition)
    return Line("reward", GO, path.name)


def check_attention(args: Namespace, config: dict) -> list[Line]:
    """Gradient checkpointing that ZeRO-3 bears; an attention without gpt-oss's sinks is refused with the options."""
    if config.get("model_type") != "gpt_oss":
        return [Line("attention", GO, f"{args.attn_implementation}; no rule for {config.get('model_type')}")]
    reentrant = args.gradient_checkpointing_use_reentrant
    if args.gradient_checkpointing and args.zero_stage == 3 and not reentrant:
        measured = "non-reentrant gradient checkpointing fails under ZeRO-3 (metadata of recomputed values)"
        return [Line("attention", NO_GO, measured, "--gradient_checkpointing_use_reentrant")]
    return [Line("attention", GO, args.attn_implementation)]


def check_lora(args: Namespace) -> list[Line]:
    """Adapters on the attention's projections only; gpt-oss's experts are no linear layers."""
    if args.lora_rank == 0:
        return [Line("LoRA", WARN, "off: all weights are trained and synced", "--lora_rank 32")]
    targets = [args.target_modules] if isinstance(args.target_modules, str) else args.target_modules
    others = sorted(set(targets) - set(ATTENTION))
    if others:
        return [Line("LoRA", WARN, f"targets {' '.join(others)}", f"--target_modules {' '.join(ATTENTION)}")]
    shape = Line("LoRA", GO, f"rank {args.lora_rank}, alpha {args.lora_alpha}, {' '.join(targets)}")
    if not args.init_adapter:
        return [shape]
    reference = "; the KL term refers to it" if args.init_kl_coef > 0 else ""
    return [shape, Line("init adapter", GO, told(chain_of(Path(args.init_adapter))) + reference)]


def check_lengths(args: Namespace, config: dict, longest: int | None) -> list[Line]:
    """Prompt and response within the model's positions and the engine's window; the longest prompt within its limit.

    Args:
        longest: tokens of the longest training prompt, None where it was not measured.
    """
    total, limit = args.prompt_max_len + args.generate_max_len, config.get("max_position_embeddings")
    faults = []
    if limit and total > limit:
        measured = f"{args.prompt_max_len} + {args.generate_max_len} tokens, but the model has {limit} positions"
        faults.append(Line("lengths", NO_GO, measured, f"--generate_max_len {max(1, limit - args.prompt_max_len)}"))
    window = getattr(args, "max_len", None)  # no option of the series for 0.9.10
    if window and window < total:
        measured = f"--max_len {window} is the engine's window, below {total} tokens of prompt and response"
        faults.append(Line("lengths", NO_GO, measured, "leave --max_len out"))
    if longest and longest > args.prompt_max_len:
        measured = (
            f"a prompt of {longest} tokens above --prompt_max_len {args.prompt_max_len}: its beginning is cut off"
        )
        faults.append(Line("lengths", WARN, measured, f"--prompt_max_len {longest}, or take it out of the file"))
    prompt = f", longest prompt {longest}" if longest else ""
    return lines("lengths", faults, f"{args.prompt_max_len} + {args.generate_max_len} tokens{prompt}")


def parameters(config: dict) -> int:
    """Parameters of a gpt-oss, from its config.json."""
    return sum(tensor_sizes(config))


def tensor_sizes(config: dict) -> list[int]:
    """Elements of each tensor of parameters of a gpt-oss (transformers' `GptOssForCausalLM`)."""
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    layer = [size for rows, columns in projection_shapes(config).values() for size in (rows * columns, rows)]
    layer += [config["num_attention_heads"], hidden, hidden, experts * hidden, experts]  # sinks, norms, router
    layer += [experts * hidden * 2 * inner, experts * 2 * inner, experts * inner * hidden, experts * hidden]
    embeddings = [config["vocab_size"] * hidden] * (1 if config.get("tie_word_embeddings") else 2)
    return [*embeddings, hidden, *layer * config["num_hidden_layers"]]


def lora_parameters(args: Namespace, config: dict) -> int:
    """Parameters of an adapter on the attention's projections of a gpt-oss."""
    shapes = projection_shapes(config)
    targets = args.target_modules if isinstance(args.target_modules, list) else ATTENTION
    per_layer = sum(sum(shapes[name]) for name in targets if name in shapes)
    return args.lora_rank * per_layer * config["num_hidden_layers"]


def trained_parameters(args: Namespace, config: dict) -> int:
    """Parameters that the optimizer holds: the adapter's, or all."""
    return lora_parameters(args, config) if args.lora_rank else parameters(config)


def projection_shapes(config: dict) -> dict[str, tuple[int, int]]:
    """(out, in) of each projection of one attention layer of a gpt-oss."""
    return {name: (outputs, inputs) for name, (inputs, outputs) in linears(config).items()}
