"""Micro-batches by tokens: what every plan must be, on any lengths, and cases worked by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft import packing


def sizes(batches: list[list[int]], lengths: list[int]) -> list[int]:
    return [sum(lengths[index] for index in batch) for batch in batches]


def test_best_fit_takes_the_fullest_batch_that_has_room():
    """9 7 4 3 2 1 into 10: 9 | 7 | 4 stands alone | 3 goes to the 7 | 2 to the 4 | 1 to the 9."""
    lengths = [1, 2, 3, 4, 7, 9]
    assert packing.best_fit(lengths, 10) == [[0, 5], [2, 4], [1, 3]]
    assert packing.best_fit([5, 5, 5, 5], 10) == [[0, 1], [2, 3]]
    assert packing.best_fit([], 10) == []


def test_the_fullest_batch_that_can_be_split_is_split():
    lengths = [10, 4, 3, 2]
    assert packing.split_to([[0], [1, 2, 3]], lengths, 3) == [[0], [1], [2, 3]]
    assert packing.split_to([[0], [1, 2, 3]], lengths, 2) == [[0], [1, 2, 3]]


def test_micro_batches_of_one_size_have_one_place_on_every_rank():
    """Rows of 8, 6 and 5, 4: who had the 8 gets the 4."""
    assert packing.plan([8, 6, 5, 4], 8, 2) == [[[0], [3]], [[1], [2]]]


@pytest.mark.parametrize(
    ("lengths", "ranks", "found", "wanted"),
    [
        ([3, 11], 1, "found sequences of 3 to 11 tokens", "1 to 10"),
        ([3, 0], 1, "found sequences of 0 to 3 tokens", "1 to 10"),
        ([3], 2, "found 1 sequences", "2 or more"),
    ],
)
def test_what_cannot_be_planned_is_refused(lengths, ranks, found, wanted):
    with pytest.raises(ValueError, match=rf"{found}(.|\n)*wanted: {wanted}(.|\n)*repair: "):
        packing.plan(lengths, 10, ranks)


@st.composite
def dealable(draw):
    """Lengths whose number is a multiple of the ranks, as the options are held to, a budget and the ranks."""
    ranks = draw(st.integers(1, 6))
    count = ranks * draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    return lengths, max(lengths) + draw(st.integers(0, 90)), ranks


@settings(max_examples=300)
@given(dealable())
def test_every_plan(case):
    lengths, budget, ranks = case
    plan = packing.plan(lengths, budget, ranks)
    batches = [batch for of_rank in plan for batch in of_rank]
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(batches) and max(sizes(batches, lengths)) <= budget
    assert {len(of_rank) for of_rank in plan} == {len(plan[0])}
    assert len(plan[0]) <= packing.most(len(lengths), max(lengths), budget, ranks)
    assert plan == packing.plan(list(lengths), budget, ranks)
    assert len(batches) - len(packing.best_fit(lengths, budget)) < ranks
    totals = [sum(sizes(of_rank, lengths)) for of_rank in plan]
    assert max(totals) - min(totals) <= max(sizes(batches, lengths))


@given(dealable())
def test_two_batches_never_fit_into_one(case):
    lengths, budget, _ = case
    found = sorted(sizes(packing.best_fit(lengths, budget), lengths))
    assert len(found) == 1 or found[0] + found[1] > budget
