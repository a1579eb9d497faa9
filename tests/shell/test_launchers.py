"""The launchers: what they ask of OpenRLHF, what they say when something is missing, and how a run ends.

Their dry runs are compared with tests/shell/golden by test_scripts.py.
"""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted((ROOT / "launch").glob("train_*.sh"))
EXPERIMENTS = [launcher for launcher in LAUNCHERS if launcher.stem != "train_grpo_tiny"]
PAIR = [ROOT / f"launch/train_grpo_20b_a28{arm}.sh" for arm in "ab"]
BIG = ROOT / "launch/train_grpo_20b.sh"
POOL = {"sft_rl_pool.jsonl": 50_000, "sft_rl_pool_400.jsonl": 400}  # prompts, by data/prepare_sft_data.py


def names(paths):
    return [path.stem for path in paths]


def launch(launcher, place, *arguments, **environment):
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "RFT_STACK": "cpu"} | environment
    environment = {"RUN_DIR": str(place / "run"), "CACHE_ROOT": str(place / "cache")} | environment
    return subprocess.run(
        ["bash", launcher, *arguments], env=environment, cwd=place, capture_output=True, text=True, timeout=120
    )


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


def option(words, name):
    """The value that counts of an option of a command line."""
    return words[len(words) - words[::-1].index(name)]


# Runs the main block of the installed module as it stands, with `train` replaced: OpenRLHF builds its parser in there.
PARSE = """
import ast, json, sys
import openrlhf.cli.train_ppo_ray as module
source = ast.parse(open(module.__file__).read())
(train,) = [node for node in source.body if getattr(node, "name", None) == "train"]
train.body = ast.parse("parsed.append(vars(args))").body
parsed = []
for command in json.load(open(sys.argv[1])):
    sys.argv = ["train_ppo_ray", *command]
    exec(compile(source, module.__file__, "exec"), {"__name__": "__main__", "parsed": parsed})
print("parsed " + json.dumps(parsed))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    """What the real, patched parser and its checks make of each launcher's command, by the launcher's name."""
    place = tmp_path_factory.mktemp("parsed")
    (place / "model").mkdir()
    (place / "model/config.json").write_text(json.dumps({"model_type": "gpt_oss", "architectures": []}))
    commands = [training_command(launcher, place, MODEL=str(place / "model"))[3:] for launcher in LAUNCHERS]
    tiny = LAUNCHERS.index(ROOT / "launch/train_grpo_tiny.sh")
    commands[tiny] += ["--pretrain", str(place / "model")]
    (place / "commands.json").write_text(json.dumps(commands))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "VLLM_"))}
    done = subprocess.run(
        [sys.executable, "-c", PARSE, place / "commands.json"],
        env=environment | {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("parsed "))
    return dict(zip(names(LAUNCHERS), json.loads(line.removeprefix("parsed ")), strict=True))


@pytest.mark.stack
@pytest.mark.parametrize("name", names(LAUNCHERS))
def test_the_patched_parser_takes_every_option(parsed, name):
    args = parsed[name]
    assert args["advantage_estimator"] == "group_norm"
    assert args["attn_implementation"] == "eager" and not args["packing_samples"]
    assert args["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert args["entropy_loss_coef"] == 0
    assert args["disable_ds_ckpt"]
    assert args["remote_rm_url"] == [str(ROOT / "rewards/reward_func_em.py")]
    assert (args["eval_temperature"], args["eval_n_samples_per_prompt"]) == (0, 1)


@pytest.mark.stack
@pytest.mark.parametrize("name", names(LAUNCHERS))
def test_the_batches_divide(parsed, name):
    args = parsed[name]
    samples, ranks = args["rollout_batch_size"] * args["n_samples_per_prompt"], args["actor_num_gpus_per_node"]
    assert samples % args["train_batch_size"] == 0
    assert args["train_batch_size"] % (args["micro_train_batch_size"] * ranks) == 0
    assert samples % (args["micro_rollout_batch_size"] * ranks) == 0


@pytest.mark.stack
@pytest.mark.parametrize("launcher", EXPERIMENTS, ids=names(EXPERIMENTS))
def test_experiments_have_the_reference_settings(parsed, launcher):
    args = parsed[launcher.stem]
    large = "120b" in launcher.stem
    sizes = ("lora_rank", "lora_alpha", "rollout_batch_size", "train_batch_size", "generate_max_len")
    assert [args[name] for name in sizes] == ([64, 128, 8, 8, 3072] if large else [32, 64, 16, 16, 4096])
    rates = ("actor_learning_rate", "init_kl_coef", "lr_warmup_ratio")
    assert [args[name] for name in rates] == ([1e-6, 0, 0.03] if large else [5e-7, 0.001, 0.05])
    places = ("actor_num_gpus_per_node", "vllm_num_engines", "vllm_tensor_parallel_size", "zero_stage", "max_ckpt_num")
    assert [args[name] for name in places] == [4, 2, 2, 3, 3]
    assert [args["offload"], args["adam_offload"]] == [large, large]
    assert args["gradient_checkpointing"] and args["gradient_checkpointing_use_reentrant"]
    assert args["n_samples_per_prompt"] == 8 and args["prompt_max_len"] == 1024 and args["save_hf_ckpt"]
    clip = {"train_grpo_20b": 0.2, "train_grpo_20b_a28a": 0.2}.get(launcher.stem, 0.1)
    assert args["eps_clip_low_high"] == [clip, clip]


@pytest.mark.stack
@pytest.mark.parametrize("launcher", EXPERIMENTS, ids=names(EXPERIMENTS))
def test_the_learning_rate_is_there_at_the_twentieth_update(parsed, launcher):
    """Linear warm-up over ceil(total x ratio) of pool x samples // batch x episodes updates, reference section 7."""
    args = parsed[launcher.stem]
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
    overrides = ("--generate_max_len", "8192", "--vllm_tensor_parallel_size=4", "--pretrain", "/other")
    commands = dry_run(BIG, tmp_path, *overrides)
    before, after = (words for name, words in commands if name == "eval_posthoc.py")
    assert option(before, "--model") == "before=/other"
    for words in (before, after):
        assert option(words, "--max-tokens") == "8192" and option(words, "--tensor-parallel-size") == "4"


