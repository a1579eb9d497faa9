"""Evaluations in the training loop: when, of which dataset, in which mode. Why: docs/sources.md."""

import functools
from argparse import Namespace
from collections.abc import Callable

import torch

from rft.record.eval_names import PREFIX, dataset_name, mode_of


def at_start(args: Namespace, global_step: int) -> bool:
    """Whether the base model is evaluated before the first rollout: with `--eval_steps`, unless told otherwise."""
    return global_step == 0 and args.eval_steps != float("inf") and not args.skip_base_eval


def generate_kwargs(base: dict, args: Namespace) -> dict:
    """What an evaluation draws: the training's settings with the evaluation's own temperature and samples."""
    return base | {"temperature": args.eval_temperature, "n_samples_per_prompt": args.eval_n_samples_per_prompt}


def labelled(blend: Callable):
    """OpenRLHF's `blending_datasets`, each row's `datasource` being the name of the dataset that it came from.

    The rows' own sources (math, gsm8k, … of one probe set) are too few problems each to read a number from.
    """

    def blend_labelled(datasets: str, *args, **kwargs):
        from datasets import concatenate_datasets

        parts = []
        for path in datasets.split(","):
            rows = blend(path, *args, **kwargs)
            if "datasource" in rows.column_names:
                rows = rows.remove_columns("datasource")
            parts.append(rows.add_column("datasource", [dataset_name(path)] * len(rows)))
        return concatenate_datasets(parts)

    return blend_labelled


def without_trace(evaluate: Callable):
    """`evaluate`, after which this process's generator is as before: data loaders draw from it.

    Otherwise the order of the training prompts would depend on whether, and when, the run evaluates.
    """

    @functools.wraps(evaluate)
    def untraced(*args, **kwargs):
        with torch.random.fork_rng(devices=[]):
            return evaluate(*args, **kwargs)

    return untraced


def metrics(datasources: list[str], samples: list, temperature: float, n_samples_per_prompt: int) -> dict[str, float]:
    """The numbers of one evaluation, each under a name that says dataset and mode.

    Args:
        datasources: the dataset of each problem, in the order of the evaluation's loader.
        samples: OpenRLHF `Experience`s of one sample each in the same order, the samples of a problem side by side:
            `rewards` (1,), and `info` with `correctness` (1,) where the reward function logs it.

    Returns:
        For each dataset `eval_<dataset>_<mode>`, the share of problems with a right sample, and
        `eval_<dataset>_problems`; with several samples a problem `eval_<dataset>_<family>_avg@n` as well, the share of
        right samples. Where no correctness is logged, the reward takes its place.

    Raises:
        ValueError: the samples are not `n_samples_per_prompt` for each problem.
    """
    if len(samples) != len(datasources) * n_samples_per_prompt:
        raise ValueError(
            f"evaluation: found {len(samples)} samples, wanted {n_samples_per_prompt} for each of {len(datasources)} "
            "problems; the engine has dropped some, see its log"
        )
    logged = all("correctness" in sample.info for sample in samples)
    values = [float(sample.info["correctness"][0] if logged else sample.rewards[0]) for sample in samples]
    mode, found = mode_of(temperature, n_samples_per_prompt), {}
    for number, name in enumerate(datasources):
        found.setdefault(name, []).append(values[number * n_samples_per_prompt : (number + 1) * n_samples_per_prompt])
    logs = {}
    for name, groups in found.items():
        logs[f"{PREFIX}{name}_{mode}"] = sum(max(group) for group in groups) / len(groups)
        if n_samples_per_prompt > 1:
            share = sum(sum(group) for group in groups) / (len(groups) * n_samples_per_prompt)
            logs[f"{PREFIX}{name}_{mode.split('_pass@')[0]}_avg@{n_samples_per_prompt}"] = share
        logs[f"{PREFIX}{name}_problems"] = float(len(groups))
    return logs
