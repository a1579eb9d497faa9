"""Samples on disk: a kill, a full disk and a second process leave whole lines."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.evals.cache import append, read_samples, stream_file

HEADER = {"base": "abc"}


def sample(index: int, response: str = "\\boxed{7}") -> dict:
    return {"prompt": "p", "index": index, "response": response, "tokens": 3, "finish": "stop"}


def test_samples_come_back_in_any_number_of_appends(tmp_path):
    file = tmp_path / "new" / "s.jsonl"
    append(file, HEADER, [sample(0), sample(1, "\u2028 \ud800 \U0001d53d")])
    append(file, {"another": "header"}, [sample(2)])
    header, samples = read_samples(file)
    assert header == HEADER
    assert [samples["p", i]["index"] for i in range(3)] == [0, 1, 2]
    assert samples["p", 1]["response"] == "\u2028 \ud800 \U0001d53d"
    assert read_samples(tmp_path / "absent.jsonl") == (None, {})


@given(cut=st.integers(1, 400))
def test_any_torn_tail_is_dropped_and_written_over(tmp_path_factory, cut):
    file = tmp_path_factory.mktemp("cache") / "s.jsonl"
    append(file, HEADER, [sample(0), sample(1), sample(2)])
    whole = file.read_bytes()
    file.write_bytes(whole[: max(0, len(whole) - cut)])
    before = read_samples(file)[1]
    append(file, HEADER, [sample(5)])
    header, samples = read_samples(file)
    assert header == HEADER
    assert samples == before | {("p", 5): sample(5)}


def test_long_torn_line_is_cut_to_the_line_before(tmp_path):
    file = tmp_path / "s.jsonl"
    append(file, HEADER, [sample(0)])
    with file.open("a") as stream:
        stream.write('{"response": "' + "x" * 200_000)
    append(file, HEADER, [sample(1)])
    assert list(read_samples(file)[1]) == [("p", 0), ("p", 1)]


def test_first_of_two_equal_draws_counts(tmp_path):
    file = tmp_path / "s.jsonl"
    append(file, HEADER, [sample(0, "first"), sample(0, "second")])
    assert read_samples(file)[1]["p", 0]["response"] == "first"


@pytest.mark.parametrize("line", ["broken", '{"prompt": "p"}', "[1]"])
def test_damaged_line_is_named_with_its_repair(tmp_path, line):
    file = tmp_path / "s.jsonl"
    append(file, HEADER, [sample(0)])
    with file.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(ValueError, match=r"line 3: .*delete that line"):
        read_samples(file)


FILL = """
import resource, sys
from pathlib import Path
from rft.evals.cache import append
file, written = Path(sys.argv[1]), 0
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    while True:
        append(file, {"base": "abc"}, [
            {"prompt": "p", "index": written, "response": "x" * 300, "tokens": 3, "finish": "stop"}])
        written += 1
except OSError as error:
    print(written, error)
"""


def test_disk_that_fills_leaves_a_cache_that_can_be_read_and_resumed(tmp_path):
    """A file-size limit stands for the disk: the kernel cuts the write that crosses it, as on a full disk."""
    file = tmp_path / "s.jsonl"
    done = subprocess.run([sys.executable, "-c", FILL, str(file)], capture_output=True, text=True, check=True)
    written = int(done.stdout.split()[0])
    assert written > 5 and str(file) in done.stdout
    assert len(read_samples(file)[1]) == written
    assert file.read_bytes().endswith(b"\n")
    append(file, HEADER, [sample(written)])
    assert len(read_samples(file)[1]) == written + 1


def test_many_processes_append_whole_lines(tmp_path):
    file = tmp_path / "s.jsonl"
    script = (
        "import sys; from pathlib import Path; from rft.evals.cache import append\n"
        "for i in range(50): append(Path(sys.argv[1]), {'base': 'abc'}, [{'prompt': sys.argv[2], 'index': i, "
        "'response': 'x' * 5000, 'tokens': 1, 'finish': 'stop'}])"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(file), name]) for name in "abc"]
    assert [process.wait() for process in running] == [0, 0, 0]
    header, samples = read_samples(file)
    assert header == HEADER and len(samples) == 150


def test_streams_are_told_apart_by_content(tmp_path):
    identity = {"base": "a", "sampling": {"seed": 0, "temperature": 0.6}}
    same = {"sampling": {"temperature": 0.6, "seed": 0}, "base": "a"}
    other = json.loads(json.dumps(identity).replace("0.6", "0.7"))
    assert stream_file(tmp_path, identity) == stream_file(tmp_path, same) != stream_file(tmp_path, other)
