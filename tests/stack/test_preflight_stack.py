"""Preflight against the real trainer and a real Ray cluster."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import run_module

from rft.options import command
from rft.record.environment import stack_name
from rft.runs.preflight import software
from rft.runs.preflight.lines import GO

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted((ROOT / "launch").glob("train_grpo_*.sh"))
TUNED = [launcher for launcher in LAUNCHERS if "\nuse_recipe\n" in launcher.read_text()]
# Without a model or a reward, which the trainer refuses.
INCOMPLETE = [[], ["--num_episodes", "3", "--target_modules", "q_proj", "--eps_clip_low_high", "0.1", "0.2"]]


def training_words(launcher: Path, place: Path, recipe: str = "") -> list[str]:
    """The options of the training command that a launcher prints, for a model in `place`."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "RFT_STACK": stack_name(), "DRY_RUN": "1"}
    environment |= {"RUN_DIR": str(place / "run"), "MODEL": str(place), "CLUSTER": "8xh100", "RECIPE": recipe}
    done = subprocess.run(["bash", launcher], env=environment, cwd=place, capture_output=True, text=True)
    (line,) = (line for line in done.stdout.splitlines() if command.MODULE in line)
    words = shlex.split(line)
    return [*words[words.index(command.MODULE) + 1 :], "--pretrain", str(place)]


def test_commands_are_read_as_the_trainer_reads_them(tmp_path):
    """And the trainer's own checks let every launcher's command pass."""
    packed = {"num_local_experts": 128, "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "architectures": [], **packed}))
    (tmp_path / "chat_template.jinja").write_text("{{ reasoning_effort }}")
    complete = [training_words(launcher, tmp_path) for launcher in LAUNCHERS]
    complete += [training_words(launcher, tmp_path, "tuned") for launcher in TUNED]
    commands = INCOMPLETE + complete
    (tmp_path / "commands.json").write_text(json.dumps([*commands, ["--generate_max", "8192"]]))
    done = run_module("read_commands", tmp_path / "commands.json", tmp_path / "found.json")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "found:  --generate_max 8192" in done.stdout and "did you mean --generate_max_len?" in done.stdout
    *found, abbreviated = json.loads((tmp_path / "found.json").read_text())
    assert abbreviated == {"parsed": None, "passes": False}
    for words, theirs in zip(commands, found, strict=True):
        ours = json.loads(json.dumps(vars(argparse.ArgumentParser.parse_args(command.trainer_parser(), words))))
        for parsed in (theirs["parsed"], ours):
            parsed.pop("wandb_run_name")  # the time of day
        assert ours == theirs["parsed"]
    assert [row["passes"] for row in found] == [False] * len(INCOMPLETE) + [True] * len(complete), done.stdout


def test_nodes_of_a_real_cluster():
    """A head started by hand, as RAY_ADDRESS's would be: preflight compares the tree on its only node."""
    script = (
        "import json, ray; from rft.runs.preflight import software; "
        "context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False); import os; "
        "os.environ['RAY_ADDRESS'] = context.address_info['gcs_address']; "
        "print(json.dumps([list(line) for line in software.check_nodes()])); ray.shutdown()"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", software.OWN_CLUSTER)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [["Ray nodes", GO, "1, all equal", ""]]
