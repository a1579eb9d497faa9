"""Curricula: bands, orders, mixtures; and the cache of pass rates."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rft.data.pass_rates as pass_rates
from rft.data.curriculum import Part, make_curriculum, mix
from rft.data.pass_rates import Sampling, estimate, locked, problem_key, rate_row
from rft.data.row_files import input_identity, read_rows
from rft.problems import problem_row
from rft.record.readers import read_jsonl

ROOT = Path(__file__).resolve().parents[2]


def dataset(path: Path, name: str, count: int) -> Path:
    rows = [problem_row(f"What is {i} {name}s and one {name}?", str(i + 1), f"{name}/{i}", name) for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rates(path: Path, values: dict[str, float]) -> Path:
    path.write_text("".join(json.dumps({"id": name, "pass_rate": rate}) + "\n" for name, rate in values.items()))
    return path


def ids(path: Path) -> list[str]:
    return [row["id"] for _, row in read_rows(path)]


def test_band_and_order_choose_and_sort(tmp_path):
    pear = dataset(tmp_path / "pear.jsonl", "pear", 11)
    known = rates(tmp_path / "rates.jsonl", {f"pear/{i}": i / 10 for i in range(11)})
    out = tmp_path / "c.jsonl"
    manifest = make_curriculum([Part(pear, 1)], known, (0.2, 0.5), "hard-first", None, 0, out)
    assert ids(out) == [f"pear/{i}" for i in (2, 3, 4, 5)]
    assert (tmp_path / "c.jsonl.order.txt").read_text().split() == ids(out)
    assert manifest["parts"][0]["eligible"] == 4 and manifest["parts"][0]["rows"] == 11
    make_curriculum([Part(pear, 1)], known, (0, 1), "easy-first", 3, 0, out)
    assert ids(out) == [f"pear/{i}" for i in (10, 9, 8)]
    # An order file that a curriculum wrote gives that curriculum again.
    make_curriculum([Part(pear, 1)], None, (0, 1), f"{out}.order.txt", None, 0, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    make_curriculum([Part(pear, 1)], None, (0, 1), "random", None, 1, out)
    first = ids(out)
    make_curriculum([Part(pear, 1)], None, (0, 1), "random", None, 2, out)
    assert sorted(first) == sorted(ids(out)) and first != ids(out)


def test_mixture_holds_its_weights_everywhere(tmp_path):
    pear, plum = dataset(tmp_path / "pear.jsonl", "pear", 90), dataset(tmp_path / "plum.jsonl", "plum", 30)
    out = tmp_path / "m.jsonl"
    make_curriculum([Part(pear, 3), Part(plum, 1)], None, (0, 1), "file", 80, 0, out)
    names = [name.split("/")[0] for name in ids(out)]
    assert len(names) == 80 and names.count("pear") == 60
    assert all(abs(names[:n].count("plum") - n / 4) <= 1 for n in range(81))
    assert [n for n in ids(out) if n.startswith("plum")] == [f"plum/{i}" for i in range(20)]


def test_an_order_file_is_obeyed_over_all_datasets(tmp_path):
    parts = [Part(dataset(tmp_path / f"{name}.jsonl", name, 4), 2) for name in ("pear", "plum")]
    order, out = tmp_path / "ids.txt", tmp_path / "o.jsonl"
    wanted = ["pear/1", "pear/2", "pear/3", "plum/1"]
    order.write_text("\n".join(wanted))
    manifest = make_curriculum(parts, None, (0, 1), str(order), None, 0, out)
    assert ids(out) == wanted
    assert manifest["order_file"] == input_identity(order) and [p["eligible"] for p in manifest["parts"]] == [3, 1]
    make_curriculum(parts[::-1], None, (0, 1), str(order), 2, 0, out)
    assert ids(out) == wanted[:2]
    known = rates(tmp_path / "rates.jsonl", {f"{name}/{i}": i / 10 for name in ("pear", "plum") for i in range(4)})
    make_curriculum(parts, known, (0.2, 1), str(order), None, 0, out)
    assert ids(out) == wanted[1:3]
    with pytest.raises(ValueError, match="found 4 listed prompts that pass, wanted 5"):
        make_curriculum(parts, None, (0, 1), str(order), 5, 0, out)
    with pytest.raises(ValueError, match=r"found weights \[2, 1\] beside the order file"):
        make_curriculum([parts[0], parts[1]._replace(weight=1)], None, (0, 1), str(order), None, 0, out)
    assert ids(out) == wanted[1:3]


def test_a_problem_of_two_datasets_is_used_once(tmp_path):
    first, second = dataset(tmp_path / "a.jsonl", "pear", 4), tmp_path / "b.jsonl"
    rows = [json.loads(line) | {"id": f"b/{i}"} for i, line in enumerate(first.read_text().splitlines())]
    rows[3] = problem_row("What is 99 pears?", "99", "b/3", "b")
    second.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, parts = tmp_path / "c.jsonl", [Part(first, 4), Part(second, 1)]
    manifest = make_curriculum(parts, None, (0, 1), "file", None, 0, out)
    assert sorted(ids(out)) == ["b/3", "pear/0", "pear/1", "pear/2", "pear/3"]
    assert [part["copies"] for part in manifest["parts"]] == [0, 3]
    (tmp_path / "ids.txt").write_text("pear/1\nb/0\n")
    parts = [Part(first, 1), Part(second, 1)]
    with pytest.raises(ValueError, match=r"ids\.txt, line 2: found id 'b/0', whose problem an earlier --dataset has"):
        make_curriculum(parts, None, (0, 1), str(tmp_path / "ids.txt"), None, 0, out)
    rows[0]["label"] = "77"
    second.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"with label '1' as id 'pear/0' in .* with '77' as id 'b/0'"):
        make_curriculum(parts, None, (0, 1), "file", None, 0, out)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.1, 10)), min_size=1, max_size=4))
def test_no_prompt_comes_twice(parts):
    listed = [[{"id": f"{k}/{i}"} for i in range(count)] for k, (count, _) in enumerate(parts)]
    weights = [weight for _, weight in parts]
    names = [str(k) for k in range(len(parts))]
    try:
        mixed = [row["id"] for row in mix(listed, weights, None, names)]
    except ValueError:
        assert 0 in [count for count, _ in parts]
        return
    assert len(set(mixed)) == len(mixed)
    for k, weight in enumerate(weights):
        share = sum(name.startswith(f"{k}/") for name in mixed)
        assert abs(share - len(mixed) * weight / sum(weights)) <= len(parts)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--order", "ids.txt"], "ids.txt, line 2: found id 'nut/1', wanted one of the datasets"),
        (["--order", "latin.txt"], "latin.txt: not UTF-8 at byte 3"),
        (["--order", "absent.txt"], "found no order file absent.txt"),
        (["--order", "easy-first"], "pass --pass-rates FILE"),
        (["--band", "0.1", "0.9"], "pass --pass-rates FILE"),
        (["--pass-rates", "few.jsonl"], "found 9 of 10 problems without a pass rate, 'pear/1' first"),
        (["--pass-rates", "odd.jsonl"], "odd.jsonl, line 1: field 'pass_rate' is 1.5, wanted 0 to 1"),
        (["--pass-rates", "all.jsonl", "--band", "0.9", "0.1"], "wanted 0 <= LOW <= HIGH <= 1"),
        (["--pass-rates", "all.jsonl", "--band", "0.9", "1"], "found 0 prompts that pass"),
        (["--size", "11"], "found 10 prompts that pass, wanted about 11"),
        (["--size", "0"], "found --size 0"),
        (["--dataset", "pear.jsonl"], "found id 'pear/0' in pear.jsonl and pear.jsonl"),
        (["--dataset", "plum.jsonl=0"], "found weight 0.0"),
        (["--dataset", "text.jsonl"], "found text as input in one of"),
        (["--dataset", "nolabel.jsonl"], "nolabel.jsonl, line 1: field 'label' is missing"),
    ],
)
def test_bad_input_is_one_message_and_no_file(tmp_path, options, words):
    dataset(tmp_path / "pear.jsonl", "pear", 10)
    dataset(tmp_path / "plum.jsonl", "plum", 3)
    (tmp_path / "text.jsonl").write_text('{"input": "1+1?", "label": "2", "id": "t"}\n')
    (tmp_path / "nolabel.jsonl").write_text('{"input": "1+1?", "id": "t"}\n')
    (tmp_path / "ids.txt").write_text("pear/1\nnut/1\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    rates(tmp_path / "few.jsonl", {"pear/0": 0.5})
    rates(tmp_path / "odd.jsonl", {"pear/0": 1.5})
    rates(tmp_path / "all.jsonl", {f"pear/{i}": 0.5 for i in range(10)})
    command = [sys.executable, ROOT / "data" / "make_curriculum.py", "--dataset", "pear.jsonl", *options]
    done = subprocess.run(
        [*command, "--out", "out/c.jsonl"], capture_output=True, text=True, cwd=tmp_path, check=False
    )  # fmt: skip
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "way", ["same", "other spelling", "link", "hard link", "linked folder", "rates", "order", "folder"]
)
def test_no_input_is_written_over(tmp_path, way):
    pear, other = dataset(tmp_path / "pear.jsonl", "pear", 10), tmp_path / "c.jsonl"
    known = rates(tmp_path / "rates.jsonl", {f"pear/{i}": 0.5 for i in range(10)})
    order = tmp_path / "c.jsonl.order.txt"
    order.write_text("pear/1\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "here").symlink_to(tmp_path)
    links = {"link": other.symlink_to, "hard link": other.hardlink_to}
    if way in links:
        links[way](pear)
    out = {"same": pear, "other spelling": tmp_path / "sub" / ".." / "pear.jsonl", "rates": known,
           "linked folder": tmp_path / "here" / "pear.jsonl", "folder": tmp_path / "sub"}.get(way, other)  # fmt: skip
    before = {path: path.read_bytes() for path in (pear, known, order)}
    words = "found a folder at" if way == "folder" else "which is the input"
    with pytest.raises(ValueError, match=words):
        make_curriculum([Part(pear, 1)], known, (0, 1), str(order) if way == "order" else "file", None, 0, out)
    assert {path: path.read_bytes() for path in before} == before


SAMPLING = Sampling(n=2, temperature=1.0, top_p=1.0, max_tokens=8, max_prompt_tokens=64, seed=0)


@pytest.fixture
def drawn(monkeypatch):
    """Stands in for the engine alone: records what is sampled; the second sample of each problem is right."""
    calls = []

    def sample(model, missing, sampling):
        for _, key, index in missing:
            calls.append((key, index))
            yield {"problem": key, "index": index, "correct": index == 1, "truncated": False, "tokens": 3}

    monkeypatch.setattr(pass_rates, "sample", sample)
    monkeypatch.setattr(pass_rates, "run_key", lambda model, sampling: f"{model}-{sampling.temperature}")
    return calls


def test_only_missing_samples_are_drawn(tmp_path, drawn):
    pear, cache, out = dataset(tmp_path / "pear.jsonl", "pear", 3), tmp_path / "c" / "cache.jsonl", tmp_path / "r.jsonl"
    estimate("m", pear, SAMPLING, cache, out)
    assert len(drawn) == 6
    assert read_jsonl(out)[0] == {"id": "pear/0", "pass_rate": 0.5, "n": 2, "correct": 1, "truncated": 0}
    estimate("m", pear, SAMPLING, cache, out)
    assert len(drawn) == 6
    estimate("m", pear, SAMPLING._replace(n=3), cache, out)
    assert len(drawn) == 9 and {index for _, index in drawn[6:]} == {2}
    estimate("m", pear, SAMPLING._replace(temperature=0.5), cache, out)
    assert len(drawn) == 15
    with cache.open("a") as stream:
        stream.write('{"run": "m-1.0", "probl')  # a kill in the middle of a line
    estimate("m", dataset(tmp_path / "pear.jsonl", "pear", 4), SAMPLING, cache, out)
    assert len(drawn) == 17 and len(read_jsonl(cache)) == 17 and cache.read_text().endswith("\n")
    assert len(read_jsonl(out)) == 4


def test_a_kill_keeps_what_was_sampled(tmp_path, drawn, monkeypatch):
    pear, cache, whole = dataset(tmp_path / "pear.jsonl", "pear", 3), tmp_path / "cache.jsonl", pass_rates.sample

    def dies(*args):
        for number, record in enumerate(whole(*args)):
            if number == 4:
                raise OSError("No space left on device")
            yield record

    monkeypatch.setattr(pass_rates, "sample", dies)
    with pytest.raises(OSError):
        estimate("m", pear, SAMPLING, cache, tmp_path / "r.jsonl")
    assert len(read_jsonl(cache)) == 4 and not (tmp_path / "r.jsonl").exists()
    monkeypatch.setattr(pass_rates, "sample", whole)
    drawn.clear()
    estimate("m", pear, SAMPLING, cache, tmp_path / "r.jsonl")
    assert len(drawn) == 2


def test_an_estimation_writes_over_no_input(tmp_path, drawn):
    pear, cache = dataset(tmp_path / "pear.jsonl", "pear", 3), tmp_path / "cache.jsonl"
    for out in (pear, cache):
        with pytest.raises(ValueError, match="which is the input"):
            estimate("m", pear, SAMPLING, cache, out)
    with pytest.raises(ValueError, match="whose first line is no sample"):
        estimate("m", pear, SAMPLING, pear, tmp_path / "r.jsonl")
    assert not drawn and len(read_jsonl(pear)) == 3


def test_the_cache_belongs_to_one_process(tmp_path):
    cache = tmp_path / "cache.jsonl"
    with cache.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="in use by another process"), locked(cache):
            pass


@pytest.mark.parametrize(
    "content",
    [b'{"id": "a", "pass_rate": 0.5}\nmore without a newline', b"thesis", b"no\ncache", b'["run"]\n', b"\xff\n"],
)
def test_a_file_that_is_no_cache_is_refused_and_not_touched(tmp_path, drawn, content):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ValueError, match="whose first line is no sample"):
        estimate("m", dataset(tmp_path / "p.jsonl", "pear", 2), SAMPLING, tmp_path / "other", tmp_path / "r.jsonl")
    assert (tmp_path / "other").read_bytes() == content and not drawn


@pytest.mark.parametrize("torn", [b"", b'{"r', b'{"run": "m-1.0", "pro'])
def test_a_cache_of_one_torn_line_is_ours(tmp_path, drawn, torn):
    (tmp_path / "cache").write_bytes(torn)
    estimate("m", dataset(tmp_path / "p.jsonl", "pear", 2), SAMPLING, tmp_path / "cache", tmp_path / "r.jsonl")
    assert len(drawn) == 4 and len(read_jsonl(tmp_path / "cache")) == 4


def test_the_cache_key_is_of_what_decides_a_sample(tmp_path, monkeypatch):
    import torch

    from rft.evals import identity

    (tmp_path / "config.json").write_text("{}")
    model = str(tmp_path)
    key = pass_rates.run_key(model, SAMPLING)
    assert pass_rates.run_key(model, SAMPLING._replace(n=9, max_prompt_tokens=9)) == key
    for changed in ({"temperature": 0.5}, {"top_p": 0.5}, {"max_tokens": 9}, {"seed": 1}, {"effort": "low"}):
        assert pass_rates.run_key(model, SAMPLING._replace(**changed)) != key
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda: "another device")
        assert pass_rates.run_key(model, SAMPLING) != key
    with monkeypatch.context() as patch:
        patch.setenv("CHAT_DATE", "2026-01-01")
        assert pass_rates.run_key(model, SAMPLING) != key
    with monkeypatch.context() as patch:
        patch.setattr(identity, "SAMPLING_CODE", identity.SAMPLING_CODE[1:])
        assert pass_rates.run_key(model, SAMPLING) != key


def test_labels_and_prompts_are_part_of_the_key():
    row = problem_row("What is one and one?", "2", "a", "x")
    assert problem_key(row) == problem_key(row | {"id": "b", "datasource": "y"})
    assert len({problem_key(row), problem_key(row | {"label": "3"}), problem_key(row | {"input": "Other?"})}) == 3
    samples = [{"correct": True, "truncated": True}, {"correct": False, "truncated": False}]
    assert rate_row("a", samples) == {"id": "a", "pass_rate": 0.5, "n": 2, "correct": 1, "truncated": 1}


def test_greedy_samples_are_refused_above_one(tmp_path):
    with pytest.raises(ValueError, match="samples are all the same"):
        estimate("m", tmp_path / "x", SAMPLING._replace(temperature=0.0), tmp_path / "c", tmp_path / "o")


def test_copies_of_a_code_task_have_the_same_tests(tmp_path):
    def part(name: str, **label: object) -> Part:
        text = json.dumps({"kind": "mbpp", "tests": ["assert f(1)"]} | label)
        row = problem_row("Write f.", text, f"{name}/1", name)
        (tmp_path / name).write_text(json.dumps(row) + "\n")
        return Part(tmp_path / name, 1)

    first, same, other = part("a"), part("b", setup="", entry_point=None), part("c", tests=["assert f(2)"])
    make_curriculum([first, same], None, (0, 1), "file", 1, 0, tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match="found one problem with label"):
        make_curriculum([first, other], None, (0, 1), "file", None, 0, tmp_path / "none.jsonl")
