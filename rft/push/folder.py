"""The files of a repository on the hub: the adapter, its configuration without this machine's paths, the card."""

import json
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rft.evals.table import interval, p_value
from rft.options import recorded
from rft.record.adapters import told
from rft.runs.best import find_best, read_object
from rft.runs.report.side_by_side import points
from rft.serve.served_run import ServedRun

HUB = {"gpt-oss-20b": "openai/gpt-oss-20b", "gpt-oss-120b": "openai/gpt-oss-120b"}  # by the checkpoint's folder
WEIGHTS = "adapter_model.safetensors"
RECIPE = """
    actor_learning_rate lr_scheduler lr_warmup_ratio lora_rank lora_alpha target_modules rollout_batch_size
    n_samples_per_prompt train_batch_size num_episodes max_epochs advantage_estimator init_kl_coef eps_clip
    eps_clip_low_high loss_normalization enable_vllm_is_correction vllm_is_correction_type temperature prompt_max_len
    generate_max_len reasoning_effort mask_truncated lora_serving head_dtype seed
"""  # the options that the card shows, where the command gives them


def files(served: ServedRun, name: str, base_model: str) -> dict[str, bytes | Path]:
    """Name in the repository -> content, or the file that holds it.

    Args:
        served: see `rft.serve.served_run.read_run`.
        name: of the repository, OWNER/NAME.
        base_model: the base's name on the hub.
    """
    config = json.loads((served.adapter / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base_model  # it was a path of this machine
    return {
        "README.md": card(served, name, base_model).encode(),
        "adapter_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        WEIGHTS: served.adapter / WEIGHTS,
    }


def hub_name(served: ServedRun, given: str | None) -> str:
    """The base's name on the hub. Raises ValueError where neither an argument nor its folder tells it."""
    found = given or HUB.get(served.base.name)
    if not found:
        raise ValueError(
            f"found a base checkpoint named {served.base.name}; wanted its name on the hub; add --base-model OWNER/NAME"
        )
    return found


def card(served: ServedRun, name: str, base_model: str) -> str:
    """The model card, metadata first: results with intervals, recipe, data and versions, as the run recorded them."""
    manifest = recorded.read_manifest(served.run)
    rows, remark = results(served)
    shown = recorded.shown_options(manifest["command"], served.run)
    git = manifest.get("git") or {}
    versions = manifest.get("versions") or {}
    provenance = [
        *([("trained from", told(served.chain))] if served.chain else []),
        ("commit", f"{git.get('commit', 'not recorded')}{' with local changes' if git.get('dirty') else ''}"),
        ("patches", ", ".join(f"{package} `{tree}`" for package, tree in (manifest.get("tree_id") or {}).items())),
        ("packages", ", ".join(f"{package} {version}" for package, version in versions.items())),
        ("started", manifest.get("started", "not recorded")),
    ]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, undefined=StrictUndefined, autoescape=False
    )
    body = environment.get_template("card.md.jinja").render(
        name=name,
        base_model=base_model,
        steps=read(served.run / "result.json").get("steps"),
        versions={"openrlhf": "0.9.3"} | versions,
        rft=manifest.get("rft", ""),
        results=rows,
        remark=remark,
        recipe=[(option, shown[option]) for option in RECIPE.split() if option in shown],
        data=data(manifest, served),
        provenance=provenance,
    )
    return f"---\n{metadata(name, base_model, rows)}\n---\n\n{body}"


def metadata(name: str, base_model: str, rows: list[dict]) -> str:
    """The card's YAML head, with results in the hub's own form."""
    evaluated = [
        EvalResult(
            task_type="text-generation",
            dataset_type=row["dataset"],
            dataset_name=row["dataset"],
            metric_type="accuracy",
            metric_name=row["mode"],
            metric_value=row["value"],
        )
        for row in rows
    ]
    return ModelCardData(
        license="apache-2.0",
        base_model=base_model,
        library_name="peft",
        pipeline_tag="text-generation",
        tags=["gpt-oss", "grpo", "lora", f"base_model:adapter:{base_model}"],
        **({"model_name": name.rpartition("/")[2], "eval_results": evaluated} if evaluated else {}),
    ).to_yaml()


def results(served: ServedRun) -> tuple[list[dict], str]:
    """Rows of the table, of the evaluations after training, and what has to be said of them."""
    result = read(served.run / "result.json")
    if served.is_last:
        return ([row(result["before"], result["after"])] if "after" in result else []), ""
    best = find_best(served.run)
    measured = (result.get("best") or {}).get("evaluations", [])
    remarks = [
        f"The adapter of step {best.step}, the best of the evaluations in the loop ({best.metric} {best.value}), where "
        "the highest of several is too high by chance.",
        *(f"{one['sentence']} ({one['dataset']}, {one['remark']})." for one in measured),
    ]
    return [best_row(one) for one in measured], " ".join(remarks)


def best_row(evaluation: dict) -> dict:
    """One line of the results, of the best adapter; see `rft.runs.best.comparison`."""
    shown = {key: evaluation[key] for key in ("dataset", "mode", "n")} | {"value": round(evaluation["value"], 4)}
    after = with_interval(evaluation["value"], evaluation)
    return shown | {"before": "", "after": after, "difference": "", "p": ""}


def row(before: dict, after: dict) -> dict:
    """One line of the results; a comparison that was not made is left empty."""
    mode, versus = after["mode"], after.get("versus")
    return {
        "dataset": after["dataset"],
        "mode": mode,
        "n": after["n"],
        "value": round(after[mode], 4),
        "before": with_interval(before[mode], before),
        "after": with_interval(after[mode], after),
        "difference": points(versus) if versus else "",
        "p": p_value(versus["p_value"]) if versus else "",
    }


def with_interval(value: float, result: dict) -> str:
    return f"{value:.3f} ({interval(result['interval95'])})"


def data(manifest: dict, served: ServedRun) -> list[tuple[str, str]]:
    """(name, start of the digest) of what the run read, but for the base checkpoint."""
    inputs = (manifest.get("inputs") or {}).items()
    return [(Path(path).name, digest[:12]) for path, digest in inputs if Path(path).resolve() != served.base]


def read(file: Path) -> dict:
    """A JSON object of the run; empty where the file is not there."""
    return read_object(file) if file.is_file() else {}
