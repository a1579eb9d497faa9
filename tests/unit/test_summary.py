"""`rft.runs.summary` as a command: the newest run of a folder, a torn line, bad input with one message."""

import json
import subprocess
import sys

from report_runs import whole_run

from rft.record.names import TRAINING_FILE


def command(*words) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "rft.runs.summary", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_newest_run_with_a_torn_line(tmp_path):
    whole_run(tmp_path, "20260101T000000Z")
    run = whole_run(tmp_path, "20260102T000000Z", steps=12)
    file = run / TRAINING_FILE
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:4], lines[4][:30] + "\n", *lines[5:]]))
    found = command(run.parent)
    assert found.returncode == 0, found.stderr
    assert f"the newest run of {run.parent}: {run}\n" in found.stderr
    assert "1 of 12 lines cannot be read (line 5)" in found.stdout
    assert json.loads((run / "result.json").read_text())["steps"] == 11


def test_bad_input_is_one_message(tmp_path):
    run = whole_run(tmp_path)
    (run / "evals" / "after.json").unlink()
    for words, message in ((tmp_path / "absent", "found no directory"), (run, "found no file")):
        refused = command(words)
        assert refused.returncode == 2 and refused.stderr.startswith("error: ") and message in refused.stderr
        assert refused.stderr.count("\n") == 1
