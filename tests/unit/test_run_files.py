"""Readers and writers of run files, and the checks of what a run will read."""

import json
import re
import subprocess
import sys

import pytest

from rft.checkpoint_check import require_gpt_oss
from rft.evals.scores import summarize
from rft.hooks.metrics import json_line, log_training_step
from rft.hooks.numeric_logs import numeric_only
from rft.options.command import MODULE
from rft.problems import read_problems
from rft.record.digest import tree_digest
from rft.record.names import CLOCKS, TRAINING_FILE
from rft.record.readers import metrics_dir, read_jsonl, samples_dir, series, spike_log
from rft.runs.inputs import check_command
from rft.runs.manifest import cpu_model, machine


def test_metrics_lines_are_whole_finite_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path / "new" / "folder"))
    log_training_step(1, {"reward": 0.5, "bad": float("nan"), "text": "no", "flag": True})
    log_training_step(2, {"reward": float("inf")})
    file = tmp_path / "new" / "folder" / TRAINING_FILE
    records = [{name: record[name] for name in record if name not in CLOCKS} for record in read_jsonl(file)]
    assert records == [
        {"global_step": 1, "reward": 0.5, "bad": None, "flag": 1.0},
        {"global_step": 2, "reward": None},
    ]
    first, second = read_jsonl(file)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["time"])
    assert 0 < first["elapsed_seconds"] <= second["elapsed_seconds"]
    assert series([first, second], "reward") == ([1], [0.5])
    with file.open("a") as stream:
        stream.write('{"global_step": 3, "rew')  # a kill in the middle of a line
    assert len(read_jsonl(file)) == 2


SMI = "#!/bin/bash\n"
TWO = "NVIDIA H100 80GB HBM3, 81559, 550.54.15\n"


@pytest.mark.parametrize(
    ("script", "gpus", "driver"),
    [
        (f"{SMI}printf '{TWO}{TWO}'", [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}] * 2, "550.54.15"),
        (f"{SMI}echo 'No devices were found'; exit 6", [], None),
        (f"{SMI}echo 'No devices were found'", [], None),
        (None, [], None),
    ],
)
def test_the_manifest_names_gpus_and_driver_or_the_cpu(tmp_path, monkeypatch, script, gpus, driver):
    if script:
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # without this machine's own
    found = machine()
    assert (found["gpus"], found["driver"]) == (gpus, driver)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9354 \nmodel name\t: other\n")
    assert cpu_model(cpuinfo) == "AMD EPYC 9354" and cpu_model(tmp_path / "none") is None


