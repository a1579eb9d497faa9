"""launch/sft.sh: what a supervised run asks before and after its training, what it refuses, how it ends."""

import json
import shlex
from pathlib import Path

import pytest
from launching import ROOT, launch

from rft.problems import problem_row
from rft.runs.format_check import chosen

SFT = ROOT / "launch/sft_20b.sh"


@pytest.fixture
def launched_as(tmp_path):
    """A function from variables to what launch.json keeps of them."""

    def of(**variables: str) -> dict[str, str]:
        script = tmp_path / "start.sh"
        script.write_text(f'source "{ROOT}/launch/common.sh"\nmkdir -p "$RUN_DIR"\nrecord_start\n')
        done = launch(script, tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "run/launch.json").read_text())["environment"]

    return of


def test_a_resumed_run_asks_as_many_problems_as_at_its_start(launched_as):
    given = {"FORMAT_PROBLEMS": "200", "FORMAT_TOKENS": "4096", "SFT_RANKS": "2"}
    assert given.items() <= launched_as(**given).items()
    assert not given.keys() & launched_as().keys()


def checks(place, *options: str, **variables: str) -> list[list[str]]:
    """The words of the format checks that a dry run of launch/sft_20b.sh prints, before and after."""
    done = launch(SFT, place, *options, DRY_RUN="1", **variables)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if "rft.runs.format_check" in line]


def test_the_launcher_asks_the_problems_that_the_command_asks(tmp_path, monkeypatch):
    """MATH's of level 4 and 5, though the file has others too."""
    rows = [problem_row(f"{n} + 1?", str(n + 1), f"p{n}", "math" if n % 2 else "gsm8k") for n in range(200)]
    file = tmp_path / "cache/data/probe_set_1000_ood.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in checks(tmp_path):
        variable, _, value = words[1].partition("=")
        monkeypatch.setenv(variable, value)
        asked = chosen(Path(words[words.index("--data") + 1]), int(words[words.index("--n") + 1]), 0)
        assert asked == chosen(None, 73, 0) and {problem["datasource"] for problem in asked} == {"math"}
    other = tmp_path / "other.jsonl"
    other.write_text(file.read_text())
    (words, _) = checks(tmp_path, EVAL_DATASET=str(other))
    assert {problem["datasource"] for problem in chosen(Path(words[words.index("--data") + 1]), 73, 0)} > {"math"}