def test_roots_of_the_environment_are_honoured(tmp_path):
    roots = {"DATA_ROOT": "/data", "MODEL_ROOT": "/models", "OUTPUT_ROOT": "/out", "CKPT_ROOT": "/ckpt", "SEED": "7"}
    words = training_command(BIG, tmp_path, **roots)
    assert option(words, "--prompt_data") == "/data/sft_rl_pool.jsonl"
    assert option(words, "--eval_dataset") == "/data/probe_set_200_ood.jsonl"
    assert option(words, "--pretrain") == "/models/gpt-oss-20b"
    assert option(words, "--save_path") == "/out/train_grpo_20b/run/adapter"
    assert option(words, "--ckpt_path") == "/ckpt/train_grpo_20b/run/checkpoints"
    assert option(words, "--seed") == "7"
    assert "--disable_ds_ckpt" in words
    assert "--disable_ds_ckpt" not in training_command(BIG, tmp_path, RESUMABLE="1")


def body(tmp_path, text):
    script = tmp_path / "exp.sh"
    script.write_text(f'source "{ROOT}/launch/common.sh"\n{text}\n')
    return script


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
    assert not (run / "checkpoints").is_symlink()
    (tmp_path / "second").mkdir()
    done = launch(script, tmp_path, **places, RUN_DIR=str(tmp_path / "second/run"))
    assert done.returncode == 1 and "another run has written there" in done.stderr
    assert list((tmp_path / "second").iterdir()) == []


def missing(done, *wanted):
    assert done.returncode == 1 and done.stdout == "", done.stdout
    assert all(text in done.stderr for text in wanted), done.stderr


def test_what_is_missing_is_said_before_anything_is_made(tmp_path):
    missing(launch(BIG, tmp_path), "too few GPUs", "0 here (RFT_STACK=cpu)", "wanted: 8", "train_grpo_tiny.sh")
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: a device"; done\n')
    smi.chmod(0o755)
    four = {"PATH": f"{smi.parent}:{os.environ['PATH']}", "RFT_STACK": "gpu"}
    missing(launch(BIG, tmp_path, **four), "4 here", "wanted: 8")
    fewer = ("--actor_num_gpus_per_node", "2", "--vllm_num_engines", "1")
    missing(
        launch(BIG, tmp_path, *fewer, **four), "no model", "cache/models/gpt-oss-20b", "hf download openai/gpt-oss-20b"
    )
    elsewhere = {"RAY_ADDRESS": "auto", "DATA_ROOT": str(tmp_path), "MODEL": str(tmp_path)}
    (tmp_path / "config.json").write_text("{}")
    for file, maker in (
        ("sft_rl_pool.jsonl", "prepare_sft_data.py"),
        ("probe_set_200_ood.jsonl", "make_probe_sets.py"),
        ("probe_set_1000_ood.jsonl", "make_probe_sets.py"),
    ):
        missing(launch(BIG, tmp_path, **elsewhere), f"{tmp_path}/{file}", f"data/{maker}")
        (tmp_path / file).write_text("")
    assert not (tmp_path / "run").exists() and not (tmp_path / "cache").exists()


