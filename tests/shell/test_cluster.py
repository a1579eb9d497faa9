"""Which preset of launch/clusters a launcher takes on which machine, and the engine's part of a GPU that it shares.

nvidia-smi is a program of the test's own on PATH, which prints what a machine's would.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from launching import ROOT, launch

from rft.options import command
from rft.runs.cluster import nearest
from rft.runs.preflight import memory

BIG, HUGE = (ROOT / f"launch/train_grpo_{size}.sh" for size in ("20b", "120b"))
RECIPES = ["a26", "tuned"]
PRESETS = [f.stem for f in (ROOT / "launch/clusters").glob("[0-9]*x*.env")]
CARDS = {  # MiB and name, as nvidia-smi prints them
    "h100": (81559, "NVIDIA H100 80GB HBM3"),
    "gh200": (97871, "NVIDIA GH200 480GB"),
    "h200": (143771, "NVIDIA H200"),
    "a100": (81920, "NVIDIA A100-SXM4-80GB"),
    "b200": (183359, "NVIDIA B200"),
    "l40s": (46068, "NVIDIA L40S"),
}


@pytest.fixture
def on(tmp_path):
    """A function that runs a launcher's dry run, or a launcher, on a machine with these GPUs."""

    def start(launcher, gpus: list[str], *arguments, **environment):
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        listed = "".join(f"echo 'GPU {i}: {CARDS[card][1]} (UUID: GPU-{i})'\n" for i, card in enumerate(gpus))
        rows = "".join(f"echo '{i}, {CARDS[c][0] - 500}, {CARDS[c][0]}, {CARDS[c][1]}'\n" for i, c in enumerate(gpus))
        failing = "" if gpus else "echo No devices were found; exit 6"
        program.write_text(f'#!/bin/sh\nif [ "$1" = -L ]; then\n{listed or ":"}\nelse\n{rows or ":"}\nfi\n{failing}\n')
        program.chmod(0o755)
        path = f"{program.parent}:{os.environ['PATH']}"
        environment = {"DRY_RUN": "1", "RFT_STACK": "", "CLUSTER": "", "PATH": path} | environment
        return launch(launcher, tmp_path, *arguments, **environment)

    return start


def training(done):
    """What preflight reads of the training command that a dry run has printed."""
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "openrlhf.cli.train_ppo_ray" in line)
    return command.parse(shlex.split(line))


def chosen(done) -> str:
    """The preset that the launcher says it has taken."""
    said = re.findall(r"^cluster: (\S+), ", done.stderr, re.MULTILINE)
    assert len(said) == 1 and "cluster:" not in done.stdout, done.stderr
    return said[0]


def same(args, other) -> bool:
    """Whether two commands differ in nothing but the paths of their runs."""
    return vars(args) | {"save_path": "", "ckpt_path": ""} == vars(other) | {"save_path": "", "ckpt_path": ""}


@pytest.mark.parametrize(
    "gpus, size, wanted",
    [
        (["h100"], "20b", "1xh100"),
        (["h200"], "20b", "1xh200"),
        (["h200"] * 2, "20b", "2xh200"),
        (["h200"] * 2, "120b", "2xh200"),
        (["h200"] * 4, "120b", "4xh200"),
        (["gh200"] * 4, "20b", "4xgh200"),
        (["gh200"] * 4, "120b", "4xgh200"),
        (["h100"] * 8, "20b", "8xh100"),
        (["h100"] * 8, "120b", "8xh100"),
        (["a100"] * 8, "20b", "8xh100"),  # as many, as large
        (["b200"], "20b", "1xh200"),  # the next smaller card
        (["h200"] * 3, "20b", "2xh200"),  # the next smaller number
        (["h200"] * 8, "20b", "8xh100"),  # all of them, before all of their memory
        (["h200", "h100"], "20b", "2xh100"),  # the smallest counts
        (["h100"] * 7, "20b", "4xh100"),
    ],
)
def test_a_machine_gets_its_preset(on, gpus, size, wanted):
    launcher = {"20b": BIG, "120b": HUGE}[size]
    done = on(launcher, gpus)
    assert chosen(done) == wanted
    named = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)} of "
    assert named in done.stderr and CARDS[gpus[0]][1] in done.stderr and "CLUSTER=" in done.stderr
    assert ("unused" in done.stderr) == (len(gpus) > int(wanted[0]))
    assert same(training(done), training(on(launcher, gpus, CLUSTER=wanted)))


