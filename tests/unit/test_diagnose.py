"""`rft.runs.diagnose` on run directories: finished, unfinished, torn by a kill at any byte, and none at all."""

import errno
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sleeping import sleeping

from rft.hooks import early_stop
from rft.hooks.metrics import log_evaluation, log_training_step, rewind
from rft.options.command import MODULE
from rft.options.refusals import require_stoppable
from rft.record import disk
from rft.record.files import append_lines, replace_json
from rft.record.names import DECISIONS_FILE, EVAL_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.runs.diagnose import diagnose

EVALUATION = {"eval_probe_ood_greedy_pass@1": 0.5, "eval_probe_ood_problems": 200.0}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory of six steps and two evaluations, the environment pointing to it."""
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("RFT_RUN_DIR", str(tmp_path))
    early_stop._said.clear()
    for step in range(1, 7):
        log_training_step(step, {"reward_mean": 0.4, "grad_norm": 0.5, "truncated": 0.1, "ppo_clip_ratio": 0.0})
    for step in (0, 5):
        log_evaluation(step, EVALUATION)
    (tmp_path / "run.json").write_text(json.dumps({"command": ["-m", MODULE, "--ckpt_path", str(tmp_path / "ckpt")]}))
    return tmp_path


def options(run, **changes) -> types.SimpleNamespace:
    common = {"stop_rules": "default", "actor_learning_rate": 1e-6, "freezing_actor_steps": -1}
    return types.SimpleNamespace(**common | {"ckpt_path": str(run / "ckpt"), "save_path": str(run)} | changes)


def command(*words: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k not in ("METRICS_LOG_DIR", "RFT_RUN_DIR")}
    return subprocess.run(
        [sys.executable, "-m", "rft.runs.diagnose", *words], capture_output=True, text=True, env=environment
    )


def test_exit_status_and_report(run):
    healthy = command(str(run))
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert healthy.stdout.splitlines()[-1] == "healthy"
    assert "not judged, too few numbers or steps: dropped_sync, " in healthy.stdout
    for step in (7, 8, 9):
        log_training_step(step, {"reward_mean": 0.4, "grad_norm": 0.0, "truncated": 0.6, "ppo_clip_ratio": 0.0})
    sick = command(str(run))
    assert sick.returncode == 1
    lines = sick.stdout.splitlines()
    assert lines[2].startswith("frozen_weights") and "bad" in lines[2] and "--actor_learning_rate" in sick.stdout
    assert lines[-1] == "2 findings"
    document = json.loads(command(str(run), "--json").stdout)
    assert document["findings"] == ["frozen_weights", "truncation"]
    assert {v["rule"]: v["numbers"] for v in document["verdicts"]}["frozen_weights"] == {"grad_norm": [0.0, 0.0, 0.0]}
    assert document["last_step"] == 9


def test_bad_use_is_status_2(tmp_path):
    none = command(str(tmp_path / "absent"))
    assert none.returncode == 2 and "found no directory" in none.stderr
    (tmp_path / TRAINING_FILE).write_text("nonsense\n")
    broken = command(str(tmp_path))
    assert broken.returncode == 2 and "found no step" in broken.stderr and "(line 1)" in broken.stderr
    assert "Traceback" not in none.stderr + broken.stderr


def test_a_torn_line_inside_is_named_and_skipped(run):
    file = run / TRAINING_FILE
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:3], lines[3][:40] + "\n", *lines[4:]]))
    found = command(str(run))
    assert found.returncode == 0 and found.stdout.splitlines()[-1] == "healthy", found.stdout + found.stderr
    assert "training_metrics.jsonl: 1 of 6 lines cannot be read (line 4); left out" in found.stdout
    assert diagnose(run)["steps"] == 5


def test_a_folder_of_runs_means_the_newest(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("launcher")
    for name in ("20260101T000000Z", "20260102T000000Z"):
        shutil.copytree(run, folder / name)
    found = command(str(folder), "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["run"] == str(folder / "20260102T000000Z")
    assert found.stderr == f"the newest run of {folder}: {folder / '20260102T000000Z'}\n"


def test_a_failure_of_the_program_is_no_finding(run):
    (run / "best.json").write_text('{"global_step": 5}')  # of another shape
    failed = command(str(run))
    assert failed.returncode == 2 and "KeyError" in failed.stderr


def test_the_disk_is_judged_while_processes_of_the_run_live(run, monkeypatch):
    """Of an old run, or one that was copied here, this machine's disk says nothing."""
    monkeypatch.setattr(disk, "places", lambda *_: [{"path": "/", "free": 0, "need": 0}])
    assert diagnose(run)["findings"] == []
    with sleeping({"RFT_RUN_DIR": str(run)}):
        assert diagnose(run)["findings"] == ["disk"]
    assert diagnose(run)["findings"] == []


@settings(max_examples=60)
@given(st.data())
def test_a_kill_at_any_byte_leaves_files_that_every_reader_opens(tmp_path_factory, data):
    """A torn tail is dropped, and what is appended later starts on a line of its own."""
    file = tmp_path_factory.mktemp("torn") / "f.jsonl"
    records = data.draw(st.lists(st.fixed_dictionaries({"global_step": st.integers(1, 9), "t": st.text()}), min_size=1))
    lines = [json.dumps(r, ensure_ascii=data.draw(st.booleans())) + "\n" for r in records]
    whole = "".join(lines).encode("utf-8", "surrogatepass")
    cut = data.draw(st.integers(0, len(whole)))
    file.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    assert read_jsonl(file) == records[:complete]
    append_lines(file, '{"global_step": 10}\n')
    assert read_jsonl(file) == [*records[:complete], {"global_step": 10}]


