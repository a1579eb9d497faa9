"""The launchers: what they ask of OpenRLHF, what they say when something is missing, and how a run ends.

Their dry runs are compared with tests/shell/golden by test_scripts.py.
"""

import itertools
import math
import os
import re
import shlex
from pathlib import Path

import pytest
from launching import ROOT, body, launch

from rft.options import command

LAUNCHERS = sorted((ROOT / "launch").glob("train_grpo_*.sh"))
EXPERIMENTS = [launcher for launcher in LAUNCHERS if '\nexperiment "$@"' in launcher.read_text()]
PAIR = [ROOT / f"launch/train_grpo_20b_a28{arm}.sh" for arm in "ab"]
BIG = ROOT / "launch/train_grpo_20b.sh"
POOL = {"sft_rl_pool.jsonl": 50_000, "sft_rl_pool_400.jsonl": 400}  # prompts, by data/prepare_sft_data.py
ON_POOL = [launcher for launcher in EXPERIMENTS if any(f"/{name}" in launcher.read_text() for name in POOL)]


def names(paths):
    return [path.stem for path in paths]


def dry_run(launcher, place, *arguments, **environment):
    """The words of each command that a dry run prints, by the name of its script or module."""
    done = launch(launcher, place, *arguments, DRY_RUN="1", **environment)
    assert done.returncode == 0, done.stderr
    lines = [shlex.split(line) for line in done.stdout.splitlines()]
    return [(line[2] if line[1] == "-m" else Path(line[1]).name, line) for line in lines]


def training_command(launcher, place, *arguments, **environment):
    (words,) = (w for n, w in dry_run(launcher, place, *arguments, **environment) if n == "openrlhf.cli.train_ppo_ray")
    return words


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_a_launcher_is_short_and_states_its_acceptance(launcher):
    text = launcher.read_text()
    assert re.search(r"^# Acceptance: '[^']+'", text, re.MULTILINE)
    assert re.search(r"^# (Hardware: .*Time: |Question: )", text, re.MULTILINE)
    if launcher in EXPERIMENTS:
        assert 10 <= len(text.splitlines()) <= 25
    if "# Question: " in text:
        assert "# Prediction" in text


@pytest.mark.parametrize(
    ("of_training", "of_evaluation"),
    [
        (["--trust_remote_code"], ["--trust-remote-code"]),
        (["--reasoning_effort", "low"], ["--reasoning-effort", "low"]),
        (["--head_dtype", "model"], ["--head-dtype", "model"]),
    ],
    ids=["code", "effort", "head"],
)
def test_the_evaluations_are_of_what_is_trained(tmp_path, of_training, of_evaluation):
    for more, wanted in ([], False), (of_training, True):
        evaluations = [words for name, words in dry_run(BIG, tmp_path, *more) if name == "eval_posthoc.py"]
        assert len(evaluations) == 2
        assert {" ".join(of_evaluation) in " ".join(words) for words in evaluations} == {wanted}


def option(words, name):
    """The value that counts of an option of a command line."""
    return words[len(words) - words[::-1].index(name)]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """A function from a launcher to what preflight reads in its command.

    That the trainer itself reads and accepts the same is shown by tests/stack/test_preflight_stack.py.
    """
    place = tmp_path_factory.mktemp("parsed")
    return lambda launcher: vars(command.parse(training_command(launcher, place)))


# Each launcher's values are in its golden file; here is what holds for every launcher, a new one too.
@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_the_patched_parser_takes_every_option(parsed, launcher):
    args = parsed(launcher)
    assert args["attn_implementation"] == "eager" and not args["packing_samples"]  # the others leave out the sinks
    rewards = (args["agent_func_path"] or args["remote_rm_url"] or "").split(",")
    assert all(reward.startswith("http") or Path(reward).is_file() for reward in filter(None, rewards))


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_the_batches_divide(parsed, launcher):
    args = parsed(launcher)
    samples = args["rollout_batch_size"] * args["n_samples_per_prompt"]
    ranks = args["actor_num_nodes"] * args["actor_num_gpus_per_node"]
    assert samples % args["train_batch_size"] == 0
    assert args["train_batch_size"] % (args["micro_train_batch_size"] * ranks) == 0
    assert samples % (args["micro_rollout_batch_size"] * ranks) == 0


