"""What a run is called in W&B and TensorBoard."""

import pytest

from rft.hooks.trackers import wandb_run
from rft.options import command, trackers


@pytest.mark.parametrize(
    ("variables", "words", "name", "group"),
    [
        ({"RFT_RUN_DIR": "/r/runs/train_x/20261122T1Z"}, [], "train_x/20261122T1Z", "train_x"),
        ({"RFT_RUN_DIR": "/r/runs/first", "RFT_LAUNCHER": "train_x"}, [], "train_x/first", "train_x"),
        (
            {"RFT_RUN_DIR": "/r/runs/train_x/1"},
            ["--wandb_run_name", "mine", "--wandb_group", "ours"],
            "mine",
            "ours",
        ),
        ({}, ["--wandb_run_name", "mine"], "mine", None),
    ],
)
def test_a_run_is_called_after_its_directory(monkeypatch, variables, words, name, group):
    for variable in ("RFT_RUN_DIR", "RFT_LAUNCHER"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    args = command.trainer_parser().parse_args(words)
    trackers.settle(args)
    assert (args.wandb_run_name, args.wandb_group) == (name, group)


def test_without_a_directory_a_run_has_a_name_of_its_own(monkeypatch):
    monkeypatch.delenv("RFT_RUN_DIR", raising=False)
    args = command.trainer_parser().parse_args([])
    trackers.settle(args)
    assert args.wandb_run_name.startswith("ppo_") and args.wandb_group is None


def test_a_directory_keeps_the_id_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RFT_RUN_DIR", str(tmp_path / "one"))
    first = wandb_run()
    assert first["resume"] == "allow" and len(first["id"]) == 8
    assert wandb_run() == first
    monkeypatch.setenv("RFT_RUN_DIR", str(tmp_path / "two"))
    assert wandb_run()["id"] != first["id"]
    monkeypatch.delenv("RFT_RUN_DIR")
    monkeypatch.delenv("METRICS_LOG_DIR", raising=False)
    assert wandb_run() == {}
