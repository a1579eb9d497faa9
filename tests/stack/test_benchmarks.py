"""Every benchmark runs unattended at tiny size on the CPU, and writes its JSON and its table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rft.runs.memory import marked_processes

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Where the benchmarks of this module share a tiny checkpoint."""
    return tmp_path_factory.mktemp("bench")


def run(name: str, work: Path, *options: str, result: str | None = None, ranks: int = 0) -> tuple[dict, str]:
    """Results and table of `python -m benchmarks.NAME`, of torchrun's with ranks; in files of that name or another."""
    out = work / "out" / name
    torchrun = ["torch.distributed.run", "--nproc-per-node", str(ranks), "-m"] if ranks else []
    command = [sys.executable, "-m", *torchrun, f"benchmarks.{name}", "--out", str(out), "--work", str(work), *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result = result or name
    return json.loads((out / f"{result}.json").read_text()), (out / f"{result}.md").read_text()


def test_whole_loop_reports_every_step(work):
    record, table = run("whole_loop", work, "--shape", "tiny", "--steps", "2")
    loop = record["parts"]["loop"]
    assert [step["global_step"] for step in loop["steps"]] == [1, 2]
    assert loop["ended"] == "by itself"
    for step in loop["steps"]:
        assert step["sync_layers"] == 8
        assert 0 <= step["reward"] <= 1
        assert step["response_length"] == 24
        assert step["tokens_per_second_step"] > 0
    for name in ("time_rollout_seconds", "time_train_seconds", "sync_seconds", "tokens_per_second_rollout"):
        assert f"`{name}`" in table
    assert record["tree_id"].keys() == {"openrlhf", "vllm"}
    assert table.startswith(record["started"][:10])
    assert [path for path in work.glob("whole_loop-*") if marked_processes(str(path))] == []


def test_sync_measures_every_phase_against_dummy_weights(work):
    record, table = run("sync", work, "--case", "tiny-dummy")
    found = record["parts"]["tiny-dummy"]
    assert [sync["sync_adapter_version"] for sync in found["syncs"]] == list(range(4, 24))
    assert len({sync["sync_checksum32"] for sync in found["syncs"]}) == 20  # another adapter each time
    # r=8, bf16: q 128x128, k and v 64x128, o 128x128, in each of two layers
    assert found["bytes"] == 2 * 8 * 2 * (256 + 192 + 192 + 256)
    assert all(sync["end_to_end_seconds"] >= sync["sync_seconds"] for sync in found["syncs"])
    assert found["first_update"]["sync_kept_share"] == 1.0
    for name in ("end_to_end_seconds", "sync_gather_seconds", "sync_rpc_seconds", "sync_worker_apply_seconds"):
        assert f"`{name}`" in table


def test_served_weights_are_compared_with_three_references(work):
    # One rank: how shards are cut is proved at two ranks by test_engine.py, through the same functions.
    record, table = run("tp_exact", work, "--shape", "tiny", "--tensor-parallel-size", "1")
    counts = [found["counts"] for name, found in record["parts"].items() if name != "engine"]
    assert len(counts) == 3
    for count in counts:
        assert count["elements"] == 2 * (256 * 128 + 128 * 128)
        assert count["other than the base"] > 0.5 * count["elements"]
        assert count["float32 on cpu"] == 0
        assert count["float64"] < 0.001 * count["elements"]
    assert counts[0] == counts[2]
    assert table.count("| yes |") == 3


def test_engine_and_trainer_agree_before_and_after_syncs(work):
    options = ["--shape", "tiny", "--tokens", "160", "--actor", "eager", "--without", "rotary", "--without", "head"]
    record, table = run("parity", work, *options, result="parity_eager")
    numbers = {title: d for part in record["parts"].values() for title, d in part.get("distances", {}).items()}
    assert list(numbers)[2:5] == ["without rotary", "without head", "without rotary and head"]
    assert "after 10 syncs" in table
    for positions in numbers.values():
        assert list(positions) == ["all", "0-128", "128-512"]
        assert [found["tokens"] for found in positions.values()] == [8 * 152, 8 * 120, 8 * 32]
    # Two bf16 implementations of a random model; without the adapter the difference is of another size.
    before, nudged, without, rounded, neither, after, control = (found["all"] for found in numbers.values())
    assert before["mean_abs"] < 0.1
    assert after["mean_abs"] < 0.1
    assert control["mean_abs"] > 4 * after["mean_abs"]
    assert control["k3"] > 4 * after["k3"]
    assert nudged["mean_abs"] < before["mean_abs"]
    # The fix was off while the same tokens were scored, and on again afterwards.
    assert without["engine_mean_logprob"] == before["engine_mean_logprob"]
    assert without["mean_abs"] != before["mean_abs"]
    assert len({found["mean_abs"] for found in (before, without, rounded, neither)}) == 4


def test_actors_are_timed_and_profiled(work):
    record, table = run("actor", work, "--shape", "tiny", "--tokens", "128,256", "--profile")
    for name in ("resident", "eager"):
        found = record["parts"][name]
        passes = [(each["tokens"], each["pass"]) for each in found["passes"]]
        assert passes == [(tokens, which) for tokens in (128, 256) for which in ("forward + backward", "forward")]
        assert all(len(each["seconds"]) == 5 for each in found["passes"])
        for times in found["profiles"].values():
            assert all(times[part] > 0 for part in ("experts GEMM", "attention", "projections", "head", "norms"))
        assert table.count(f"| {name} |") == 4
    assert "| eager | 256 | forward + backward |" in table


def test_split_experts_are_timed_and_compared(work):
    record, table = run("sharded", work, "--shape", "tiny", ranks=2)
    whole, split = record["parts"].values()
    assert split["differing"] == 0 and "differing" not in whole
    assert whole["seconds"].keys() == split["seconds"].keys() == {"forward + backward", "forward"}
    assert "| split over 2 |" in table


def test_actors_are_compared_with_float32(work):
    record, table = run("actor", work, "--shape", "tiny", "--parity", result="actor_parity")
    found = record["parts"]["parity"]["distances"]
    resident, eager = found["resident"], found["eager"]
    assert resident["tokens"] == eager["tokens"] == 8 * 8 * 63
    # Two bf16 implementations round about as often; a wrong one would be off by as much as the logits differ.
    for measure in ("mean_abs", "gradient_error"):
        assert 0 < resident[measure] < 2 * eager[measure] < 0.2
    assert "| resident |" in table
