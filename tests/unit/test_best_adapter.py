"""The best adapter of a run beside its last: which is measured, on which problems, and how it is promoted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import report_runs
import torch
from safetensors.torch import save_file

from rft.options.command import MODULE
from rft.problems import problem_row
from rft.record.digest import tree_digest
from rft.runs import best, promote
from rft.runs.attempt import entry
from rft.runs.report import cli

ROOT = Path(__file__).resolve().parents[2]
METRIC = "eval_loop_greedy_pass@1"


def adapter(folder: Path, value: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text('{"r": 1, "lora_alpha": 1}')
    save_file({"a": torch.full((4,), value)}, folder / best.TENSORS)
    return folder


def rows(count: int, prefix: str = "p") -> list[dict]:
    return [problem_row(f"{n} + 1 =", str(n + 1), f"{prefix}{n}", "sums") for n in range(count)]


def write(path: Path, problems: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in problems))
    return path


def evaluation(run: Path, name: str, right: int, problems: Path) -> None:
    """60 problems, the first ones right, in evals/NAME.json, on a file of problems p0, p1, …."""
    result = report_runs.evaluation(name, [n < right for n in range(60)])
    result |= {"problems": tree_digest(problems)}
    result["records"] = [record | {"id": f"p{n}"} for n, record in enumerate(result["records"])]
    (run / "evals" / f"{name}.json").write_text(json.dumps([result]))


@pytest.fixture
def run(tmp_path):
    """A run whose loop looked at 20 of the 60 problems before and after, best at step 12 of 16."""
    path = tmp_path / "run"
    (path / "evals").mkdir(parents=True)
    loop, whole = write(tmp_path / "loop.jsonl", rows(20)), write(tmp_path / "whole.jsonl", rows(60))
    manifest = {
        "command": ["python", "-m", MODULE, "--eval_dataset", str(loop), "--save_path", f"{path}/adapter"],
        "inputs": {str(file): tree_digest(file) for file in (loop, whole)},
    }
    (path / "run.json").write_text(json.dumps(manifest))
    adapter(path / "adapter", 1.0)
    name(path, 12, adapter(path / "checkpoints" / "best_step12_hf", 2.0))
    for model, right in (("after", 30), ("best", 50)):
        evaluation(path, model, right, whole)
    return path


def name(run: Path, step: int, checkpoint: Path | None) -> None:
    """What the training writes: best.json."""
    place = str(checkpoint) if checkpoint else None
    document = {"global_step": step, "metric": METRIC, "value": 0.9, "checkpoint": place}
    (run / "best.json").write_text(json.dumps(document))


def command(module: str, run: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", module, str(run)], cwd=ROOT, capture_output=True, text=True)


def test_the_launcher_measures_the_best_where_it_is_another_than_the_last(run):
    done = command("rft.runs.best", run)
    assert (done.returncode, done.stdout.strip()) == (0, str(run / "checkpoints" / "best_step12_hf")), done.stderr
    moved = run.rename(run.with_name("moved"))
    assert best.find_best(moved).adapter == moved / "checkpoints" / "best_step12_hf"
    adapter(moved / "adapter", 2.0)  # the last one is the best
    assert best.is_last(moved, best.find_best(moved))
    for change in (lambda: None, lambda: name(moved, 0, None), lambda: (moved / "best.json").unlink()):
        change()
        done = command("rft.runs.best", moved)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[]", "wanted an object"),
        ("{}", "found no best evaluation"),
        ('{"global_step": "x", "metric": "m", "value": 1, "checkpoint": null}', "found no best evaluation"),
        ('{"global_step": 4, "metric": "m", "value": 1, "checkpoint": "/gone"}', "found no adapter_model.safetensors"),
    ],
)
def test_a_best_that_cannot_be_read_is_one_message(run, text, message):
    (run / "best.json").write_text(text)
    for module in ("rft.runs.best", "rft.runs.promote"):
        done = command(module, run)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr and not done.stdout
    assert not os.path.lexists(run / promote.LINK)


def test_the_comparison_counts_problems_that_the_best_was_not_chosen_on(run):
    (one,) = best.comparison(run)["evaluations"]
    assert one["n"] == 40 and one["remark"] == "on the 40 of 60 problems that it was not chosen on"
    assert (one["value"], one["last"]) == (30 / 40, 10 / 40), "problems 20 to 59: 30 of them, and 10, are right"
    low, high = one["interval95"]
    assert low < 30 / 40 < high and "The best in the loop is better than the last adapter" in one["sentence"]
    (line,) = best.lines(best.comparison(run))
    assert "step 12" in line and "n = 40; on the 40 of 60" in line


def test_problems_are_known_by_their_text_too(run, tmp_path):
    """A loop's set made apart has ids of its own."""
    write(tmp_path / "loop.jsonl", rows(20, "other"))
    manifest = json.loads((run / "run.json").read_text())
    manifest["inputs"][f"{tmp_path}/loop.jsonl"] = tree_digest(tmp_path / "loop.jsonl")
    (run / "run.json").write_text(json.dumps(manifest))
    assert best.comparison(run)["evaluations"][0]["n"] == 40


