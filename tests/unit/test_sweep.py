"""The page of a sweep over learning rates: verdicts of made-up runs, and directories that are none."""

import json

import pytest
from report_runs import whole_run

from rft.runs import sweep


@pytest.fixture
def place(tmp_path):
    """A sweep's directory with runs of these rates, each solving so many of 60 problems."""

    def make(**right):
        for rate, solved in right.items():
            run = whole_run(tmp_path, name=f"lr_{rate}", right=solved)
            before, after = (json.loads((run / f"evals/{n}.json").read_text())[0] for n in ("before", "after"))
            result = {"before": before, "after": after, "steps": 30}
            (run / "result.json").write_text(json.dumps(result))
        return tmp_path / "train_x"

    return make


def rows(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def test_each_rate_is_compared_with_each_other_and_the_control_first(place, capsys):
    folder = place(**{"4e-5": 55, "0": 20, "1e-5": 21})
    assert sweep.main([str(folder)]) == 0
    text = (folder / "verdicts.md").read_text()
    assert text in capsys.readouterr().out
    pairs = {row[0]: row for row in rows(text) if " against " in row[0]}
    assert list(pairs) == ["1e-5 against 0", "4e-5 against 0", "4e-5 against 1e-5"]
    assert [row[2] for row in pairs.values()] == ["cannot be told apart", "**better**", "**better**"]
    assert pairs["4e-5 against 0"][3] == f"{100 * 35 / 60:+.1f}" and pairs["4e-5 against 0"][5] == "35 / 0"
    # Corrected for three comparisons: the smallest p is three times the exact one of 35 won, none lost.
    assert float(pairs["4e-5 against 0"][6]) == pytest.approx(3 * 2 * 0.5**35, rel=0.05)
    assert [row[0] for row in rows(text) if " against " not in row[0]][1:4] == ["0", "1e-5", "4e-5"]
    assert "No control" not in text


def test_what_is_missing_is_said(place):
    folder = place(**{"1e-5": 30, "2e-5": 40, "1e-4": 10})
    (folder / "lr_1e-4/result.json").unlink()
    text = sweep.page(folder)
    assert "Without a result: 1e-4." in text and "**No control**" in text
    assert "1e-4 against" not in text


def test_runs_on_other_problems_get_no_verdict(place):
    folder = place(**{"0": 20, "1e-5": 30})
    file = folder / "lr_1e-5/evals/after.json"
    results = json.loads(file.read_text())
    results[0]["problems"] = "others"
    file.write_text(json.dumps(results))
    assert "no verdict: " in sweep.page(folder) and "**better**" not in sweep.page(folder)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: (f / "lr_0/result.json").unlink(), "too few runs to compare\n  found:  1 with a result"),
        (lambda f: (f / "lr_0").rename(f / "lr_none"), "found a run lr_none; wanted lr_ and a number"),
        (lambda f: (f / "lr_0/evals/after.json").unlink(), "lr_0/evals/after.json; wanted results"),
        (lambda f: (f / "lr_0/evals/after.json").write_text("{"), "after.json: not JSON"),
    ],
)
def test_a_directory_that_is_no_sweep_is_one_message(place, capsys, break_it, said):
    folder = place(**{"0": 20, "1e-5": 30})
    break_it(folder)
    assert sweep.main([str(folder)]) == 2
    output = capsys.readouterr()
    assert said in output.err and output.err.startswith("error: ") and not output.out
    assert not (folder / "verdicts.md").exists()
