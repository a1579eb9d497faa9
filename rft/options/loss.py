"""Which options of the loss go together, for the trainer and for preflight, so without torch; docs/loss.md explains."""

import re
from argparse import Namespace
from pathlib import Path

# The corrections for rollouts of another policy, with their usual bounds: the cap C, or IcePop's [α, β].
CORRECTIONS = {"tis": [2.0], "token-mis": [2.0], "seq-mis": [2.0], "icepop": [0.5, 5.0]}
# Estimators whose baseline is the mean of a prompt's samples.
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


def correction_bounds(args: Namespace) -> tuple[float, float]:
    """Low and high of `--vllm_is_correction_type`, from `--vllm_is_bounds` or the usual ones; low is 0 for a cap."""
    bounds = CORRECTIONS[args.vllm_is_correction_type] if args.vllm_is_bounds is None else args.vllm_is_bounds
    return (bounds[0] if len(bounds) == 2 else 0.0, bounds[-1])


def needs_own_model(args: Namespace) -> bool:
    """Whether `--init_kl_coef` needs a model beside the actor; with LoRA the actor without its adapter will do."""
    return args.lora_rank == 0 or args.separate_reference_model


def require_sound_loss(args: Namespace) -> None:
    """Refuse options of the loss that do not mean what they say together.

    Raises:
        ValueError: a correction whose name, bounds or loss type do not fit; a group of one; batch normalisation of a
            loss that is no mean over tokens; a mask of cut answers where none is known, or a mean counts them; an agent
            with a discount.
    """
    require_defined_correction(args)
    require_group(args)
    require_token_mean(args)
    require_maskable(args)
    require_undiscounted(args)


def require_defined_correction(args: Namespace) -> None:
    """Refuse a correction under a name or with bounds that no paper gives it.

    Raises:
        ValueError: see above.
    """
    kind, bounds = args.vllm_is_correction_type, args.vllm_is_bounds
    kinds = ", ".join(CORRECTIONS)
    if kind not in CORRECTIONS:
        meaning = " (OpenRLHF's filters by a geometric mean, which hardly ever leaves its range)" * (kind == "mis")
        raise ValueError(
            f"--vllm_is_correction_type: found {kind}{meaning}\n  wanted: one of {kinds}\n"
            "  repair: --vllm_is_correction_type seq-mis (masks whole responses) or token-mis (masks tokens)"
        )
    if args.vllm_is_truncated_threshold is not None:
        low, high = args.vllm_is_truncated_threshold
        raise ValueError(
            "--vllm_is_truncated_threshold: of the corrections only icepop has two bounds, and it truncates nothing\n"
            f"  found:  --vllm_is_truncated_threshold {low:g} {high:g}\n"
            f"  wanted: --vllm_is_bounds C (tis, token-mis, seq-mis) or --vllm_is_bounds LOW HIGH (icepop)\n"
            f"  repair: --vllm_is_bounds {f'{low:g} {high:g}' if kind == 'icepop' else f'{high:g}'}"
        )
    usual = kind == "tis" and bounds is None
    if not usual and not args.enable_vllm_is_correction:
        raise ValueError(
            "--vllm_is_correction_type and --vllm_is_bounds choose a correction that is off\n"
            f"  found:  --vllm_is_correction_type {kind} without --enable_vllm_is_correction\n"
            "  repair: --enable_vllm_is_correction, or leave them out"
        )
    if not usual and args.policy_loss_type == "gspo":
        raise ValueError(
            "--policy_loss_type gspo has no weights: when it corrects, its ratio is taken against the engine's policy\n"
            f"  found:  --vllm_is_correction_type {kind}, --vllm_is_bounds {_words(bounds or []) or 'not given'}\n"
            "  repair: --enable_vllm_is_correction alone, or --policy_loss_type ppo"
        )
    if bounds is None:
        return
    wanted = "LOW HIGH with 0 <= LOW <= 1 <= HIGH" if kind == "icepop" else "one number, the cap C >= 1"
    fits = len(bounds) == len(CORRECTIONS[kind]) and bounds[-1] >= 1 and (len(bounds) == 1 or 0 <= bounds[0] <= 1)
    if not fits:
        raise ValueError(
            f"--vllm_is_bounds of {kind}: found {_words(bounds)}\n  wanted: {wanted}\n"
            f"  repair: --vllm_is_bounds {_words(CORRECTIONS[kind])}"
        )


