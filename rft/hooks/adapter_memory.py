"""An adapter's bytes for the worker processes of an engine on the same machine, without pickling them.

vLLM pickles the arguments of a call to its workers and sends them through a socket: 41 ms for 32 MB, 214 ms for 96 MB.
Memory without a file is shared instead; the kernel frees it when the last process that holds it ends, however it ends.
"""

import mmap
import os
import secrets

import numpy as np

TOKEN_BYTES = 16


class AdapterMemory:
    """Memory of an engine's own process that its workers map by `read`; it grows with what is written."""

    def __init__(self) -> None:
        self.file = os.memfd_create("rft-adapter")
        self.mapped = b""

    def write(self, payload: np.ndarray) -> dict:
        """Put uint8 values (bytes,) there; the plain values that tell `read` where they lie."""
        token, size = secrets.token_bytes(TOKEN_BYTES), TOKEN_BYTES + payload.nbytes
        if size > len(self.mapped):  # kept from sync to sync: pages that are new to a process cost more than the copy
            os.ftruncate(self.file, size)
            self.mapped = mmap.mmap(self.file, size)
        self.mapped[:TOKEN_BYTES] = token
        self.mapped[TOKEN_BYTES:size] = payload
        return {"path": f"/proc/{os.getpid()}/fd/{self.file}", "size": size, "token": token.hex()}

    def __del__(self) -> None:
        os.close(self.file)


_mapped: dict[str, mmap.mmap] = {}  # of a worker: the memory of its engine


def read(place: dict) -> memoryview | None:
    """The bytes that `write` has put there; None where they are not, as on another machine of a Ray cluster."""
    path, size = place["path"], place["size"]
    memory = _mapped.get(path, b"")
    if not _holds(memory, place):
        _mapped.pop(path, None)
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # another machine may have a pipe there, and wait
        except OSError:
            return None
        try:
            memory = _mapped[path] = mmap.mmap(file, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        finally:
            os.close(file)
    return memoryview(memory)[TOKEN_BYTES:size] if _holds(memory, place) else None


def _holds(memory: mmap.mmap | bytes, place: dict) -> bool:
    # The same process and file number may exist elsewhere, or have been another's: the token says whether it is ours.
    return len(memory) >= place["size"] and memory[:TOKEN_BYTES].hex() == place["token"]
