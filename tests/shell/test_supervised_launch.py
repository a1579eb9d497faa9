"""launch/sft.sh: what a supervised run asks before and after its training, what it refuses, how it ends."""

import json

import pytest
from launching import ROOT, launch

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