@pytest.mark.parametrize("launcher", ON_POOL, ids=names(ON_POOL))
def test_the_learning_rate_is_there_at_the_twentieth_update(parsed, launcher):
    """Linear warm-up over ceil(total x ratio) of pool x samples // batch x episodes updates: OpenRLHF's scheduler."""
    args = parsed(launcher)
    prompts = min(args["max_samples"], POOL[Path(args["prompt_data"]).name])
    updates = prompts * args["n_samples_per_prompt"] // args["train_batch_size"] * args["num_episodes"]
    assert 20 / math.ceil(updates * args["lr_warmup_ratio"]) >= 0.3
    if launcher in PAIR:
        assert (prompts, updates) == (400, 200)


def test_the_pair_differs_in_the_clip_range_only(tmp_path):
    a, b = (training_command(launcher, tmp_path) for launcher in PAIR)
    differing = [i for i, words in enumerate(zip(a, b, strict=True)) if len(set(words)) == 2]
    assert [(a[i - 1], a[i], b[i]) for i in differing] == [("--eps_clip", "0.2", "0.1")]


def test_overrides_reach_the_evaluations_too(tmp_path):
    engines = ("--vllm_num_engines", "2", "--vllm_tensor_parallel_size=4")
    overrides = ("--generate_max_len", "8192", *engines, "--pretrain", "/other")
    commands = dry_run(BIG, tmp_path, *overrides)
    before, after = (words for name, words in commands if name == "eval_posthoc.py")
    assert option(before, "--model") == "before=/other"
    for words in (before, after):
        assert option(words, "--max-tokens") == "8192" and option(words, "--tensor-parallel-size") == "4"


@pytest.mark.parametrize("launcher", [BIG, ROOT / "launch/train_grpo_tiny.sh"])
@pytest.mark.parametrize("more", [["--generate_max", "8192"], ["--generate_max=8192"]])
def test_an_abbreviation_ends_the_launch_before_anything_is_made(launcher, more, tmp_path):
    """Else a run would train with 8192 tokens and be evaluated with the preset's length."""
    for environment in ({}, {"DRY_RUN": "1"}):
        missing(launch(launcher, tmp_path, *more, **environment), "did you mean --generate_max_len?", status=2)
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


def test_what_a_command_leaves_out_has_the_trainers_defaults_in_the_evaluations(tmp_path):
    script = body(
        tmp_path, 'MODEL_ARGS=(--pretrain m); GRPO_ARGS=(--eval_dataset e --remote_rm_url r); train_and_measure "$@"'
    )
    before = next(w for name, w in dry_run(script, tmp_path, "--lora_rank=4") if name == "eval_posthoc.py")
    wanted = {"--model": "before=m", "--lora-rank": "4", "--max-prompt-tokens": "1024", "--max-tokens": "1024"}
    wanted |= {"--tensor-parallel-size": "1", "--dataset": "e"}
    assert {name: option(before, name) for name in wanted} == wanted


def test_roots_of_the_environment_are_honoured(tmp_path):
    roots = {"DATA_ROOT": "/data", "MODEL_ROOT": "/models", "OUTPUT_ROOT": "/out", "CKPT_ROOT": "/ckpt", "SEED": "7"}
    words = training_command(BIG, tmp_path, **roots)
    assert option(words, "--prompt_data") == "/data/sft_rl_pool.jsonl"
    assert option(words, "--eval_dataset") == "/data/probe_set_200_ood.jsonl"
    assert option(words, "--pretrain") == "/models/gpt-oss-20b"
    assert option(words, "--save_path") == "/out/train_grpo_20b/run/adapter"
    assert option(words, "--ckpt_path") == "/ckpt/train_grpo_20b/run/checkpoints"
    assert option(words, "--seed") == "7"


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=names(LAUNCHERS))
def test_what_a_resumed_run_needs_is_kept_unless_refused(launcher, tmp_path):
    kept = training_command(launcher, tmp_path)
    assert "--disable_ds_ckpt" not in kept and int(option(kept, "--save_steps")) > 0
    assert "--disable_ds_ckpt" in training_command(launcher, tmp_path, RESUMABLE="No")