def test_gpus_that_are_hidden_do_not_count(on):
    eight = ["h100"] * 8
    assert chosen(on(BIG, eight, CUDA_VISIBLE_DEVICES="3")) == "1xh100"
    assert chosen(on(BIG, eight, CUDA_VISIBLE_DEVICES="GPU-1,GPU-5")) == "2xh100"


def test_cluster_wins_and_is_checked(on):
    done = on(BIG, ["h100"], CLUSTER="4xh200")
    assert training(done).actors == 4 and "cluster:" not in done.stderr
    for launcher, name in ((BIG, "3xh100"), (BIG, "colocated"), (HUGE, "1xh100")):
        done = on(launcher, ["h100"] * 8, CLUSTER=name)
        assert done.returncode == 1 and not done.stdout
        assert "no preset for gpt-oss-" in done.stderr and f"CLUSTER={name}" in done.stderr, done.stderr
        assert "wanted: one of" in done.stderr and "8xh100" in done.stderr.partition("wanted: ")[2]


def test_a_machine_that_is_too_small_is_refused_with_what_would_do(on):
    for launcher, gpus in ((BIG, ["l40s"] * 8), (HUGE, ["h100"] * 4)):
        done = on(launcher, gpus)
        assert done.returncode == 1 and not done.stdout
        assert f"found:  {len(gpus)} GPUs of " in done.stderr and "wanted: one of" in done.stderr
        assert "repair: " in done.stderr and "Traceback" not in done.stderr


def test_a_dry_run_without_a_gpu_shows_the_smallest_preset_and_says_so(on):
    for launcher, smallest in ((BIG, "1xh100"), (HUGE, "2xh200")):
        done = on(launcher, [])
        assert chosen(done) == smallest and "no GPU here" in done.stderr
        assert training(done).actors == 1
    done = on(BIG, [], DRY_RUN="0")
    assert done.returncode == 1 and "too few GPUs" in done.stderr and "wanted: 1\n" in done.stderr


def test_who_asks_for_the_cpu_gets_its_preset(on):
    done = on(BIG, ["h100"], RFT_STACK="cpu")
    assert "cluster:" not in done.stderr
    args = training(done)
    assert args.enforce_eager and not args.colocate_all_models and args.actors == 1


