"""The monitor as a process: on pipes, on pseudo-terminals, on files that grow, under signals."""

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from monitor_runs import ROOT, log, monitor, write_run


@pytest.fixture(autouse=True)
def no_places_from_outside(monkeypatch):
    for name in ("METRICS_LOG_DIR", "SPIKE_LOG_PATH", "COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_written_into_the_run(tmp_path):
    run = write_run(tmp_path / "run")
    before = {file: (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None) for file in run.rglob("*")}
    assert monitor(run).returncode == 0
    assert before == {
        file: (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else None) for file in run.rglob("*")
    }


def test_once_on_a_file_that_grows_by_bytes(tmp_path):
    run = write_run(tmp_path / "run", steps=12)
    content = (run / "training_metrics.jsonl").read_bytes()
    (run / "training_metrics.jsonl").write_bytes(b"")
    read = threading.Event()

    def grow() -> None:
        """Three bytes at a time; the end comes when the page has been read a few times on the way."""
        with (run / "training_metrics.jsonl").open("ab", buffering=0) as file:
            for start in range(0, len(content), 3):
                if start > len(content) - 100:
                    read.wait()
                file.write(content[start : start + 3])
                time.sleep(5e-4)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        answers = [monitor(run, "--once") for _ in range(3)]
    finally:
        read.set()
        writer.join()
    answers.append(monitor(run, "--once"))
    assert [answer.returncode for answer in answers] == [0] * len(answers), answers[0].stderr
    assert "step 12 of 12" in answers[-1].stdout and "not complete records" not in "".join(a.stdout for a in answers)


@pytest.fixture
def start_live():
    """Start the monitor on a pseudo-terminal of 80 columns and 24 lines, as over ssh: the process and its terminal."""
    started = []

    def start(run: Path, term: str = "xterm") -> tuple[subprocess.Popen, int]:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "rft.runs.monitor", str(run), "--interval", "0.2"]
        environment = {**os.environ, "TERM": term, "COLUMNS": "80", "LINES": "24"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        started.append((process, ours))
        os.close(theirs)
        return started[-1]

    yield start
    for process, terminal in started:
        process.kill()
        process.wait()
        os.close(terminal)


def read_until(terminal: int, wanted: bytes | None, seconds: float = 60) -> bytes:
    """What the terminal shows until `wanted` stands in it; with None until it is closed."""
    seen, end = b"", time.monotonic() + seconds
    while wanted is None or wanted not in seen:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], seen.decode()
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # Linux: the other side was closed
            chunk = b""
        if not chunk:
            assert wanted is None, seen.decode()
            return seen
        seen += chunk
    return seen


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signal_leaves_the_live_page_and_restores_the_terminal(start_live, tmp_path, number, wanted):
    run = write_run(tmp_path / "run")
    process, terminal = start_live(run)
    assert b"\x1b[?1049h" in read_until(terminal, b"step 6 of 12")
    log(run, 7)
    read_until(terminal, b"step 7 of 12")
    process.send_signal(number)
    rest = read_until(terminal, None)
    assert process.wait(60) == wanted
    assert b"\x1b[?1049l" in rest and b"\x1b[?25h" in rest and b"Traceback" not in rest
    assert (b"tier 3: collapse" in rest.partition(b"\x1b[?1049l")[2]) == (wanted == 0)  # the whole page stays


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_live_page_ends_with_the_run(start_live, tmp_path, term):
    run = write_run(tmp_path / "run", steps=12)
    (run / "training_metrics.jsonl").write_text("")
    process, terminal = start_live(run, term=term)
    read_until(terminal, b"starting")
    write_run(tmp_path / "again", steps=12)
    (run / "training_metrics.jsonl").write_bytes((tmp_path / "again" / "training_metrics.jsonl").read_bytes())
    with (run / "phases.jsonl").open("a") as stream:
        stream.write('{"phase": "grpo", "seconds": 100.0}\n')
    rest = read_until(terminal, None)
    assert process.wait(60) == 0
    assert b"finished" in rest
    assert (b"\x1b[" not in rest) == (term == "dumb")


def test_picture_shows_no_path_and_fetches_nothing(tmp_path):
    run, output = write_run(tmp_path / "launcher" / "run"), tmp_path / "out.svg"
    subprocess.run([sys.executable, "docs/screenshots.py", run.parent, "--output", output], cwd=ROOT, check=True)
    picture = output.read_text(encoding="utf-8")
    assert "launcher/run" in picture and "group_mixed_share" in picture
    for words in (picture, (ROOT / "docs" / "monitor.svg").read_text(encoding="utf-8")):
        assert str(tmp_path) not in words and "url(" not in words.replace("url(#", "") and "/home" not in words