def test_the_set_before_and_after_is_chosen_apart_from_the_one_in_the_loop(tmp_path):
    commands = dry_run(BIG, tmp_path, "--eval_dataset", "loop.jsonl", EVAL_DATASET="verdict.jsonl")
    assert [option(words, "--dataset") for n, words in commands if n == "eval_posthoc.py"] == ["verdict.jsonl"] * 2
    (training,) = (words for n, words in commands if n == "openrlhf.cli.train_ppo_ray")
    assert option(training, "--eval_dataset") == "loop.jsonl"


def test_the_reference_of_the_probe_can_be_left_out(tmp_path):
    for environment, wanted in (({}, 0), ({"EVAL_REFERENCE": "none"}, 2)):
        evaluations = [w for name, w in dry_run(BIG, tmp_path, **environment) if name == "eval_posthoc.py"]
        assert sum(option(words, "--reference") == "none" for words in evaluations if "--reference" in words) == wanted


def test_each_of_several_sets_is_evaluated(tmp_path):
    commands = dry_run(BIG, tmp_path, EVAL_DATASET="one.jsonl, two.jsonl")
    before = next(words for name, words in commands if name == "eval_posthoc.py")
    assert [after for word, after in itertools.pairwise(before) if word == "--dataset"] == [
        "one.jsonl",
        "two.jsonl",
    ]


def test_what_is_kept_elsewhere_is_linked_from_the_run_directory(tmp_path):
    script = body(tmp_path, 'begin_run; env | grep LOG_DIR; mkdir -p "$ADAPTER"; echo {} >"$METRICS_LOG_DIR/x"')
    (tmp_path / "logs").mkdir()
    places = {"OUTPUT_ROOT": "out", "METRICS_LOG_DIR": str(tmp_path / "logs"), "SAMPLES_LOG_DIR": "samples"}
    done = launch(script, tmp_path, **places)
    assert done.returncode == 0, done.stderr
    assert f"METRICS_LOG_DIR={tmp_path}/logs" in done.stdout and f"SAMPLES_LOG_DIR={tmp_path}/samples" in done.stdout
    run = tmp_path / "run"
    assert (run / "adapter").readlink() == tmp_path / "out/exp/run/adapter"
    assert (run / "samples").readlink() == tmp_path / "samples"
    assert (run / "training_metrics.jsonl").readlink() == tmp_path / "logs/training_metrics.jsonl"
    for name in ("spike_log.jsonl", "spikes", "decisions.jsonl", "discarded_metrics.jsonl"):
        assert (run / name).readlink() == tmp_path / "logs" / name
    assert not (run / "checkpoints").is_symlink()
    (tmp_path / "second").mkdir()
    done = launch(script, tmp_path, **places, RUN_DIR=str(tmp_path / "second/run"))
    assert done.returncode == 1 and "another run has written there" in done.stderr
    assert list((tmp_path / "second").iterdir()) == []


def test_a_spike_log_elsewhere_is_linked_with_its_bundles(tmp_path):
    script = body(tmp_path, "begin_run; env | grep SPIKE_LOG_PATH")
    done = launch(script, tmp_path, SPIKE_LOG_PATH="far/log.jsonl")
    assert f"SPIKE_LOG_PATH={tmp_path}/far/log.jsonl" in done.stdout, done.stderr
    assert (tmp_path / "run/spike_log.jsonl").readlink() == tmp_path / "far/log.jsonl"
    assert (tmp_path / "run/spikes").readlink() == tmp_path / "far/spikes"
    assert not (tmp_path / "run/training_metrics.jsonl").is_symlink()