# Stands for every command of the pipeline: this is about the shell, not about what it runs.
STUB = """#!/bin/bash
echo "$2 $3" >>"$CALLS"
case $2 in openrlhf*) exit "$TRAINING" ;; rft.runs.preflight) exit "$PREFLIGHT_STATUS" ;; esac
case "$*" in *after=*) exit "$AFTER" ;; esac
"""
PIPELINE = """
PYTHON=$STUB
MODEL_ARGS=(--pretrain m --prompt_max_len 1 --generate_max_len 1 --vllm_tensor_parallel_size 1)
GRPO_ARGS=(--prompt_data p --eval_dataset e --save_path s)
begin_run; train_and_measure "$@"; echo done
"""


@pytest.fixture
def pipeline(tmp_path):
    """Runs the pipeline over stubs; returns the status, what was called in order, and what was printed."""

    def start(training=0, preflight=0, after=0, **environment):
        (tmp_path / "stub").write_text(STUB)
        (tmp_path / "stub").chmod(0o755)
        calls = {"STUB": str(tmp_path / "stub"), "CALLS": str(tmp_path / "calls"), "RAY_ADDRESS": "auto"}
        statuses = {"TRAINING": str(training), "PREFLIGHT_STATUS": str(preflight), "AFTER": str(after)}
        done = launch(body(tmp_path, PIPELINE), tmp_path, **calls, **statuses, **environment)
        called = [line.split()[0].removeprefix("rft.runs.") for line in (tmp_path / "calls").read_text().splitlines()]
        return done.returncode, called, done.stdout + done.stderr

    return start


BEFORE = ["inputs", "preflight", "manifest", "--model", "openrlhf.cli.train_ppo_ray"]
AFTER = ["--model", "summary", "report"]


def test_a_run_is_checked_measured_and_reported(pipeline, tmp_path):
    code, called, printed = pipeline()
    assert (code, called) == (0, BEFORE + AFTER), printed
    assert printed.endswith("done\n")
    phases = [json.loads(line)["phase"] for line in (tmp_path / "run/phases.jsonl").read_text().splitlines()]
    assert phases == ["preflight", "baseline evaluation", "grpo", "evaluation", "report"]


def test_a_run_that_a_rule_stopped_is_measured_and_keeps_its_status(pipeline):
    code, called, printed = pipeline(training=10)
    assert (code, called) == (10, BEFORE + AFTER), printed
    assert "stopped by a rule" in printed and "done" not in printed


def test_a_stopped_run_that_cannot_be_measured_is_reported_and_keeps_its_status(pipeline):
    code, called, printed = pipeline(training=10, after=2)
    assert (code, called) == (10, BEFORE + AFTER), printed


@pytest.mark.parametrize("status", [1, 3, 137])
def test_a_run_that_failed_ends_there(pipeline, status):
    code, called, printed = pipeline(training=status)
    assert (code, called) == (status, BEFORE), printed


def test_no_go_starts_nothing(pipeline, tmp_path):
    code, called, printed = pipeline(preflight=1)
    assert (code, called) == (1, ["inputs", "preflight"]), printed
    assert not (tmp_path / "run/run.json").exists()


def test_preflight_can_be_skipped_and_says_so(pipeline):
    code, called, printed = pipeline(preflight=1, PREFLIGHT="0")
    assert code == 0 and "preflight" not in called
    assert "warning: PREFLIGHT=0" in printed


def test_a_metrics_file_of_another_run_is_not_continued(pipeline, tmp_path):
    (tmp_path / "training_metrics.jsonl").write_text("{}\n")
    code, called, printed = pipeline(METRICS_LOG_DIR=str(tmp_path))
    assert (code, called) == (1, ["inputs"])
    assert "another run has logged there" in printed
