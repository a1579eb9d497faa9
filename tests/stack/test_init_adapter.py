"""A training that starts from a saved adapter: policy, reference and base of the trainer, the engine's first answer."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny_adapter
import torch
from compared import comparable
from direct import kill, log_of, start, train, wait_until
from ranks import run_ranks
from safetensors.torch import load_file

from rft.record.adapters import adapter_digest
from rft.record.names import EVAL_FILE, TRAINING_FILE
from rft.record.readers import read_jsonl
from rft.record.samples import EVALUATION, read_samples, sample_file
from rft.serving.engine import open_engine, serve_adapter

pytestmark = pytest.mark.stack
CASES = ("0:eager", "1:resident", "2:eager", "2:resident", "3:eager", "3:resident")  # ZeRO stage, actor


@pytest.fixture(scope="module")
def init_adapter(checkpoint, tmp_path_factory):
    """A PEFT folder over the untrained checkpoint, as an earlier training leaves it."""
    return tiny_adapter.save(tmp_path_factory.mktemp("init") / "adapter", checkpoint)


def test_policy_reference_and_base_are_pefts(checkpoint, init_adapter, tmp_path):
    """Log-probabilities of the trainer's three policies, at the start and after a step, at each ZeRO stage."""
    from openrlhf.models import actor

    assert hasattr(actor, "init_adapter")
    import float32_truth
    from init_adapter_checks import ACTIONS, PROMPT, tokens

    run_ranks("init_adapter_checks.py", 1, checkpoint, init_adapter, tmp_path / "seen", *CASES)
    found = load_file(tmp_path / "seen")
    ids = tokens()[0].tolist()
    exact = float32_truth.truth(init_adapter, [(ids[:PROMPT], ids[PROMPT:])])
    rounding = float32_truth.farthest(exact.log_prob_error)
    saved = load_file(init_adapter / "adapter_model.safetensors")
    for case in CASES:
        start, trained = (
            {name: found[f"{case}.{moment}.{name}"] for name in ("policy", "reference", "off", "again")}
            for moment in ("start", "trained")
        )
        assert torch.equal(start["policy"], start["reference"]) and torch.equal(start["policy"], start["again"])
        assert torch.equal(trained["reference"], start["reference"])
        assert torch.equal(trained["policy"], trained["again"])
        assert torch.equal(start["off"], found[f"{case}.base"]) and torch.equal(trained["off"], start["off"])
        error, of_base = (
            (start[name][0, -ACTIONS:].double() - exact.log_prob).abs().mean() for name in ("reference", "off")
        )
        print(f"{case}: mean distance from PEFT in float32: {error:.2g} nats; bf16 {rounding:.2g}, base {of_base:.2g}")
        assert error < rounding < of_base / 10
        assert not torch.equal(trained["policy"], start["policy"])
        folder = tmp_path / "seen.d" / case.replace(":", ".")
        assert not any(path.is_dir() for path in folder.iterdir())
        kept = load_file(folder / "adapter_model.safetensors")
        assert kept.keys() == saved.keys() and all(not torch.equal(kept[name], saved[name]) for name in saved)


# One step of warm-up: the first is at a learning rate of 0, so its adapter is the init adapter still.
OPTIONS = ("--full_determinism", "--lr_warmup_ratio", "0.3", "--init_kl_coef", "0.01", "--kl_estimator", "k3")
OPTIONS += ("--use_kl_loss", "--save_steps", "1", "--eval_steps", "1", "--eval_temperature", "0")
OPTIONS += ("--eval_n_samples_per_prompt", "1", "--stop_rules", "off")


