"""Preflight: disks, GPU memory and host memory against what a run will take."""

import math
import os
from pathlib import Path

import pytest
from preflight_options import CONFIG_20B, CONFIG_120B, EIGHT_GPUS, options, refused, verdicts

from rft.runs.preflight import actor, cli, disk, engine, memory, model
from rft.runs.preflight.data import Prompts
from rft.runs.preflight.gpus import read_gpus
from rft.runs.preflight.lines import GO, WARN, gigabytes

COLOCATED = "--init_kl_coef 0.1 --separate_reference_model --colocate_actor_ref --ref_num_gpus_per_node 4"


def test_disk(tmp_path, checkpoint):
    place = f"--pretrain {checkpoint} --save_path {tmp_path}/new/adapter --ckpt_path {tmp_path}/ckpt"
    found = disk.check_disk(options(f"{place} --save_steps 5"), CONFIG_20B, tmp_path / "run", 768, 0)
    assert verdicts(found) <= {GO, WARN} and len(found) == 1 and not (tmp_path / "new").exists()
    huge = options(f"{place} --actor eager --lora_rank 0 --save_steps 1 --max_ckpt_num 100")
    refused(disk.check_disk(huge, CONFIG_120B, tmp_path / "run", 768, 0), "checkpoints ", "--max_ckpt_num 1")


def test_samples_that_fit_only_when_short_are_a_warning(tmp_path, checkpoint):
    place = f"--pretrain {checkpoint} --save_path {tmp_path}/a --ckpt_path {tmp_path}/c --disable_ds_ckpt"
    args = options(f"{place} --generate_max_len 100000000 --samples_keep_gb 1e9")
    refused(disk.check_disk(args, CONFIG_20B, tmp_path, 768, 0), "only for shorter", "--samples_keep_gb 1,", WARN)
    args.samples_keep_gb = 1e-3
    assert verdicts(disk.check_disk(args, CONFIG_20B, tmp_path, 768, 0)) <= {GO, WARN}


def test_a_small_disk_is_refused_by_its_name(tmp_path, checkpoint, monkeypatch):
    """/dev/shm is a file system of its own on every Linux: what it lacks is not counted against the others."""
    shm, free = Path("/dev/shm"), os.statvfs("/dev/shm")
    if shm.stat().st_dev == tmp_path.stat().st_dev or not os.access(shm, os.W_OK):
        pytest.skip("no file system of its own")
    steps = free.f_bavail * free.f_frsize // disk.BYTES_A_STEP  # half of what would fill it twice
    monkeypatch.setenv("METRICS_LOG_DIR", str(shm))
    args = options(f"--pretrain {checkpoint} --save_path {tmp_path} --ckpt_path {tmp_path} --num_episodes {steps}")
    refused(disk.check_disk(args, CONFIG_20B, tmp_path, 64, 0), "to write at /dev/shm (metrics", "--max_ckpt_num")