def test_where_nothing_is_left_or_known_it_says_that_the_number_is_optimistic(run, tmp_path):
    manifest = json.loads((run / "run.json").read_text())
    whole = manifest | {"command": ["python", "-m", MODULE, "--eval_dataset", f"{tmp_path}/whole.jsonl"]}
    (run / "run.json").write_text(json.dumps(whole))
    (one,) = best.comparison(run)["evaluations"]
    assert one["n"] == 60 and one["remark"] == best.OPTIMISTIC
    (run / "run.json").write_text(json.dumps(manifest))
    write(tmp_path / "loop.jsonl", rows(10))  # no longer the loop's
    assert best.comparison(run)["evaluations"][0]["remark"] == best.UNKNOWN
    (tmp_path / "loop.jsonl").unlink()
    assert best.comparison(run)["evaluations"][0]["remark"] == best.UNKNOWN
    assert best.comparison(run)["evaluations"][0]["n"] == 60
    (run / "evals" / "best.json").unlink()
    assert best.comparison(run) is None and best.lines(None) == []


def test_what_cannot_be_compared_is_a_note_and_the_rest_is_reported(run):
    (run / "evals" / "best.json").write_text("[")
    (line,) = best.lines(best.measured(run))
    assert "is not compared" in line and f"{run}/evals/best.json: not JSON" in line
    (run / "checkpoints" / "best_step12_hf" / best.TENSORS).unlink()
    assert "found no adapter_model.safetensors" in best.lines(best.measured(run))[0]
    assert best.lines("nonsense") == best.lines({}) == []


def test_an_evaluation_of_an_earlier_best_does_not_count(run):
    file = run / "evals" / "best.json"
    (result,) = json.loads(file.read_text())
    file.write_text(json.dumps([result | {"weights": {"base": "b", "adapter": "of another one"}}]))
    assert best.comparison(run) is None


def test_the_entry_of_an_attempt_shows_it(run):
    named, line = entry.best_checkpoint(run)
    assert "step 12" in named and "n = 40; on the 40 of 60 problems that it was not chosen on" in line


def test_the_report_shows_it(tmp_path):
    path = report_runs.whole_run(tmp_path)
    evaluations = [
        {"dataset": "d", "mode": "m", "n": 40, "value": 0.75, "interval95": [0.6, 0.86], "last": 0.5,
         "sentence": "S.", "remark": best.OPTIMISTIC}
    ]  # fmt: skip
    found = {"step": 12, "metric": METRIC, "value": 0.9, "evaluations": evaluations}
    (path / "result.json").write_text(json.dumps({"steps": 30, "best": found}))
    assert f"m on d 0.750 (0.600-0.860), n = 40; {best.OPTIMISTIC}. S." in cli.page(cli.load_all([path]))


# --- promoting ---


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


def test_promoting_copies_the_best_and_leaves_the_last(run):
    before = content(run)
    done = command("rft.runs.promote", run)
    assert done.returncode == 0 and "now names the best adapter: adapter_best_step12" in done.stdout, done.stderr
    assert "n = 40; on the 40 of 60 problems" in done.stdout
    assert tree_digest(run / "promoted") == tree_digest(run / "checkpoints" / "best_step12_hf")
    after = content(run)
    assert {name: after[name] for name in before} == before
    assert "already" in promote.promote(run) and content(run) == after
    (run / "checkpoints" / "best_step12_hf" / best.TENSORS).unlink()  # a resumed run finds a better one
    name(run, 14, adapter(run / "checkpoints" / "best_step14_hf", 3.0))
    assert "adapter_best_step14" in promote.promote(run) and (run / "adapter_best_step12").is_dir()
    assert tree_digest(run / "promoted") == tree_digest(run / "checkpoints" / "best_step14_hf")
    adapter(run / "adapter", 3.0)
    assert "now names the best adapter: adapter (step 14" in promote.promote(run)
    assert os.readlink(run / "promoted") == "adapter"


def test_what_cannot_be_promoted_is_refused_and_changes_nothing(run, tmp_path):
    (run / "promoted").mkdir()
    for change, message in (
        (lambda: None, "which is no link"),
        (lambda: ((run / "promoted").rmdir(), adapter(run / "adapter_best_step12", 7.0)), "with another content"),
        (lambda: name(run, 0, None), "step 0 without an adapter"),
        (lambda: (run / "best.json").unlink(), "no best.json"),
    ):
        change()
        before = content(run)
        with pytest.raises(ValueError, match=message):
            promote.promote(run)
        assert content(run) == before
    with pytest.raises(ValueError, match="found no run"):
        promote.promote(tmp_path / "absent")


def test_a_copy_that_fails_leaves_nothing(run):
    (run / "checkpoints" / "best_step12_hf" / "gone").symlink_to(run / "absent")
    before = content(run)
    with pytest.raises(OSError, match="gone"):
        promote.promote(run)
    assert content(run) == before and not os.path.lexists(run / "promoted")