def test_samples_of_another_run_are_refused(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/step1.jsonl").write_text("{}\n")
    done = launch(body(tmp_path, "begin_run"), tmp_path, SAMPLES_LOG_DIR="samples")
    assert done.returncode == 1 and f"SAMPLES_LOG_DIR={tmp_path}/samples, not empty" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_goes_on_where_it_wrote(tmp_path):
    trained = 'mkdir -p "$CHECKPOINTS/_actor"; echo 1 >"$CHECKPOINTS/_actor/latest"; echo {} >"$RUN_DIR/run.json"'
    script = body(tmp_path, f"""begin_run --ckpt_path "$RUN_DIR/checkpoints" "$@"; {trained}""")
    places = {"CKPT_ROOT": "ckpt", "METRICS_LOG_DIR": "logs"}
    assert launch(script, tmp_path, **places).returncode == 0
    for same in (places, {}, {"CKPT_ROOT": "./ckpt/"}):
        done = launch(script, tmp_path, "--load_checkpoint", **same)
        assert done.returncode == 0, done.stderr
    for other in ({"CKPT_ROOT": "other"}, {"OUTPUT_ROOT": "out"}, {"METRICS_LOG_DIR": "elsewhere"}):
        done = launch(script, tmp_path, "--load_checkpoint", **other)
        assert done.returncode == 1 and "the run was started with other paths" in done.stderr
    assert not (tmp_path / "other").exists() and not (tmp_path / "run/adapter").is_symlink()


def missing(done, *wanted, status=1):
    assert done.returncode == status and done.stdout == "", done.stdout
    assert all(text in done.stderr for text in wanted), done.stderr


def test_what_is_missing_is_said_before_anything_is_made(tmp_path):
    missing(launch(BIG, tmp_path), "too few GPUs", "0 here (RFT_STACK=cpu)", "wanted: 8", "train_grpo_tiny.sh")
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    smi.chmod(0o755)
    four = {"PATH": f"{smi.parent}:{os.environ['PATH']}", "RFT_STACK": "gpu"}
    missing(launch(BIG, tmp_path, **four), "too few GPUs", "0 here (RFT_STACK=gpu)")
    listed = 'if [ "$1" = -L ]; then echo "GPU $i: a device"; else echo "$i, 81000, 81559, a device"; fi'
    smi.write_text(f"#!/bin/sh\nfor i in 0 1 2 3; do {listed}; done\n")
    missing(launch(BIG, tmp_path, **four), "4 here", "wanted: 8")
    fewer = ("--actor_num_gpus_per_node", "2", "--vllm_num_engines", "2")
    missing(
        launch(BIG, tmp_path, *fewer, **four), "no model", "cache/models/gpt-oss-20b", "hf download openai/gpt-oss-20b"
    )
    elsewhere = {"RAY_ADDRESS": "auto", "DATA_ROOT": str(tmp_path), "MODEL": str(tmp_path)}
    (tmp_path / "config.json").write_text("{}")
    maker = f"python -m rft.data make --out {tmp_path} "
    for file in ("sft_rl_pool.jsonl", "probe_set_200_ood.jsonl", "probe_set_1000_ood.jsonl"):
        missing(launch(BIG, tmp_path, **elsewhere), f"{tmp_path}/{file}", maker)
        (tmp_path / file).write_text("")
    two = ("--eval_dataset", f"{tmp_path}/probe_set_200_ood.jsonl,{tmp_path}/aime_eval.jsonl")
    missing(launch(BIG, tmp_path, *two, **elsewhere), f"{tmp_path}/aime_eval.jsonl", maker)
    own = ("--eval_dataset", f"{tmp_path}/own.jsonl")
    missing(launch(BIG, tmp_path, *own, **elsewhere), f"{tmp_path}/own.jsonl", "docs/own_task.md")
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()
