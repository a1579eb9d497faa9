"""Preflight: patches, versions, ports, Ray, the accounts and git."""

import importlib.metadata
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from preflight_options import options, refused, verdicts
from sleeping import sleeping

from rft.runs.preflight import machine, software
from rft.runs.preflight.lines import GO, NO_GO, WARN


def test_patches_and_nodes(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RFT_RAY_LOGS", raising=False)
    found = software.check_nodes()
    assert found[0].measured == "this machine only"
    with socket.socket() as sock:  # bound and not listening: refused at once
        sock.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{sock.getsockname()[1]}")
        refused(software.check_nodes(), "no Ray cluster answers", "ray start --head")
        refused(machine.check_ray(Path("run")), "nothing answers", "unset RAY_ADDRESS")
        monkeypatch.setenv("RFT_RAY_LOGS", "x")
        assert software.check_nodes()[0].measured == "this machine only"


@pytest.mark.parametrize(
    "address",
    ["garbage", "127.0.0.1", "127.0.0.1:", ":6379", "127.0.0.1:0", "127.0.0.1:99999", "a b:6379", "http://h:1",
     "h:6379/x", "\N{SNOWMAN}", "[::1", "127.0.0.1:6379:6379", "local", "127.0.0.1:12345678901234567890"],
)  # fmt: skip
def test_an_address_that_is_none_is_one_line(monkeypatch, address):
    monkeypatch.delenv("RFT_RAY_LOGS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    for found in (software.check_nodes(), machine.check_ray(Path("run"))):
        refused(found, "wanted host:port of a running Ray head", "unset RAY_ADDRESS")


def test_addresses_of_ray_are_read():
    assert machine.place_of("auto") is None
    assert machine.place_of("ray://node-1.x:10001") == ("node-1.x", 10001)
    assert machine.place_of("[::1]:6379") == ("::1", 6379)


def test_an_unpatched_tree_is_refused(tmp_path, monkeypatch):
    """In an environment without the packages, the check is what it would be after a reinstallation."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    found = software.check_patches()
    assert found[0].verdict == NO_GO and found[0].measured


def test_versions(tmp_path):
    assert software.check_versions()[0].verdict in (GO, WARN)
    lock = tmp_path / "cpu.txt"
    version = importlib.metadata.version("transformers")
    lock.write_text(f"transformers=={version} \\\n    --hash=sha256:00\nray==0.1\nnot-there==1.0\n")
    found = software.check_versions(lock)
    refused(found, f"ray {importlib.metadata.version('ray')} (wanted 0.1)", "uv pip install")
    refused(found, "not-there missing (wanted 1.0)", "-r requirements/cpu.txt", WARN)
    lock.write_text(f"transformers=={version}\n")
    assert software.check_versions(lock)[0].measured == "1 packages as in requirements/cpu.txt"
    found = software.installed_versions()
    for name in ("torch", "openrlhf", "transformers", "deepspeed", "ray", "peft", "typing-extensions"):
        assert found[name] == importlib.metadata.version(name)
    assert software.same_version("2.10.0+cu128", "2.10.0") and not software.same_version("2.10.1", "2.10.0")


def test_versions_on_aarch64_are_those_of_its_own_lock(monkeypatch):
    """Whose repair is set-up: the lock alone would bring the torch without CUDA."""
    monkeypatch.setenv("RFT_STACK", "gpu")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
    found = software.check_versions()  # the stack here is the CPU's, so some are missing or differ
    shown = " ".join(f"{line.measured} {line.repair}" for line in found)
    assert "torch 2.10.0 (wanted 2.9.1)" in shown and "nvidia-cublas" not in shown and "gpu.txt" not in shown
    refused(found, "torch 2.10.0 (wanted 2.9.1)", "RFT_STACK=gpu TORCH_INDEX=ADDRESS make setup")


def test_ports(monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert verdicts(machine.check_ports()) == {GO}
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        monkeypatch.setenv("MASTER_PORT", str(sock.getsockname()[1]))
        refused(machine.check_ports(), "is taken", "unset MASTER_PORT")
    monkeypatch.setattr(machine, "PORTS_WANTED", 70_000)
    refused(machine.check_ports(), "about 70000 wanted", "sysctl")


def test_another_ray_cluster_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RFT_RAY_LOGS", raising=False)
    before = machine.ray_heads()
    with (
        sleeping({"OTHER": "1"}, "/opt/ray/gcs/gcs_server") as other,
        sleeping({"RFT_RUN_DIR": str(tmp_path)}, "/opt/ray/gcs/gcs_server") as ours,
    ):
        found = machine.check_ray(tmp_path)
    pids = found[0].measured.partition("process ")[2].partition(")")[0].split(", ")
    assert found[0].verdict == WARN and str(other) in pids and str(ours) not in pids
    assert f"ps -p {sorted([*before, other])[0]}" in found[0].repair or before


def test_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert verdicts(machine.check_offline()) == {GO}
    monkeypatch.delenv("TRANSFORMERS_OFFLINE")
    refused(machine.check_offline(), "TRANSFORMERS_OFFLINE off", "export TRANSFORMERS_OFFLINE=1", WARN)


def test_wandb(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine.check_wandb(options())[0].measured == "not used"
    args = options("--use_wandb true")
    if importlib.util.find_spec("wandb") is None:
        refused(machine.check_wandb(args), "not installed", "uv pip install wandb")
        (tmp_path / "wandb.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
    refused(machine.check_wandb(args), "online, without a key", "WANDB_MODE=offline")
    secret = "0123456789" * 4
    found = machine.check_wandb(options(f"--use_wandb {secret}"))
    refused(found, "the key is in the command line", "WANDB_API_KEY", WARN)
    assert secret not in str(found)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert verdicts(machine.check_wandb(args)) == {GO}
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / ".netrc").write_text("broken\n")
    assert verdicts(machine.check_wandb(args)) == {NO_GO}
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {secret}\n")
    found = machine.check_wandb(args)
    assert verdicts(found) == {GO} and secret not in str(found)


def test_git(tmp_path):
    refused(machine.check_git(tmp_path), "no checkout", "git clone", WARN)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]

    def run(*words: str) -> None:
        subprocess.run(["git", *identity, *words], cwd=tmp_path, env=environment, check=True, capture_output=True)

    run("init")
    (tmp_path / "file").write_text("a")
    run("add", ".")
    run("commit", "-m", "first")
    refused(machine.check_git(tmp_path), "has no tag", "git tag attempt-XX-start", WARN)
    run("tag", "attempt-01-start")
    found = machine.check_git(tmp_path)
    assert verdicts(found) == {GO} and found[0].measured.endswith(", attempt-01-start")
    (tmp_path / "file").write_text("b")
    refused(machine.check_git(tmp_path), "1 uncommitted changes", "git commit", WARN)