def test_metrics_are_off_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("METRICS_LOG_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    log_training_step(1, {"reward": 0.5})
    assert list(tmp_path.iterdir()) == []
    assert json_line(4, {}).endswith("\n")


def test_a_run_that_holds_its_files_is_read_there_whatever_the_environment_names(tmp_path, monkeypatch):
    run, other = tmp_path / "run", tmp_path / "other"
    (run / "samples").mkdir(parents=True)
    for name in ("METRICS_LOG_DIR", "SAMPLES_LOG_DIR"):
        monkeypatch.setenv(name, str(other))
    monkeypatch.setenv("SPIKE_LOG_PATH", str(other / "s.jsonl"))
    assert (metrics_dir(run), spike_log(run)) == (other, other / "s.jsonl")
    for name in ("eval_metrics.jsonl", "spike_log.jsonl"):
        (run / name).write_text("{}\n")
    assert (metrics_dir(run), samples_dir(run), spike_log(run)) == (run, run / "samples", run / "spike_log.jsonl")
    (run / "samples").rmdir()
    assert samples_dir(run) == other
    monkeypatch.delenv("SAMPLES_LOG_DIR")
    assert samples_dir(run) == run / "samples"


def test_broken_line_in_the_middle_is_named(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"a": 1}\nbroken\n{"a": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(file)


def test_numeric_only_takes_numbers_in_any_wrapping():
    import numpy as np
    import torch

    logs = {
        "int": 1, "np": np.float32(0.5), "array": np.array([0.25]), "tensor": torch.tensor([[2.0]]), "bool": np.True_,
        "text": "x", "none": None, "nan": np.nan, "empty": torch.tensor([]), "list": [1.0],
    }  # fmt: skip
    kept = numeric_only(logs)
    assert sorted(key for key, value in kept.items() if value != value) == ["empty", "nan", "none"]
    finite = {key: value for key, value in kept.items() if value == value}
    assert finite == {"int": 1.0, "np": 0.5, "array": 0.25, "tensor": 2.0, "bool": 1.0}
    assert numeric_only(None) == {}


def test_summary_carries_its_mode_and_interval():
    records = [{"id": str(i), "correct": i < 30, "truncated": False, "tokens": 10} for i in range(40)]
    summary = summarize(records, "greedy_pass@1")
    assert summary["greedy_pass@1"] == 0.75
    assert summary["n"] == 40
    assert summary["interval95"][0] < 0.75 < summary["interval95"][1]


def test_tree_digest_sees_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    first = tree_digest(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    second = tree_digest(tmp_path)
    (tmp_path / "b").write_text("2")
    assert len({first, second, tree_digest(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 1: not JSON"), ('{"input": 1, "label": "1", "id": "a"}', "'input'"), ("", "no problems")],
)
def test_malformed_problem_file_is_named(tmp_path, line, message):
    file = tmp_path / "p.jsonl"
    file.write_text(line + "\n" if line else "")
    with pytest.raises(ValueError, match=message):
        read_problems(file)
    with pytest.raises(ValueError, match="no file"):
        read_problems(tmp_path / "absent.jsonl")


def checkpoint(folder, model_type="gpt_oss"):
    """As far as it is read where the config has no sizes: a file of weights without a tensor."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def test_directory_that_is_not_gpt_oss_is_refused(tmp_path):
    require_gpt_oss(checkpoint(tmp_path / "good"))
    with pytest.raises(ValueError, match="found model_type 'llama'; wanted 'gpt_oss'"):
        require_gpt_oss(checkpoint(tmp_path / "llama", "llama"))
    with pytest.raises(ValueError, match="no such directory"):
        require_gpt_oss(tmp_path / "absent")
    (tmp_path / "good" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"found no \*\.safetensors"):
        require_gpt_oss(tmp_path / "good")


def test_training_command_is_checked_before_anything_starts(tmp_path):
    model, data = checkpoint(tmp_path / "model"), tmp_path / "train.jsonl"
    data.write_text('{"input": [{"role": "user", "content": "1 + 1"}], "label": "2"}\n')
    command = ["-m", MODULE, "--pretrain", str(model), "--prompt_data", str(data), "--attn_implementation", "eager"]
    command += ["--label_key", "label", "--apply_chat_template", "--remote_rm_url", "http://127.0.0.1/get_reward"]
    check_command(command)
    check_command([*command, "--prompt_data", f"{data}, {data}", "--eval_dataset", f"{data},hub/name"])
    for overrides, message in (
        (["--pretrain", str(tmp_path)], "no config.json"),
        (["--prompt_data", str(tmp_path / "absent.jsonl")], "found no prompt file"),
        (["--eval_dataset", f"{data},{tmp_path}/none.jsonl"], "found no prompt file .*none.jsonl"),
        (["--label_key", "answer"], "line 1: field 'answer' is empty"),
        (["--input_key", "question"], "field 'question' is None, wanted chat messages or text"),
        (["--remote_rm_url", str(tmp_path / "reward.py")], "found no file"),
        (["--remote_rm", str(tmp_path / "reward.py")], "did you mean --remote_rm_url"),
    ):
        with pytest.raises(ValueError, match=message):
            check_command([*command, *overrides])


def test_manifest_tells_the_inputs_from_the_command(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}\n")
    command = ["python", "-m", "trainer", "--input", "x", "-1"]
    manifest = [sys.executable, "-m", "rft.runs.manifest", str(tmp_path), f"--input={tmp_path / 'train.jsonl'}", "--"]
    subprocess.run([*manifest, *command], check=True)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["command"] == command
    assert list(written["inputs"]) == [str(tmp_path / "train.jsonl")]
