"""Short answers: the normal form of SQuAD's script, and what must not count."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.grading.short_answer import MAX_CHARS, answers_of, is_exact, is_search_label, label_of, normalized


@pytest.mark.parametrize(
    ("answer", "accepted", "right"),
    [
        ("Paris", "paris", True),
        ("The Beatles", "beatles", True),
        ("  U.S.A. ", "USA", True),
        ("an apple a day", "apple day", True),
        ("1,234", "1234", True),
        ("3.5", "35", True),  # of the normal form: points go
        ("yes", "Yes.", True),
        ("no", "yes", False),
        ("Paris or London", "Paris", False),
        ("Paris, London", "Paris", False),
        ("theatre", "atre", False),
        ("Zoë", "Zoe", False),
        ("１９９９", "1999", False),  # only ASCII is folded, as there
        ("", "Paris", False),
        ("the", "The", False),
        ("...", "!!!", False),
        (None, "Paris", False),
        ("a" * (MAX_CHARS + 1), "a" * (MAX_CHARS + 1), False),
    ],
)
def test_exact_match(answer, accepted, right):
    assert is_exact(answer, [accepted]) is right
    assert is_exact(answer, ["another", accepted]) is right


@given(st.text())
def test_a_normal_form_is_its_own(text):
    form = normalized(text)
    assert normalized(form) == form
    assert not set(form) & set(string.punctuation)


@given(st.lists(st.text().filter(normalized), min_size=1))
def test_labels_come_back(answers):
    text = label_of(answers)
    assert is_search_label(text) and answers_of(text) == tuple(answers)
    assert all(is_exact(each, answers) for each in answers if len(each) <= MAX_CHARS)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("42", "wanted {"),
        ("{", "wanted JSON"),
        (None, "wanted JSON"),
        ('{"kind": "mbpp", "tests": []}', "wanted {"),
        ('{"kind": "search"}', "wanted {"),
        ('{"kind": "search", "answers": ["x"], "more": 1}', "wanted {"),
        ('{"kind": "search", "answers": []}', "one or more texts"),
        ('{"kind": "search", "answers": "Paris"}', "one or more texts"),
        ('{"kind": "search", "answers": [1]}', "one or more texts"),
        ('{"kind": "search", "answers": ["Paris", "the"]}', "more than articles"),
        ("[" * 100_000, "wanted JSON"),
    ],
)
def test_unsound_labels_are_named(label, said):
    with pytest.raises(ValueError, match=said):
        answers_of(label)


def test_other_labels_are_none_of_search():
    assert not any(map(is_search_label, ["42", None, 7, "{", json.dumps({"kind": "mbpp", "tests": ["x"]}), "[1]"]))
    assert is_search_label('{"kind": "search"}')  # meant as one, unsound