def test_what_is_planned(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setenv("SAMPLES_LOG_DIR", str(tmp_path / "samples"))
    monkeypatch.delenv("METRICS_LOG_DIR", raising=False)
    args = options(f"--pretrain {checkpoint} --lora_rank 32 --save_steps 6 --max_ckpt_num 2 --save_hf_ckpt")
    sizes = {name: size for name, _, size in disk.planned(args, CONFIG_20B, tmp_path, 768, 0)}
    adapter = 2 * model.lora_parameters(args, CONFIG_20B)
    tokenizer = (checkpoint / "tokenizer.json").stat().st_size
    assert sizes["final weights"] == adapter + tokenizer
    # 24 steps make four checkpoints; two are kept and a third stands beside them while it is written
    assert sizes["checkpoints"] == 3 * (7 * adapter) + 3 * (adapter + tokenizer)
    assert sizes["samples"] == 24 * 256 * (160 * disk.BYTES_A_TOKEN + disk.BYTES_A_SAMPLE) * disk.PACKED
    args.eval_dataset, args.eval_steps = "E.jsonl", 6  # a new best stands beside the former one while it is written
    kept = {name: size for name, _, size in disk.planned(args, CONFIG_20B, tmp_path, 768, 0)}["checkpoints"]
    assert kept == sizes["checkpoints"] + 2 * (adapter + tokenizer)
    for more, wanted in (("--samples_every 5", 5 / 24), ("--samples_every 0", 0)):
        args = options(f"--pretrain {checkpoint} {more}")
        without = {name: size for name, _, size in disk.planned(args, CONFIG_20B, tmp_path, 768, 0)}
        assert without["checkpoints"] == 0 and without["samples"] == pytest.approx(wanted * sizes["samples"])
    args.samples_every, args.samples_keep_gb = 1, 1e-3
    bounded = {name: size for name, _, size in disk.planned(args, CONFIG_20B, tmp_path, 768, 0)}
    assert bounded["samples"] == 1e6


def test_places_that_cannot_be_written_to(tmp_path, checkpoint):
    place = next((p for p in ("/proc/sys", "/sys", "/") if not os.access(p, os.W_OK)), None)
    if place is None:
        pytest.skip("everything can be written to")
    args = options(f"--pretrain {checkpoint} --save_path {place}/new")
    refused(disk.check_disk(args, CONFIG_20B, tmp_path, 64, 0), f"{place} cannot be written to", f"chmod u+w {place}")


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put an nvidia-smi on PATH that prints these lines."""

    def install(*rows: str, status: int = 0):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows) + f"exit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    monkeypatch.delenv("RFT_STACK", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_gpus_are_read_from_nvidia_smi(nvidia_smi, monkeypatch):
    nvidia_smi("0, 80000, 81559, NVIDIA H100", "1, 500, 81559, NVIDIA H100")
    assert [gpu["free"] for gpu in read_gpus()] == [80000 * 2**20, 500 * 2**20]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert len(read_gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5d3f0c1a")
    assert len(read_gpus()) == 2
    nvidia_smi("No devices were found", status=6)
    assert read_gpus() is None
    monkeypatch.setenv("RFT_STACK", "cpu")
    nvidia_smi("0, 80000, 81559, NVIDIA H100")
    assert read_gpus() is None


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_none_to_place_anything_on(nvidia_smi, monkeypatch, tmp_path, checkpoint, hidden):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    nvidia_smi("0, 80000, 81559, NVIDIA H100", "1, 80000, 81559, NVIDIA H100")
    args = options(f"--pretrain {checkpoint} --save_path {tmp_path}/a --ckpt_path {tmp_path}/c")

    def devices() -> list:
        found = cli.check_resources(args, CONFIG_20B, tmp_path, Prompts([], 64, 0, []))
        return [line for line in found if line.name == "devices"]

    assert verdicts(devices()) == {GO}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert read_gpus() == []
    refused(devices(), "2 GPUs wanted, 0 here", "--colocate_all_models")


def gpus(free_gb: float, total_gb: float = 85.5) -> list[dict]:
    return [{"free": free_gb * 1e9, "total": total_gb * 1e9, "name": "GPU"}] * 8


def weights_of(path: Path, size: float) -> Path:
    """A directory with a sparse file of so many bytes as its weights."""
    path.mkdir()
    with (path / "model.safetensors").open("wb") as stream:
        stream.truncate(int(size))
    return path


def test_gpu_memory_of_the_real_sizes(tmp_path):
    small = f"{EIGHT_GPUS} --pretrain {weights_of(tmp_path / 'small', 13.8e9)}"
    large = f"{EIGHT_GPUS} --pretrain {weights_of(tmp_path / 'large', 65e9)}"
    assert memory.check_gpu_memory(options(small), CONFIG_20B, None)[0].measured == "skipped: no GPU"
    assert verdicts(memory.check_gpu_memory(options(small), CONFIG_20B, gpus(85))) == {GO}
    refused(memory.check_gpu_memory(options(small), CONFIG_20B, gpus(30)), "engine", "stop what uses the GPU")
    refused(memory.check_gpu_memory(options(large), CONFIG_120B, gpus(85)), "actor: about", "--offload")
    offloaded = options(f"{large} --offload")
    assert verdicts(memory.check_gpu_memory(offloaded, CONFIG_120B, gpus(85))) == {GO}
    narrow = options(f"{large} --offload --vllm_gpu_memory_utilization 0.4")
    refused(memory.check_gpu_memory(narrow, CONFIG_120B, gpus(85)), "no room for a KV cache", "tensor_parallel_size")
    shared = options(f"{small} --colocate_all_models --actor_num_gpus_per_node 4")
    refused(memory.check_gpu_memory(shared, CONFIG_20B, gpus(85)), "actor + engine", "_gpu_memory_utilization 0.2")
    refused(memory.check_gpu_memory(shared, CONFIG_20B, gpus(60)), "actor + engine", "--micro_train_batch_size 1")
    reference = options(f"{small} --init_kl_coef 0.1 --separate_reference_model --ref_num_gpus_per_node 1")
    refused(
        memory.check_gpu_memory(reference, CONFIG_20B, gpus(45)), "reference: about 49.6 GB", "--ref_reward_offload"
    )


TOKENS = "--loss_normalization batch --micro_train_tokens 8192"


def test_a_larger_micro_batch_is_named_where_it_fits(tmp_path):
    args = options(f"{EIGHT_GPUS} --pretrain {weights_of(tmp_path / 'model', 13.8e9)}")  # 16 samples an update, 4 ranks
    found = {free: memory.check_gpu_memory(args, CONFIG_20B, gpus(free, 150))[0] for free in (85, 149, 400)}
    assert found[85].measured == "actor: about 49.0 GB, 85.0 GB free"
    assert "; --micro_train_batch_size 2 would fit too (79." in found[149].measured
    assert "; --micro_train_batch_size 4 would fit too" in found[400].measured
    assert {line.verdict for line in found.values()} == {GO}
    assert "another loss unless --loss_normalization batch" in found[400].measured
    for more, named in (("--loss_normalization batch", True), (TOKENS, False), (COLOCATED, False)):
        line = memory.check_gpu_memory(
            options(f"{EIGHT_GPUS} --pretrain {tmp_path / 'model'} {more}"), CONFIG_20B, gpus(400)
        )[0]
        assert ("would fit too" in line.measured) == named and "another loss" not in line.measured


def test_actor_estimate_is_the_measured_peak():
    """docs/benchmarks.md, whole loop on one H200: 54.4 and 62.6 GiB with micro-batches of 2 and 4 x 1,088 tokens."""
    shape = "--lora_rank 32 --prompt_max_len 64 --generate_max_len 1024 --micro_rollout_batch_size 2"
    for micro, measured in ((2, 54.4), (4, 62.6)):
        estimate = actor.actor_bytes(options(f"{shape} --micro_train_batch_size {micro}"), CONFIG_20B) / 2**30
        assert math.isclose(estimate, measured, rel_tol=0.05)


def test_host_memory(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR")
    args = options(EIGHT_GPUS)
    refused(memory.check_host_memory(args, CONFIG_20B, 46 * 10**9), "about 46.5 GB", "more memory")
    assert verdicts(memory.check_host_memory(args, CONFIG_20B, 500 * 10**9)) == {GO}
    assert verdicts(memory.check_host_memory(options(), {**CONFIG_20B, "num_hidden_layers": 0})) == {GO}


def test_one_model_of_host_memory_is_wanted_a_node(monkeypatch):
    """Rank 0's, and for every rank the tensor that it is at work on: the 1.16 GB of an embedding at 20b."""
    monkeypatch.delenv("DS_ACCELERATOR")
    one, four, eight = (
        memory.host_bytes(options(f"{EIGHT_GPUS} --actor_num_gpus_per_node {ranks}"), CONFIG_20B) for ranks in (1, 4, 8)
    )
    largest = 2 * 201088 * 2880
    assert one == 2 * model.parameters(CONFIG_20B) + largest
    assert (four - one, eight - one) == (3 * largest, 7 * largest)
    with_reference = options(f"{EIGHT_GPUS} --init_kl_coef 0.1 --separate_reference_model")
    assert memory.host_bytes(with_reference, CONFIG_20B) == 2 * four


def test_offloaded_parameters_are_pinned_in_powers_of_two(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR")
    assert memory.pinned_bytes(CONFIG_20B | {"num_hidden_layers": 0, "vocab_size": 1, "hidden_size": 3}, 2) == 2 * 3 * 4
    two_nodes = options(f"{EIGHT_GPUS} --offload --actor_num_nodes 2 --lora_rank 64")
    assert memory.host_bytes(two_nodes, CONFIG_120B) > memory.pinned_bytes(CONFIG_120B, 8) / 2
    offloaded = memory.host_bytes(options(f"{EIGHT_GPUS} --offload"), CONFIG_120B)
    assert 234e9 < memory.pinned_bytes(CONFIG_120B, 4) < 240e9 < offloaded < 251e9


def test_the_engine_s_copies_of_adapted_weights_count(tmp_path):
    """1.27 GB at 20b: [5120, 2880] and [2880, 4096] in each of 24 layers."""
    whole = 2 * 24 * (5120 * 2880 + 2880 * 4096)
    exact = f"{EIGHT_GPUS} --pretrain {weights_of(tmp_path / 'model', 13.8e9)} --vllm_gpu_memory_utilization 0.99"
    merged = f"{exact} --lora_serving merged"
    for more, wanted in (
        ("", whole / 2),
        ("--vllm_tensor_parallel_size 1", whole),
        ("--target_modules all-linear", whole / 2),
        ("--target_modules o_proj", 24 * 2880 * 4096),
        ("--target_modules k_proj", 24 * 5120 * 2880),
        ("--lora_rank 0", 0),
    ):
        assert engine.pristine_bytes(options(f"{merged} {more}"), CONFIG_20B) == wanted
    args = options(exact)
    assert engine.pristine_bytes(args, CONFIG_20B) == 0
    # vLLM would start in 84.6 GB of 85, and the first sync would find no room for 0.6 GB more.
    refused(
        memory.check_gpu_memory(options(merged), CONFIG_20B, gpus(85)), "637.0 MB of adapted weights", "lower --vllm"
    )
    assert memory.check_gpu_memory(args, CONFIG_20B, gpus(85))[-1].verdict == GO


def machine(root: Path, files: dict[str, str]) -> Path:
    """/proc and /sys of a machine with 8 GB available."""
    for name, text in {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n", **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


V1 = "sys/fs/cgroup/memory"
CGROUPS = {
    "none": ({}, 8_192_000_000),
    "unlimited": (
        {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/memory.max": "max\n"},
        8_192_000_000,
    ),
    "v2, of the group above": (
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.max": "3000000000\n",
            "sys/fs/cgroup/job/memory.current": "1500000000\n",
            "sys/fs/cgroup/job/memory.stat": "anon 7\ninactive_file 500000000\nactive_file 9\n",
        },
        2_000_000_000,
    ),
    "v1, in a container that sees its own group at the top": (
        {
            "proc/self/cgroup": "5:cpu:/docker/x\n4:memory:/docker/x\n0::/\n",
            f"{V1}/memory.limit_in_bytes": "2000000000\n",
            f"{V1}/memory.usage_in_bytes": "1200000000\n",
            f"{V1}/memory.stat": "inactive_file 1\ntotal_inactive_file 200000000\n",
        },
        1_000_000_000,
    ),
    "v1 without a limit": (
        {"proc/self/cgroup": "4:memory:/\n", f"{V1}/memory.limit_in_bytes": "9223372036854771712\n"},
        8_192_000_000,
    ),
}


@pytest.mark.parametrize("name", CGROUPS)
def test_a_container_s_limit_counts(tmp_path, name):
    files, wanted = CGROUPS[name]
    assert memory.available_memory(machine(tmp_path, files)) == wanted


def test_a_meminfo_without_the_number_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no MemAvailable"):
        memory.available_memory(machine(tmp_path, {"proc/meminfo": "MemTotal: 5 kB\n"}))


def test_sizes_read_well():
    assert [gigabytes(n) for n in (12, 1500, 31.9e6, 41.83e9)] == ["12 B", "1.5 kB", "31.9 MB", "41.8 GB"]
