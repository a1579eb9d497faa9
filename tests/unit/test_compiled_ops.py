"""A run that was killed while it compiled does not stop the next one."""

import signal
import subprocess
import sys

import pytest
from deepspeed.ops.op_builder import FusedAdamBuilder
from torch.utils.file_baton import FileBaton

from rft.hooks import optimizer
from rft.hooks.compiled_ops import drop_abandoned_lock

HOLD = "import sys, time; from torch.utils.file_baton import FileBaton\n\
b = FileBaton(sys.argv[1]); print(b.try_acquire(), flush=True); time.sleep(600)"


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "fused_adam").mkdir()
    return tmp_path / "fused_adam/lock"


@pytest.fixture
def holder(lock):
    """A process that has taken the lock as torch takes it."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_lock_of_a_live_process_stays(lock, holder):
    assert not drop_abandoned_lock("fused_adam")
    assert not FileBaton(str(lock)).try_acquire()


def test_lock_of_a_killed_process_goes(lock, holder, capsys):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert drop_abandoned_lock("fused_adam")
    assert str(lock) in capsys.readouterr().out
    assert FileBaton(str(lock)).try_acquire()


def test_no_lock_is_nothing_to_do(lock, capsys):
    assert not drop_abandoned_lock("fused_adam")
    assert capsys.readouterr().out == ""


def test_compiling_adam_does_not_wait_for_the_dead(lock, holder, monkeypatch):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    monkeypatch.setattr(FusedAdamBuilder, "load", lambda _builder: None if not lock.exists() else pytest.fail("waits"))
    assert optimizer.why_not_built(FusedAdamBuilder()) is None