def options(checkpoint, init_adapter) -> list[str]:
    problems = init_adapter.parent / "problems.jsonl"
    rows = [{"input": [{"role": "user", "content": f"{n} + {n} ="}], "label": "1"} for n in range(30, 46)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [*OPTIONS, "--eval_dataset", str(problems), "--init_adapter", str(init_adapter)]


@pytest.fixture(scope="module")
def runs(checkpoint, init_adapter, tmp_path_factory):
    """A run of three steps to its end, and what a kill after its second checkpoint would have left of it."""
    whole, killed = (tmp_path_factory.mktemp("init-run") / name for name in ("whole", "killed"))
    process = start(whole, checkpoint, *options(checkpoint, init_adapter))
    latest = whole / "checkpoints" / "_actor" / "latest"
    try:
        wait_until(lambda: latest.is_file() and latest.read_text() == "global_step2", process, whole)
        shutil.copytree(whole, killed)
        assert process.wait(timeout=1200) == 0, log_of(whole)[-6000:]
    finally:
        kill(whole, process)
    return whole, killed


def answers(run_dir: Path, step: int) -> list[str]:
    """The greedy answers of an evaluation in the loop."""
    return [row["response"] for row in read_samples(sample_file(run_dir / "samples", EVALUATION, step))]


def test_a_run_starts_as_the_adapter_and_refers_to_it(runs):
    """At a learning rate of 0 nothing has moved: no KL, the same answers and weights; then all of them move."""
    steps, log = read_jsonl(runs[0] / TRAINING_FILE), log_of(runs[0])
    assert [step["adapter_version"] for step in steps] == [0, 1, 2]
    assert [step["kl"] == 0 for step in steps] == [True, True, False] and 0 < steps[2]["kl"] < 1
    # Nats: the adapter's canary is far from the base's, in the first rollout as in the second.
    assert steps[0]["sync_canary_shift"] == steps[1]["sync_canary_shift"] > 0.1
    assert max(step["mismatch_kl"] for step in steps) < 0.01  # engine and trainer sample and score one policy
    (served,) = re.findall(r"1 engines serve the init adapter, checksum ([0-9a-f]{16})", log)
    assert int(served, 16) & 0xFFFFFFFF == steps[0]["sync_checksum32"] != steps[1]["sync_checksum32"]
    evaluations = read_jsonl(runs[0] / EVAL_FILE)
    assert [one["global_step"] for one in evaluations] == [0, 1, 2, 3]
    assert answers(runs[0], 0) == answers(runs[0], 1) != answers(runs[0], 3)


def test_the_engine_of_the_first_rollout_held_the_saved_adapter(runs, checkpoint, init_adapter):
    """Bit for bit what a fresh engine holds of the folder; and it answers as the first evaluation did."""
    from vllm import SamplingParams

    room = {"lora_rank": tiny_adapter.RANK, "lora_modules": list(tiny_adapter.SHAPES)}
    llm = open_engine(str(checkpoint), max_model_len=128, **room)
    try:
        (receipt,) = serve_adapter(llm, str(init_adapter))
        prompts = [row["prompt"] for row in read_samples(sample_file(runs[0] / "samples", EVALUATION, 0))]
        inputs = [{"prompt_token_ids": llm.get_tokenizer()(p, add_special_tokens=False)["input_ids"]} for p in prompts]
        sampling = SamplingParams(temperature=0, max_tokens=1, skip_special_tokens=False)
        first = [output.outputs[0].text for output in llm.generate(inputs, sampling, use_tqdm=False)]
    finally:
        llm.llm_engine.engine_core.shutdown()
    assert f"serve the init adapter, checksum {receipt['checksum']}" in log_of(runs[0])
    begin = [answer.startswith(token) for answer, token in zip(answers(runs[0], 0), first, strict=True)]
    assert sum(begin) >= len(begin) - 1  # a near tie may turn with the batch


def test_a_resumed_run_keeps_its_reference(runs, checkpoint, init_adapter):
    """The third step of a run that was killed is that of the run that was not, its KL included, bit for bit."""
    whole, killed = runs
    train(killed, checkpoint, *options(checkpoint, init_adapter), "--load_checkpoint")
    assert comparable(killed) == comparable(whole)
    (states,) = (whole / "checkpoints" / "_actor" / "global_step2").glob("*model_states.pt")
    saved = torch.load(states, weights_only=False)
    assert saved["init_adapter"] == adapter_digest(init_adapter)
    assert saved["module"] and not any("reference" in name for name in saved["module"])


def test_another_reference_than_the_checkpoints_is_refused():
    from rft.hooks.init_adapter import require_same

    model = torch.nn.Linear(1, 1)
    require_same(model, {})
    with pytest.raises(ValueError, match=r"found:  none\n  wanted: the one with digest a{16}, as at the run's start"):
        require_same(model, {"init_adapter": "a" * 64})
    model.rft_init_adapter = "b" * 64
    require_same(model, {"init_adapter": "b" * 64})
    with pytest.raises(ValueError, match=r"found:  an adapter with digest b{16}\n  wanted: none"):
        require_same(model, {})
