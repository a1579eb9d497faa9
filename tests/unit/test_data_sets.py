"""Rows and files of the published sets, one form for each kind."""

from published_sets import write

from rft.data.sets import Input, evaluation_rows, missing_shards


def test_shards_are_complete():
    names = ["a/train-00000-of-00003.parquet", "a/train-00002-of-00003.parquet", "b/train.parquet"]
    assert list(missing_shards(names)) == ["a/train-00001-of-00003.parquet"]


def test_the_forms_of_aime_agree(tmp_path):
    """The same problem by number, by address and by index: one row."""
    text = {"problem": "How many?", "answer": "7"}
    forms = {
        "numbers.jsonl": text | {"year": "2025", "aime_number": "II", "problem_number": 3},
        "address.jsonl": text | {"url": "https://x.org/wiki/2025_AIME_II_Problems/Problem_3"},
        "aime_2025.jsonl": text | {"problem_idx": 18},
    }
    inputs = [Input("aime", write(tmp_path / name, [row]), name, "files", "") for name, row in forms.items()]
    rows, dropped = evaluation_rows("aime", inputs)
    assert len(rows) == 1 and dropped.total() == 2
