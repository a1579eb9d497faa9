"""Answer extraction, normalisation and comparison."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.grading import (
    equal,
    extract_answer,
    final_message,
    grade,
    last_boxed,
    last_number,
    normalize,
    open_channel,
    parse_rational,
    response_of,
)

ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {42}", "42"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{42", None),
        (r"\boxed{41} and \boxed{42", None),
        (r"\boxedx{42}", None),
        ("no box", None),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text)[0] == content


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", "42"),
        ("first 1, then 2", "2"),
        ("1,234,567 people", "1,234,567"),
        ("it is -3.5 exactly", "-3.5"),
        ("so \u22127", "-7"),
        ("x-3", "3"),
        ("3/4 of it", "3/4"),
        ("about .5", ".5"),
        ("either 12,34", "34"),
        ("42, or so", "42"),
        ("\u0664\u0662 and \uff14\uff12", None),
        ("none", None),
        ("", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "answer", "method"),
    [
        (r"5 and \boxed{7}", "7", 2.0),
        ("5 and 7", "7", 1.0),
        (r"41 \boxed{}", None, 0.0),
        (r"\boxed{41} \boxed{ }", None, 0.0),
        (r"41 \boxed{42", None, 0.0),
        ("nothing", None, 0.0),
    ],
)
def test_a_broken_box_is_no_answer(text, answer, method):
    found = extract_answer(text)
    assert (found.answer, found.method) == (answer, method)


def test_the_number_fallback_can_be_switched_off():
    assert extract_answer("so 7", fallback=False).answer is None


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("plain text", "plain text"),
        (f"{ANALYSIS}a{NEXT}{FINAL}b<|return|>", "b"),
        (f"{ANALYSIS}a{NEXT}{FINAL}b", "b"),
        (f"{ANALYSIS}a", None),
        (f"{ANALYSIS}a<|return|>", None),
        (f"{FINAL}a{NEXT}{FINAL}b<|return|>", "b"),
        (f"{FINAL}a{NEXT}{ANALYSIS}b<|return|>", "a"),
        (f"{FINAL}a{NEXT}<|channel|>commentary<|message|>b<|return|>", "a"),
        (f"{FINAL}a<|return|>{FINAL}b<|return|>", "a"),
        (f"{ANALYSIS}assistantfinal b<|return|>", None),
        ("<|channel|>final <|constrain|>json<|message|>b<|return|>", "b"),
        ("<|channel|>finally<|message|>b<|return|>", None),
        (f"{ANALYSIS}a<|end|><|start|>user{FINAL}b<|return|>", None),
        (f"{FINAL}<|return|>", ""),
        ("b<|return|>", "b"),
        ("analysis a assistantfinal b", " b"),
        ("analysisaassistantfinalb", "b"),
        ("analysis a", None),
        ("commentary a", None),
        ("", ""),
    ],
)
def test_only_the_last_final_message_counts(response, text):
    assert final_message(response)[0] == text


@pytest.mark.parametrize(
    ("prompt", "channel", "response", "text"),
    [
        ("<|start|>user<|message|>q<|end|><|start|>assistant", None, f"{FINAL}a", "a"),
        (f"<|start|>assistant{FINAL}", "final", "a<|return|>", "a"),
        (f"<|start|>assistant{FINAL}", "final", "a", "a"),
        (f"<|start|>assistant{ANALYSIS}", "analysis", "a", None),
        (f"<|start|>assistant{ANALYSIS}", "analysis", "a<|return|>", None),
        (f"<|start|>assistant{ANALYSIS}", "analysis", f"a{NEXT}{FINAL}b<|return|>", "b"),
        ("<|start|>user<|message|>q", None, "a", "a"),
        (f"<|start|>assistant{FINAL}old<|end|>", None, "a", "a"),
    ],
)
def test_the_channel_a_prompt_leaves_open(prompt, channel, response, text):
    assert open_channel(prompt) == channel
    assert final_message(response, channel)[0] == text


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("42", "42"),
        ("042", "42"),
        ("42.", "42"),
        ("$42$", "42"),
        (r"\(42\)", "42"),
        ("{42}", "42"),
        ("42", r"$\boxed{42}$"),
        ("1,000", "1000"),
        (r"10{,}000", "10000"),
        (r"10\,000", "10000"),
        ("42.0", "42"),
        ("-0", "0"),
        ("\u22125", "-5"),
        (r"\text{even}", "even"),
        (r"\mathrm{ even }", "even"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\frac12", r"\tfrac{1}{2}"),
        (r"\frac1{72}", "1/72"),
        (r"\frac{3}4", "0.75"),
        (r"-\frac{1}{2}", "-0.5"),
        (r"\frac{-1}{2}", "-0.5"),
        ("1/3", "0.333333"),
        ("1e3", "1000"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"x + 1", "x+1"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"(1, \frac{1}{2})", "(1.0, 0.5)"),
        ("[0, 1)", "[0,1)"),
        ("1, 2, 3", "1,2,3"),
        (r"\{1, 2\}", r"\{1,2\}"),
        ("((1,2),3)", "((1, 2), 3)"),
        ("9" * 5000, "0" + "9" * 5000),
    ],
)
def test_strict_equal(answer, gold):
    assert equal(answer, gold)
    assert equal(answer, gold, lenient=True)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("41", "42"),
        ("", ""),
        ("1 = 5", "5"),
        ("41, 42", "42"),
        ("42 or 43", "42"),
        ("[0,1]", "[0,1)"),
        ("(1,234)", "(1234)"),
        ("(1,234)", "1234"),
        ("12,34", "1234"),
        ("1,2", "12"),
        ("2,1", "1,2"),
        ("9007199254740992", "9007199254740993"),
        ("9007199254740992.0", "9007199254740993"),
        ("0.0000015", "0.000001"),
        ("1e-7", "0"),
        ("1e401", "1e400"),
        ("inf", "1e400"),
        ("1/0", "0"),
        ("4_2", "42"),
        ("0x2a", "42"),
        ("\u0664\u0662", "42"),
        ("\uff14\uff12", "42"),
        ("4\u00b2", "42"),
        ("nan", "0"),
        ("X", "x"),
        (r"\pi", "3.14159265"),
        ("9" * 5000, "9" * 4999 + "8"),
        (r"\pi*0+open('f','w')", "0"),
    ],
)
def test_never_equal(answer, gold):
    assert not equal(answer, gold)
    assert not equal(answer, gold, lenient=True)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"50\%", "50"),
        ("50 percent", "50"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        (r"\$5", "5"),
        (r"10\text{ cm}", "10"),
        (r"15\mbox{ cm}^2", "15"),
        ("x = 5", "5"),
        (r"x \approx 0.5", "1/2"),
        (r"\text{(A)}", "A"),
        (r"2\frac{1}{2}", "5/2"),
        ("1 1/2", "3/2"),
        (r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
)
def test_lenient_only(answer, gold):
    assert not equal(answer, gold)
    assert equal(answer, gold, lenient=True)


def test_lenient_does_not_drop_a_factor_or_a_second_equation():
    assert not equal("2x", "2", lenient=True)
    assert not equal("x = 5, y = 6", "6", lenient=True)
    assert not equal("x = y = 5", "5", lenient=True)


def test_exponents_are_capped_before_a_number_is_built():
    assert parse_rational("1e308") == (10**308, 1)
    assert parse_rational("1e309") is None
    assert parse_rational("1e999999999") is None


def test_a_lost_final_message_is_no_answer_and_counts_as_truncated():
    verdict = grade(ANALYSIS + r"I think \boxed{42}", "42")
    assert (verdict.correct, verdict.answer, verdict.method, verdict.truncated) == (False, None, 0.0, True)


def test_grade_of_a_complete_response():
    verdict = grade(f"{ANALYSIS}six by seven{NEXT}{FINAL}" + r"It is \boxed{42}.<|return|>", "42")
    assert verdict == (True, True, "42", 2.0, True, True, False, True)


@pytest.mark.parametrize(
    ("response", "truncated"),
    [
        (r"so \boxed{42}", False),
        (r"so \boxed{42", True),
        ("we then multiply by", True),
        ("The answer is 42.", False),
        ("The answer is 42", False),
        ("word 1. " * 300, True),
        ("word 1. " * 300 + r"\boxed{1}.", False),
        ("", False),
    ],
)
def test_truncated(response, truncated):
    assert grade(response, "1").truncated is truncated


def test_boxed_in_final_looks_at_the_last_fifth():
    assert grade("a" * 90 + r"\boxed{1}", "1").boxed_in_final
    early = grade(r"\boxed{1}" + "a" * 90, "1")
    assert early.has_boxed and not early.boxed_in_final


@pytest.mark.parametrize("label", [None, "", "  ", "$$", r"\frac{1}{2", "{"])
def test_a_label_that_cannot_be_parsed_is_reported(label):
    verdict = grade(r"\boxed{1}", label)
    assert not verdict.label_valid and not verdict.correct


def test_response_of_a_prompt_that_was_cut_from_the_left():
    prompt = "few shot example, few shot example, question: " + r"\boxed{}?"
    assert response_of(prompt + " 42", prompt) == " 42"
    assert response_of(prompt[10:] + " 42", prompt) == " 42"


def test_response_of_a_query_without_its_prompt_is_an_error():
    with pytest.raises(ValueError, match="does not begin with its prompt"):
        response_of("something else", "the prompt that was sent")
    changed = r"<|start|>user<|message|>put it in \boxed{7} . <|end|><|start|>assistant" + FINAL + "8"
    assert response_of(changed, changed.replace(" .", ".").removesuffix(FINAL + "8")) == FINAL + "8"


FLOODS = {
    "open boxes": "\\boxed{" * 28_000,
    "dollars": "$" * 200_000,
    "braces": "{" * 200_000,
    "commas": "," * 200_000,
    "digits": "1" * 200_000,
    "pairs": "1," * 100_000,
    "fractions": "1/" * 100_000,
    "minus": "-" * 200_000,
    "spaces behind a box": "\\boxed" + " " * 200_000,
    "markers": FINAL * 7_500,
    "half markers": "<|" * 100_000,
    "spaces inside": "\\boxed{1" + " " * 9_000 + "x}",
    "nested braces": "\\boxed{" + "{" * 4_500 + "}" * 4_500 + "}",
    "nested tuples": "\\boxed{" + "(1," * 3_000 + "1" + ")" * 900 + "}",
    "text": "\\boxed{" + "\\text{" * 1_500 + "}" * 1_500 + "}",
    "percent": "\\boxed{" + "1 percent" * 1_000 + "}",
    "power tower": "\\boxed{9**9**9**9}",
    "factorial": "\\boxed{99999999!}",
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_are_graded_in_linear_time(name):
    """A quadratic step on any of these takes minutes; the bound leaves a slow machine fifty times the usual time."""
    start = time.process_time()
    for gold in ("42", "(1,2)", r"\text{x}"):
        assert not grade(FLOODS[name], gold).correct
    assert time.process_time() - start < 5


pieces = [*"0123456789.,/-+=(){}[]$\\ <|>xA%^_", "\\boxed{", "\\frac", "\\text{", "\\left", "{,}"]
latex = st.lists(st.sampled_from(pieces)).map("".join)


@given(latex)
def test_grading_never_raises(text):
    for gold in ("42", "(1,2)", text):
        grade(text, gold)


@given(latex)
def test_an_answer_equals_itself_and_its_normal_form(text):
    for lenient in (False, True):
        if normal := normalize(text, lenient):
            assert equal(text, text, lenient)
            assert normalize(normal, lenient) == normal


@given(st.integers(), st.integers())
def test_integers_compare_exactly(a, b):
    assert equal(str(a), str(b)) == (a == b)
    assert equal(f"{a:,}", str(b)) == (a == b)
    assert equal(rf"\boxed{{{a}}}", str(a))


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_fractions_are_exact(n, d):
    value = parse_rational(rf"\frac{{{n}}}{{{d}}}")
    assert Fraction(*value) == Fraction(n, d)
    assert equal(f"{n}/{d}", rf"\dfrac{{{n}}}{{{d}}}")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**6), max_value=10**6))
def test_decimals_are_exact(value):
    assert Fraction(*parse_rational(f"{value:f}")) == Fraction(value)


@given(st.text(), st.integers(0, 10**9))
def test_the_last_box_wins_whatever_precedes_it(text, number):
    if "<|" not in text and "assistantfinal" not in text and not text.startswith(("analysis", "commentary")):
        assert grade(text + rf" \boxed{{{number}}}", str(number)).correct


@given(latex, latex)
def test_response_of_gives_the_response_back(prompt, response):
    assert response_of(prompt + response, prompt) == response