def test_a_run_killed_at_any_byte_can_be_diagnosed_and_goes_on(run):
    """Every byte of the last line of each file."""
    append_lines(run / DECISIONS_FILE, json.dumps({"global_step": 6, "rule": "disk", "action": "watch"}) + "\n")
    for name in (TRAINING_FILE, EVAL_FILE, DECISIONS_FILE):
        whole = (run / name).read_bytes()
        start = whole[:-1].rfind(b"\n") + 1
        for cut in range(start, len(whole) + 1):
            (run / name).write_bytes(whole[:cut])
            document = diagnose(run)
            assert document["steps"] == (5 if name == TRAINING_FILE and cut < len(whole) else 6)
            assert early_stop.decide(options(run), 6) is None
            assert (run / name).read_bytes() == whole[:cut]
        (run / name).write_bytes(whole)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "f.jsonl"
    append_lines(file, '{"a": 1}\n')
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:4]))  # what still fitted
    with pytest.raises(OSError) as full:
        append_lines(file, '{"a": 2}\n')
    assert full.value.errno == errno.ENOSPC
    assert file.read_text() == '{"a": 1}\n'


def test_json_files_are_replaced_whole(tmp_path):
    file = tmp_path / "new" / "best.json"
    replace_json(file, {"a": 1})
    with pytest.raises(TypeError):
        replace_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}


def test_every_decision_is_written_once(run):
    for step in (7, 8):
        log_training_step(step, {"reward_mean": 0.4, "grad_norm": 60.0, "truncated": 0.9})
        assert early_stop.decide(options(run), step) is None
    log_training_step(9, {"reward_mean": 0.4, "grad_norm": 61.0, "truncated": 0.9})
    stopped = early_stop.decide(options(run), 9)
    assert stopped["rule"] == "gradient" and stopped["global_step"] == 9 and "learning_rate" in stopped["change"]
    decisions = [(d["global_step"], d["rule"], d["level"], d["action"]) for d in read_jsonl(run / DECISIONS_FILE)]
    assert sorted(decisions) == [
        (7, "gradient", "warn", "watch"), (7, "spikes", "warn", "watch"), (8, "truncation", "warn", "watch"),
        (9, "gradient", "bad", "stop"),
    ]  # fmt: skip
    assert {"reason", "numbers"} <= read_jsonl(run / DECISIONS_FILE)[0].keys()
    assert diagnose(run)["decisions"] == read_jsonl(run / DECISIONS_FILE)


def test_gates(run):
    """Switched off nothing is written; weights frozen on purpose do not stop; without a directory nothing is judged."""
    for step in (7, 8, 9):
        log_training_step(step, {"grad_norm": 0.0})
    assert early_stop.decide(options(run, stop_rules="off"), 9) is None
    assert not (run / DECISIONS_FILE).exists()
    assert early_stop.decide(options(run, actor_learning_rate=0), 9) is None
    assert early_stop.decide(options(run, freezing_actor_steps=6), 9) is None
    assert early_stop.decide(options(run, stop_rules="default,-frozen_weights"), 9) is None
    assert early_stop.decide(options(run), 9)["rule"] == "frozen_weights"
    os.environ.pop("METRICS_LOG_DIR")
    assert early_stop.decide(options(run), 9) is None


def test_what_cannot_be_stopped_is_refused(run):
    require_stoppable(options(run, async_train=True, stop_rules="off"))
    with pytest.raises(ValueError, match="asynchronous training cannot be stopped"):
        require_stoppable(options(run, async_train=True, stop_rules="disk"))
    with pytest.raises(ValueError, match="--stop_rules: found 'dsik'"):
        require_stoppable(options(run, async_train=False, stop_rules="dsik"))


def test_checkpoints_tell_what_the_next_one_needs(tmp_path):
    for folder, size in (("_actor/global_step2", 500), ("global_step2_hf", 30), ("best_step1_hf", 9)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "weights").write_bytes(b"0" * size)
    (place,) = disk.places(tmp_path, [tmp_path / "not" / "yet" / "there"])
    assert place["need"] == 583 and place["path"] == str(tmp_path) and place["free"] > 0
    assert disk.checkpoint_bytes(tmp_path / "absent") == 0


def test_a_checkpoint_may_vanish_while_it_is_measured(tmp_path, monkeypatch):
    """Another process removes the oldest while the folders are compared, and a file of the newest."""
    for name, size in (("global_step1_hf", 7), ("global_step2_hf", 30)):
        (tmp_path / name / "folder").mkdir(parents=True)
        (tmp_path / name / "weights").write_bytes(b"0" * size)
        (tmp_path / name / "folder" / "config").write_bytes(b"0")
    os.utime(tmp_path / "global_step1_hf", (0, 0))
    vanishing, stat = ("global_step1_hf", "config"), Path.stat

    def removed_first(path, **options):
        if path.name in vanishing:
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.unlink(path)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", removed_first)
    assert disk.checkpoint_bytes(tmp_path) == 30


def test_a_run_that_goes_on_was_not_stopped(run):
    """At a normal end in the same directory, and already when it is resumed from a checkpoint."""
    manifest, stopped = json.loads((run / "run.json").read_text()), {"global_step": 4, "rule": "disk", "reason": "full"}
    early_stop.finish(options(run), None)
    for go_on in (lambda: early_stop.finish(options(run), None), lambda: rewind(4)):
        with pytest.raises(SystemExit):
            early_stop.finish(options(run), stopped | {"change": "free some"})
        assert diagnose(run)["stopped"]["rule"] == "disk"
        go_on()
        assert json.loads((run / "run.json").read_text()) == manifest
