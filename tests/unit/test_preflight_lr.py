"""The learning-rate schedule before a run equals the one that the trainer builds."""

import ast
import importlib.util
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.optimization import get_scheduler  # what OpenRLHF imports, by another name

from rft.runs import lr_schedule
from rft.runs.lr_schedule import Schedule, chart, factor, from_environment, highest_ratio, make_schedule, verdict

ROOT = Path(__file__).resolve().parents[2]
OPENRLHF = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])
SIZES = {
    "prompts": st.integers(1, 60_000),
    "n_samples": st.integers(1, 16),
    "batch": st.integers(1, 512),
    "episodes": st.integers(1, 50),
    "epochs": st.integers(1, 3),
    "ratio": st.sampled_from([0, 0.01, 0.03, 0.05, 0.1, 0.5, 1.0]) | st.floats(0, 1),
    "kind": st.sampled_from(lr_schedule.KNOWN),
}


def expression(file: str, wanted: str) -> str:
    """The expression of the first assignment or keyword argument of that name in one of OpenRLHF's files."""
    for node in ast.walk(ast.parse((OPENRLHF / file).read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == wanted:
            return ast.unparse(node.value)
        if isinstance(node, ast.keyword) and node.arg == wanted:
            return ast.unparse(node.value)
    raise AssertionError(f"{file} has no {wanted}")


MAX_STEPS = compile(expression("trainer/ppo_trainer.py", "max_steps"), "max_steps", "eval")
KEYWORDS = ast.literal_eval(expression("trainer/ray/ppo_actor.py", "scheduler_specific_kwargs"))
WARMUP = compile(expression("trainer/ray/ppo_actor.py", "num_warmup_steps"), "warmup", "eval")


def real_scheduler(args: SimpleNamespace, max_steps: int):
    """What `init_model_from_pretrained` of ppo_actor.py makes of these options."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.actor_learning_rate)
    return get_scheduler(
        args.lr_scheduler,
        optimizer,
        num_warmup_steps=eval(WARMUP, {"math": math, "max_steps": max_steps, "args": args}),
        num_training_steps=max_steps,
        scheduler_specific_kwargs=KEYWORDS,
    )


@settings(max_examples=200)
@given(data=st.data(), **SIZES)
def test_schedule_equals_the_trainers(data, prompts, n_samples, batch, episodes, epochs, ratio, kind):
    args = SimpleNamespace(
        n_samples_per_prompt=n_samples, train_batch_size=batch, num_episodes=episodes, max_epochs=epochs,
        lr_warmup_ratio=ratio, actor_learning_rate=5e-7, lr_scheduler=kind,
    )  # fmt: skip
    max_steps = eval(MAX_STEPS, {"prompts_dataset": range(prompts), "args": args})
    schedule = make_schedule(prompts, n_samples, batch, episodes, ratio, 5e-7, epochs, scheduler=kind)
    assert schedule.total == max_steps
    real = real_scheduler(args, max_steps).lr_lambdas[0]
    for step in [0, 1, 20, max_steps, *data.draw(st.lists(st.integers(0, max(max_steps, 1)), max_size=20))]:
        assert factor(schedule, step) == pytest.approx(real(step), abs=1e-12)


@settings(max_examples=50)
@given(total=st.integers(20, 3000), ratio=st.floats(0, 1), kind=st.sampled_from(lr_schedule.KNOWN), data=st.data())
def test_the_sum_of_the_rates_is_the_sum(total, ratio, kind, data):
    schedule = make_schedule(total, 1, 1, 1, ratio, 2e-5, scheduler=kind)
    steps = data.draw(st.integers(0, total))
    summed = sum(factor(schedule, step) for step in range(steps)) * 2e-5
    assert lr_schedule.summed(schedule, steps) == pytest.approx(summed, abs=1.1 * 2e-5)  # half a step at each end


def test_a_scheduler_that_is_stepped_gives_the_same_rates():
    args = SimpleNamespace(lr_warmup_ratio=0.03, actor_learning_rate=3e-3, lr_scheduler="cosine_with_min_lr")
    schedule, real = make_schedule(768, 8, 256, 1, 0.03, 3e-3), real_scheduler(args, 24)
    for step in range(25):
        assert real.get_last_lr()[0] == pytest.approx(factor(schedule, step) * 3e-3)
        real.optimizer.step()
        real.step()


def test_first_update_has_no_rate_and_the_last_a_tenth():
    schedule = make_schedule(400, 8, 16, 1, 0.05, 5e-7, rollout_batch_size=16)
    assert (schedule.total, schedule.warmup, schedule.rollout_steps) == (200, 10, 8)
    assert factor(schedule, 0) == 0 and factor(schedule, 10) == 1
    assert factor(schedule, 200) == pytest.approx(0.1)


@settings(max_examples=300)
@given(total=st.integers(1, 600_000), warmup=st.floats(0, 1))
@example(total=1, warmup=0.03)
@example(total=24, warmup=0.03)
def test_verdict_is_the_rule_and_its_repair_works(total, warmup):
    schedule = Schedule(total, math.ceil(total * warmup), 1e-6)
    good, measured, repair = verdict(schedule)
    share = factor(schedule, min(20, total // 2))
    assert good == (share >= 0.3) and f"of {total:,}" in measured
    if total >= 40 and not good:  # a decay that has set in is no reason: only a warm-up that has not ended
        assert schedule.warmup > 20
    if not good:
        ratio = highest_ratio(schedule)
        assert f"{ratio:.2g}" in repair
        assert verdict(schedule._replace(warmup=math.ceil(total * ratio)))[0]


def test_a_run_without_a_step_is_no_go():
    assert verdict(make_schedule(10, 1, 16, 3, 0.05, 1e-6))[:2] == (False, "no optimizer step")


def test_chart_has_a_line_a_step_and_marks_the_judged_one():
    text = chart(make_schedule(400, 8, 16, 1, 0.05, 5e-7, rollout_batch_size=16)).splitlines()
    assert [line.split()[0] for line in text] == ["step", "0", "1", "5", "10", "20", "50", "100", "150", "200"]
    assert [line for line in text if "judged" in line] == [next(li for li in text if li.split()[0] == "20")]
    assert "#" * 40 in text[4] and text[5].split()[1] == "2.5"


GOOD = {"POOL": "400", "NS": "8", "TBS": "16", "EP": "1", "WARMUP": "0.05", "LR": "5e-7"}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"POOL": ""}, "found no POOL"),
        ({"NS": "eight"}, "NS=eight, wanted a whole number"),
        ({"TBS": "0"}, "TBS=0"),
        ({"EP": "1.5"}, "EP=1.5"),
        ({"WARMUP": "1.5"}, "WARMUP=1.5"),
        ({"WARMUP": "nan"}, "WARMUP=nan"),
        ({"LR": "-1"}, "LR=-1"),
        ({"LR": "0"}, "LR=0"),
        ({"LR": "inf"}, "LR=inf"),
        ({"RBS": "0"}, "RBS=0"),
        ({"SCHEDULER": "linear"}, "SCHEDULER=linear, wanted one of cosine_with_min_lr"),
    ],
)
def test_bad_variables_are_named(changed, word):
    with pytest.raises(ValueError, match=word):
        from_environment(GOOD | changed)


def script(**variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k not in {*GOOD, "RBS", "SCHEDULER"}} | variables
    return subprocess.run(["bash", "preflight_lr.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_script_as_the_reference_calls_it():
    done = script(**GOOD)
    assert done.returncode == 0 and "go: 99.4% of 5e-07 after optimizer step 20 of 200" in done.stdout
    assert "warn: 5e-07 will move little" in done.stdout and "repair: LR=2e-05" in done.stderr
    constant = script(**GOOD | {"LR": "2e-5", "SCHEDULER": "constant_with_warmup"})
    assert constant.returncode == 0 and "go: 100.0% of 2e-05" in constant.stdout and not constant.stderr
    done = script(**GOOD | {"LR": "5"})
    assert done.returncode == 1 and "no-go: 5: even the tiny model collapsed" in done.stdout
    # 50,000 problems over 20 episodes: a warm-up of 25,000 steps, of which a run sees the first few hundred.
    done = script(**GOOD | {"POOL": " 50000\n", "EP": "20"})
    assert done.returncode == 1 and "no-go: 0.1%" in done.stdout and "--lr_warmup_ratio" in done.stderr
    done = script(POOL="400")
    assert done.returncode == 2 and "found no NS, TBS, EP, WARMUP, LR" in done.stderr and not done.stdout


def test_the_module_needs_the_standard_library_alone():
    tree = ast.parse(Path(lr_schedule.__file__).read_text())
    imported = {
        n.module if isinstance(n, ast.ImportFrom) else n.names[0].name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import | ast.ImportFrom)
    }
    assert imported == {"math", "os", "sys", "collections.abc", "typing"}
