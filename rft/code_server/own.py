"""A code server for one command, where none runs: started, waited for, ended."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rft.code_server import URL_VARIABLE
from rft.code_server.client import CodeServerError
from rft.code_server.grade import CONSENT

START_SECONDS = 60.0  # to build the sandboxes' tree and judge two programs; a second on an idle machine
STOP_SECONDS = 20.0  # beyond the server's own 5 s for programs that run


@contextmanager
def code_server() -> Iterator[str]:
    """The address of the server at CODE_SERVER_URL, else of one that is started here and ends with the block.

    Raises CodeServerError where it does not come up, with what it said.
    """
    if url := os.environ.get(URL_VARIABLE):
        yield url
        return
    with tempfile.TemporaryFile("w+") as log:
        # In a session of its own: Ctrl-C reaches this process, which ends the server when it has no more use for it.
        unsafe = ["--allow-unsafe"] * (os.environ.get(CONSENT) == "1")
        process = subprocess.Popen(
            [sys.executable, "-m", "rft.code_server", "--port", "0", *unsafe],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield _address(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen, log) -> str:
    """Where the server says that it serves."""
    end = time.monotonic() + START_SECONDS
    while True:
        ended = process.poll() is not None  # asked before its log is read, which is whole then
        said = _read(log)
        if found := re.search(r"serves at (http://\S+):", said):
            return found[1]
        if ended or time.monotonic() > end:
            what = f"ended with status {process.returncode}" if ended else f"not up after {START_SECONDS:g} s"
            raise CodeServerError(
                f"found the code server {what}: {said.strip()[-2000:] or 'it said nothing'}\n"
                "  wanted: a server that judges programs\n  repair: mend that, or export "
                f"{URL_VARIABLE}=http://… of one that runs"
            )
        time.sleep(0.05)


def _read(log) -> str:
    """All of a file that another process is writing at its end; its offset there is shared, so it is not moved."""
    return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
