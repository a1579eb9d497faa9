"""Which problems are copies of an evaluation problem, under any dress, and which only look alike."""

import pytest
from contest import AIME
from hypothesis import given
from hypothesis import strategies as st

from rft.data.canonical import canonical_words_text, content_hash
from rft.data.decontaminate import build_index, find_match, without_drawings
from rft.data.published import Problem


@given(st.text(max_size=60))
def test_typography_does_not_change_a_problem(text):
    key = content_hash(text)
    assert content_hash(f"  {text}\n") == key
    assert content_hash(text.replace(" ", "  ")) == key
    assert content_hash(f"{text}\u200b") == key


def test_numbers_and_operators_do():
    assert len({content_hash(t) for t in ("$x+1$", "$x-1$", "$x+2$", "$x+y$")}) == 4
    assert content_hash("Find $\\dfrac{1}{2}$.") == content_hash("find \\( \\frac12\\)".replace("12", "{1}{2}"))


@pytest.fixture
def index():
    short = Problem("math/short", "Determine the number of ways to arrange the letters of TOOT", "6", "math", 4, None)
    apples = "Ann has 12 apples and buys 30 more; Ben has 7 and eats 2. How many apples have they together now?"
    return build_index(
        [
            Problem("aime/1", AIME, "60", "aime", None, 1983),
            short,
            Problem("gsm8k/1", apples, "47", "gsm8k", None, None),
        ]
    )


def match(text: str, label: str, index):
    return find_match(text, canonical_words_text(text), content_hash(text), label, index)


def test_copies_are_found_under_any_dress(index):
    assert match(AIME.upper().replace("$", " $ ").replace("\\LOG", "\\log"), "60", index)[:2] == ("exact", "aime/1")
    embedded = f"This is from a contest long ago. {AIME} Explain your answer."
    assert match(embedded, "60", index)[:2] == ("13-gram", "aime/1")
    drawn = f'{AIME} [asy] size(200); draw((0,0)--(1,1)); label("A", (0,0)); dot((2,2)); [/asy]'
    assert match(drawn, "60", index).reason == "13-gram"
    grown = "Please determine the number of ways to arrange the letters of TOOT"
    assert match(grown, "6", index)[:2] == ("8-gram", "math/short")
    # A word changed in each run of eight: no long n-gram is left.
    retold = "Ann had 12 apples and buys 30 more; Ben got 7 and eats 2. How many apples have both together now?"
    found = match(retold, "47", index)
    assert found.reason == "near-duplicate" and found.against == "gsm8k/1" and 0.5 <= found.score < 1


@pytest.mark.parametrize(
    ("drawing", "reason"),
    [
        ("[asy] draw((0,0)--(1,1)); ", "13-gram"),
        ("[asy] draw((0,0)--(1,1)); dot((1,1));\n \n", "13-gram"),
        ("[asy] dot((0,0)); [asy] draw((0,0)--(1,1)); [/asy] ", "13-gram"),
    ],
)
def test_an_unclosed_drawing_hides_no_problem(index, drawing, reason):
    found = match(f"{drawing}{AIME} [asy] draw((2,2)); [/asy]", "60", index)
    assert found is not None and found[:2] == (reason, "aime/1")


def test_drawings_are_left_out_up_to_their_end():
    assert without_drawings("a [asy] b\n\nc [/asy] d").split() == ["a", "d"]
    assert without_drawings("a [asy] b\n \nd").split() == ["a", "d"]
    assert without_drawings("a [asy] b [asy] c [/asy] d").split() == ["a", "b", "d"]
    assert without_drawings("[asy] d" * 20_000).split() == ["d"] * 20_000


def test_short_problems_are_found_by_their_formulas():
    index = build_index(
        [
            Problem("m/1", "Simplify $\\sqrt{242}$.", "11\\sqrt{2}", "math", 4, None),
            Problem("m/2", "Compute $\\dfrac{5!}{4!}+3$.", "8", "math", 4, None),
            Problem("m/3", "How far is $A$ from $B$, in metres?", "8", "math", 4, None),
        ]
    )
    assert match("What is the value of $\\sqrt{242}$?", "11\\sqrt2", index)[:2] == ("formulas", "m/1")
    assert match("12. (3 points) What does \\[\\frac{5!}{4!} + 3 \\] equal?", "8", index)[:2] == ("formulas", "m/2")
    assert match("Who could ever guess that $\\sqrt{242}$ rounds up?", "16", index) is None  # another question
    assert match("What is the product of $\\frac{5!}{4!}-3$ and four?", "8", index) is None
    assert match("The distance between two towns $A$ and $B$?", "8", index) is None


def test_other_problems_are_kept(index):
    boilerplate = (
        "The area of a square is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
    )
    assert match(boilerplate, "5", index) is None
    variant = "Ann has 11 pears and buys 31 more; Ben has 8 and eats 3. How many pears have they together now?"
    assert match(variant, "46", index) is None
    assert match("2", "2", index) is None
    assert match("", "2", index) is None


def test_boilerplate_alone_is_no_copy():
    tail = "where $m$ and $n$ are relatively prime positive integers. Find the remainder when $m+n$ is divided by 1000."
    first = Problem(
        "a", f"A die is rolled until six comes up; the chance of an odd count is $m/n$, {tail}", "1", "x", 1, 1
    )
    second = (
        f"The sides of a triangle are 13, 14 and 15. A circle through two corners touches the longest side, and its "
        f"radius, measured in units of the altitude on that same side, equals $m/n$, {tail}"
    )
    assert match(second, "2", build_index([first])) is None
