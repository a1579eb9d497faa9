"""What is served of a run, with which options, and what the smoke test says of a server."""

import json

import pytest
import torch
from served_run_by_hand import RANK, SHAPES, finished

from rft.hooks import chat_date, engine_options
from rft.serve import cli, served_run, smoke

BEST_IS_BASE = '{"global_step": 0, "metric": "eval_heldout_greedy_pass@1", "value": 0.5, "checkpoint": null}'


@pytest.fixture
def run(tmp_path, checkpoint):
    return finished(tmp_path / "train_grpo_tiny/20261122T100000Z", checkpoint)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_engine_is_that_of_the_training(run, checkpoint):
    served = served_run.read_run(run)
    command = served_run.serve_command(served, "127.0.0.1", 8000, True, ["--max-num-seqs", "4"])
    assert command[1:3] == ["serve", str(checkpoint.resolve())]
    assert option(command, "--max-model-len") == "128"
    assert command[-3:] == ["--enforce-eager", "--max-num-seqs", "4"]
    engine = json.loads(option(command, "--additional-config"))
    assert engine == engine_options.build("float32", RANK, list(SHAPES), str(run / "adapter"))
    assert engine["rft"]["adapter"] == str(run / "adapter")
    assert option(command, "--served-model-name") == "train_grpo_tiny/20261122T100000Z"


def test_best_adapter_is_another_model_also_when_the_run_has_moved(run, tmp_path):
    best = served_run.read_run(run, best=True)
    assert best.adapter.name == "best_step3_hf"
    assert served_run.served_name(best).endswith("-best")
    moved = run.rename(tmp_path / "elsewhere")
    assert served_run.read_run(moved, best=True).adapter == (moved / "checkpoints/best_step3_hf").resolve()


@pytest.mark.parametrize(
    ("harm", "arguments", "message"),
    [
        (lambda run: (run / "adapter/adapter_config.json").unlink(), [], "found no adapter in"),
        (lambda run: (run / "best.json").unlink(), ["--best"], "found no best adapter"),
        (lambda run: (run / "best.json").write_text(BEST_IS_BASE), ["--best"], "that of the base"),
        (lambda run: (run / "run.json").write_text("{"), [], "not JSON"),
        (lambda run: None, ["--host", "0.0.0.0"], "no VLLM_API_KEY"),
        (lambda run: None, ["--base", "/nowhere"], "name its new place with --base"),
    ],
    ids=["no adapter", "no best", "best is the base", "torn manifest", "open to others", "no base"],
)
def test_nothing_starts_on_bad_input(run, harm, arguments, message, monkeypatch, capsys):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    harm(run)
    assert cli.main([str(run), *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out


def test_command_is_printed_for_a_shell(run, capsys, monkeypatch):
    monkeypatch.delenv("CHAT_DATE", raising=False)
    assert cli.main([str(run), "--print"]) == 0
    assert capsys.readouterr().out.startswith(f"CHAT_DATE={chat_date.DEFAULT} ")


def test_chat_date_of_a_server(monkeypatch):
    for given, wanted in (("2026-01-31", "2026-01-31"), ("today", None), ("", None)):
        monkeypatch.setenv("CHAT_DATE", given)
        assert chat_date.fixed() == wanted
    monkeypatch.delenv("CHAT_DATE")
    assert chat_date.fixed() is None


def test_a_server_of_the_base_or_of_another_adapter_is_named():
    base, effect = torch.linspace(-3, -1, 50, dtype=torch.float64), torch.linspace(0.1, 0.5, 50, dtype=torch.float64)
    noise = 0.01 * torch.linspace(-1, 1, 50, dtype=torch.float64)
    found = smoke.judged(base + effect + noise, base, base + effect)
    assert found["tokens"] == 50
    assert found["mismatch"] == pytest.approx(noise.abs().mean().item())
    with pytest.raises(ValueError, match="answers as the base model"):
        smoke.judged(base + noise, base, base + effect)
    with pytest.raises(ValueError, match=r"differ by 0\.600 nats a token"):
        smoke.judged(base - effect, base, base + effect)
    # A zero adapter is the base: nothing to tell apart.
    assert smoke.judged(base + noise, base, base)["effect"] == 0