def model(folder: Path, gigabytes: float, **more) -> Path:
    """A model as far as the arithmetic reads it: gpt-oss-20b's config.json with `more`, weights of this size."""
    folder.mkdir()
    config = {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24,
        "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | more))
    (folder / "chat_template.jinja").write_text("{{ reasoning_effort }}")
    with (folder / "model.safetensors").open("wb") as stream:
        stream.truncate(int(gigabytes * 1e9))
    return folder


def test_the_engine_s_part_of_a_shared_gpu_is_computed(on, tmp_path):
    """Weights of 13.8 GB, 3 GB beside them and the KV cache of 128 samples: an H200 needs a smaller part for them."""
    place = str(model(tmp_path / "model", gigabytes=13.8))
    shares = {}
    for card in ("h100", "h200"):
        done = on(BIG, [card], MODEL=place)
        shares[card] = training(done).vllm_gpu_memory_utilization
        assert done.stderr.count(f"--vllm_gpu_memory_utilization {shares[card]}: ") == 1, done.stderr
    cache = 128 * 12 * (5120 + 128) * 2 * 2 * 512  # every second layer has a window of 128 tokens
    for card, share in shares.items():
        assert share == int(100 * (13.8e9 + 3e9 + cache) / (CARDS[card][0] * 2**20)) / 100
    given = on(BIG, ["h100"], "--vllm_gpu_memory_utilization", "0.5", MODEL=place)
    assert training(given).vllm_gpu_memory_utilization == 0.5 and "memory_utilization" not in given.stderr


def test_a_utilisation_that_cannot_be_computed_is_asked_for(on, tmp_path):
    place = {"MODEL": str(model(tmp_path / "model", gigabytes=13.8)), "DATA_ROOT": str(tmp_path)}
    for name in ("sft_rl_pool.jsonl", "probe_set_200_ood.jsonl", "probe_set_1000_ood.jsonl"):
        (tmp_path / name).write_text("")
    elsewhere = {"DRY_RUN": "0", "RFT_STACK": "gpu", "RAY_ADDRESS": "auto", "CLUSTER": "8xh100"}
    done = on(BIG, [], **elsewhere, **place)
    assert done.returncode == 1 and "wanted: --vllm_gpu_memory_utilization\n" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_fit_beside_its_engine_is_refused(on, tmp_path):
    done = on(BIG, ["h100"], MODEL=str(model(tmp_path / "model", gigabytes=80)))
    assert done.returncode == 1 and not done.stdout
    assert "error: actor and engine do not fit on one GPU\n  found:  " in done.stderr and "repair: " in done.stderr


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("launcher", [BIG, HUGE], ids=["20b", "120b"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_preset_asks_for_its_machine_and_its_batches_divide(on, recipe, launcher, name):
    done = on(launcher, [], CLUSTER=name, RECIPE=recipe)
    if launcher == HUGE and name in ("1xh100", "2xh100", "4xh100", "1xh200"):
        assert done.returncode == 1 and "no preset for gpt-oss-120b" in done.stderr
        return
    args = training(done)
    assert command.gpus_wanted(args) == int(name[0])
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    assert samples % args.train_batch_size == 0
    assert args.train_batch_size % (args.micro_train_batch_size * args.actors) == 0
    assert samples % (args.micro_rollout_batch_size * args.actors) == 0


@pytest.mark.parametrize(
    "name, size", [(n, "20b") for n in PRESETS] + [(n, "120b") for n in ("2xh200", "4xh200", "4xgh200", "8xh100")]
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_preset_fits_its_machine_by_preflight_s_arithmetic(on, tmp_path, recipe, name, size):
    """Below nine tenths of the memory; a26 with the experts' first products kept for the backward pass.

    The samples of a tuned rollout can fill any KV cache, so its engines leave no more than the actor needs.
    """
    launcher, gigabytes, more = {
        "20b": (BIG, 13.8, {}),
        "120b": (HUGE, 65.3, {"num_local_experts": 128, "num_hidden_layers": 36}),
    }[size]
    place = model(tmp_path / "model", gigabytes, **more)
    count, card = int(name[0]), name[2:]
    args = training(on(launcher, [card] * count, MODEL=str(place), RECIPE=recipe))
    total = CARDS[card][0] * 2**20
    if size == "120b" and card != "h200":
        assert args.shard_experts == args.actors == {"8xh100": 4, "4xgh200": 2}[name]
    gpus = [{"total": total, "free": total - 500 * 2**20, "name": card}] * count
    lines = memory.check_gpu_memory(args, json.loads((place / "config.json").read_text()), gpus)
    assert [line.verdict for line in lines] == ["go"] * 2, lines
    assert recipe == "tuned" or lines[0].measured.endswith("first products: kept"), lines


def test_the_nearest_preset_has_most_of_the_gpus():
    assert nearest(8, 140.4, ["1xh200", "4xh200", "8xh100"]) == "8xh100"
    assert nearest(4, 140.4, ["1xh200", "4xh100", "4xh200"]) == "4xh200"
    assert nearest(1, 44.9, ["1xh100"]) is None
