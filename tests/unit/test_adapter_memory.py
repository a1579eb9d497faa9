"""An adapter's bytes between processes."""

import subprocess
import sys

import numpy as np
import pytest

from rft.hooks.adapter_memory import AdapterMemory, read

READER = (
    "import json, sys; from rft.hooks.adapter_memory import read; sys.stdout.buffer.write(read(json.load(sys.stdin)))"
)


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_another_process_reads_what_was_written(size):
    import json

    payload = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    memory = AdapterMemory()
    place = json.dumps(memory.write(payload)).encode()
    done = subprocess.run([sys.executable, "-c", READER], input=place, capture_output=True, check=True)
    assert done.stdout == payload.tobytes()


def test_each_write_replaces_the_last():
    memory = AdapterMemory()
    for size in (100, 7, 4000):
        place = memory.write(np.full(size, size % 251, np.uint8))
        assert bytes(read(place)) == bytes([size % 251]) * size


def test_memory_of_another_machine_is_not_taken_for_ours():
    memory = AdapterMemory()
    place = memory.write(np.arange(9, dtype=np.uint8))
    assert read({**place, "token": "00" * 16}) is None  # the same path and number there, another content
    assert read({**place, "path": "/proc/999999999/fd/3"}) is None
    assert read({**place, "size": 10**9}) is None