def require_group(args: Namespace) -> None:
    """Refuse groups of one, which are their own baseline (OpenRLHF asserts it for its own estimators).

    Raises:
        ValueError: see above.
    """
    if args.advantage_estimator in GROUPED and args.n_samples_per_prompt < 2:
        raise ValueError(
            f"--advantage_estimator {args.advantage_estimator} with one sample a prompt: no advantage at all\n"
            f"  found:  --n_samples_per_prompt {args.n_samples_per_prompt}\n  wanted: 2 or more\n"
            "  repair: --n_samples_per_prompt 8"
        )


def require_token_mean(args: Namespace) -> None:
    """Refuse `--loss_normalization batch` for a loss that is a mean over sequences.

    The factor makes every token of a step count the same; a sequence of gspo would count by its length.

    Raises:
        ValueError: both are on.
    """
    if args.loss_normalization == "batch" and args.policy_loss_type == "gspo":
        raise ValueError(
            "--loss_normalization batch weighs tokens, and gspo's loss is a mean over sequences\n"
            "  found:  --policy_loss_type gspo --loss_normalization batch\n"
            "  wanted: micro_batch, with which each sequence counts the same whatever the split\n"
            "  repair: leave --loss_normalization out"
        )


def require_maskable(args: Namespace) -> None:
    """Refuse `--mask_truncated` where it would mask nothing, or leave what it masks in the divisor.

    Raises:
        ValueError: with an agent whose samples do not say that they were cut; with gspo, a mean over responses.
    """
    agent = args.agent_func_path
    if args.mask_truncated and agent and says_nothing_of_cuts(Path(agent)):
        raise ValueError(
            "--mask_truncated needs samples that say whether they were cut, and this agent's say nothing\n"
            f"  found:  --agent_func_path {agent}, without the word truncated\n"
            "  wanted: agents/agent_func_search.py, or an execute() that returns truncated, True or False\n"
            "  repair: leave --mask_truncated out"
        )
    if args.mask_truncated and args.policy_loss_type == "gspo":
        raise ValueError(
            "--mask_truncated needs a mean over tokens, of which it takes some out\n"
            "  found:  --policy_loss_type gspo\n  wanted: --policy_loss_type ppo\n"
            "  repair: leave --mask_truncated out"
        )


def says_nothing_of_cuts(file: Path) -> bool:
    """Whether an agent's file can be read, has nothing of `rft.agents`, whose samples say it, and never says
    `truncated`; it is not run. What its samples hold is looked at again when they come (`rft.hooks.truncated.said`)."""
    try:
        return not re.search(r"\btruncated\b|\brft\.agents\b", file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # it may lie on the engines' machine alone


def require_undiscounted(args: Namespace) -> None:
    """Refuse a discount a token in conversations, whose steps are not all the policy's.

    OpenRLHF discounts once a position, what the environment wrote included, and a critic's value there is 0: with
    `--gamma 1 --lambd 1` both drop out of the sums, otherwise an advantage depends on the length of observations.

    Raises:
        ValueError: an agent, with an estimator that discounts.
    """
    wrong = {"gae": ("gamma", "lambd"), "reinforce": ("gamma",)}.get(args.advantage_estimator, ())
    wrong = [f"--{name} {getattr(args, name):g}" for name in wrong if getattr(args, name) != 1]
    if args.agent_func_path and wrong:
        raise ValueError(
            "a discount a token counts what an agent's environment wrote as steps of the policy\n"
            f"  found:  --agent_func_path {args.agent_func_path} --advantage_estimator {args.advantage_estimator} "
            f"{' '.join(wrong)}\n  wanted: {' '.join(f'{word.split()[0]} 1' for word in wrong)}\n"
            "  repair: leave them out, 1 is the default"
        )


def require_on_policy(args: Namespace) -> None:
    """Refuse `--on_policy_ratio_one` where an optimizer step is not the first on its samples.

    Raises:
        ValueError: several updates a rollout, several epochs, or asynchronous training.
    """
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    if args.on_policy_ratio_one and (args.train_batch_size != samples or args.max_epochs != 1 or args.async_train):
        raise ValueError(
            "--on_policy_ratio_one sets every ratio to 1, which holds for the first update on fresh samples only\n"
            f"  found:  --train_batch_size {args.train_batch_size}, --max_epochs {args.max_epochs}, "
            f"async_train {args.async_train}\n"
            f"  wanted: --train_batch_size {samples} (rollout_batch_size x n_samples_per_prompt), --max_epochs 1\n"
            "  repair: set these, or leave --on_policy_ratio_one out"
        )


def _words(bounds: list[float]) -> str:
    return " ".join(f"{bound:g}" for bound in bounds)
