"""A run's samples as files: both forms are found and read, what is damaged is named."""

import gzip

import pytest

from rft.record.samples import EVALUATION, TRAINING, SampleFile, file_name, read_samples, sample_file, sample_files

LINES = b'{"reward": 1.0, "response": "\xe2\x80\xa8"}\n{"reward": 0.0}\n'
ROWS = [{"reward": 1.0, "response": "\u2028"}, {"reward": 0.0}]


def test_files_are_found_in_the_order_of_the_steps_in_either_form(tmp_path):
    ours = ("samples_step10.jsonl.gz", "samples_step2.jsonl", "samples_step2.jsonl.gz", "eval_samples_step2.jsonl")
    others = ("samples_step3.jsonl.gz.12.partial", "my_samples_step1.jsonl", "samples_stepx.jsonl")
    for name in ours + others:
        (tmp_path / name).touch()
    assert sample_files(tmp_path) == [
        SampleFile(2, EVALUATION, tmp_path / "eval_samples_step2.jsonl"),
        SampleFile(2, TRAINING, tmp_path / "samples_step2.jsonl.gz"),
        SampleFile(10, TRAINING, tmp_path / "samples_step10.jsonl.gz"),
    ]
    assert sample_files(tmp_path / "none") == []
    assert sample_file(tmp_path, EVALUATION, 2) == tmp_path / "eval_samples_step2.jsonl"
    assert sample_file(tmp_path, TRAINING, 2) == tmp_path / "samples_step2.jsonl.gz"
    assert sample_file(tmp_path, TRAINING, 7) == tmp_path / file_name(TRAINING, 7)


def test_both_forms_are_read(tmp_path):
    plain, packed = tmp_path / "samples_step1.jsonl", tmp_path / "samples_step2.jsonl.gz"
    plain.write_bytes(LINES + b'{"reward": "torn by a ki')
    packed.write_bytes(gzip.compress(LINES))
    assert list(read_samples(plain)) == list(read_samples(packed)) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.jsonl", b'{"reward": 1}\n{"rew\n{}\n', "line 2: not JSON"),
        ("a.jsonl.gz", gzip.compress(b"{}\nno\n"), "line 2: not JSON"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-12], "damaged gzip"),
        ("a.jsonl.gz", LINES, "damaged gzip"),
    ],
    ids=["torn line", "torn line, gzipped", "cut gzip", "no gzip"],  # a gzip's bytes hold the time
)
def test_a_damaged_file_is_named(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"a.jsonl.*{named}"):
        list(read_samples(tmp_path / name))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(read_samples(tmp_path / "samples_step1.jsonl.gz"))
