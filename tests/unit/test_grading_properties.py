"""What holds of the grader for any text: it never raises, equality is exact, and no number states another one."""

import operator
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rft.grading import (
    equal,
    grade,
    normalize,
    parse_rational,
    response_of,
)
from rft.grading.expression import canonical

pieces = [*"0123456789.,;/-+=(){}[]$\\ <|>xA%^_&~e", "\u2212", "\u00b2", "{,}", "cm", " and ", "final", "analysis"]
pieces += ["\\boxed{", "\\frac", "\\frac{1}{", "\\text{", "\\left", "\\{", "\\}", "\\le ", "\\in ", "\\pm ", "\\pi"]
pieces += ["\\cup", "\\sqrt{", "\\sqrt[3]{", "\\begin{pmatrix}", "\\end{pmatrix}", "<|channel|>", "<|message|>"]
pieces += ["assistantfinal", "<|end|>", "<|start|>assistant"]
latex = st.lists(st.sampled_from(pieces)).map("".join)


@given(latex)
def test_grading_never_raises(text):
    for gold in ("42", "(1,2)", text):
        grade(text, gold)


@given(latex)
def test_an_answer_equals_itself_and_its_normal_form(text):
    text = text.replace("\\boxed", "")  # of a label, the last box counts
    if normal := normalize(text):
        assert normalize(normal) == normal
        assert equal(text, text) and equal(text, text, lenient=True)
        assert equal(normal, text) and equal(text, normal)


@given(latex, latex)
def test_the_lenient_profile_accepts_what_the_strict_one_accepts(answer, gold):
    assert equal(answer, gold, lenient=True) or not equal(answer, gold)
    assert equal(answer, gold) == equal(gold, answer) or "\\boxed" in answer + gold


@given(latex, st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_number_never_states_another_one(text, a, b):
    for answer in (f"{a}{text}", f"{text}{a}"):
        if equal(answer, str(a)) and a != b:
            assert not equal(answer, str(b))


@given(st.integers(), st.integers())
def test_integers_compare_exactly(a, b):
    assert equal(str(a), str(b)) == (a == b)
    assert equal(f"{a:,}", str(b)) == (a == b)
    assert equal(f"({a},{b})", f"({a}, {b})") and equal(f"({a},{b})", f"({b},{a})") == (a == b)
    assert equal(str(a), str(b), lenient=True) == (a == b)
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


letters = {"x": Fraction(7, 3), "y": Fraction(-5, 11)}
leaf = st.sampled_from(["1", "2", "3", "x", "y"])
tree = st.recursive(leaf, lambda t: st.tuples(st.sampled_from(["+", "-", "*", "frac", "^"]), t, t), max_leaves=4)


def written(node, mirrored: bool) -> str:
    """LaTeX of a tree; mirrored, with sums and products the other way round and quotients with a slash."""
    if isinstance(node, str):
        return node
    left, right = (written(child, mirrored) for child in node[1:])
    return {
        "+": f"({right}+{left})" if mirrored else f"({left}+{right})",
        "-": f"(-{right}+{left})" if mirrored else f"({left}-{right})",
        "*": f"({right})\\cdot({left})" if mirrored else f"({left})({right})",
        "frac": f"(({left})/({right}))" if mirrored else rf"\frac{{{left}}}{{{right}}}",
        "^": f"({left})^{{2}}" if mirrored else f"{{{left}}}^2",
    }[node[0]]


def value(node) -> Fraction:
    if isinstance(node, str):
        return letters.get(node) or Fraction(node)
    a, b = (value(child) for child in node[1:])
    operations = {"+": operator.add, "-": operator.sub, "*": operator.mul, "frac": operator.truediv}
    return a**2 if node[0] == "^" else operations[node[0]](a, b)


@given(tree, tree)
def test_expressions_that_are_accepted_are_equal(a, b):
    try:
        differ = value(a) != value(b)
    except ZeroDivisionError:
        return
    assert not (differ and equal(written(a, False), written(b, True), lenient=True))
    assert canonical(normalize(written(a, False))) == canonical(normalize(written(a, True))) is not None


@given(latex, latex)
def test_the_prompt_is_never_graded(prompt, response):
    """Whatever the prompt holds, the verdict is that of the response alone."""
    prompt += r"\boxed{42}<|start|>assistant"
    assert grade(response_of(prompt + response, prompt), "42") == grade(response, "42")
