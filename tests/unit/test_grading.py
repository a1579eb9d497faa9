"""Answer extraction, normalisation and comparison."""

import ast
import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rft.grading import (
    equal,
    extract_answer,
    final_message,
    grade,
    last_boxed,
    last_number,
    open_channel,
    parse_rational,
    response_of,
)

CASES = [json.loads(line) for line in Path(__file__).with_name("grading_cases.jsonl").read_text().splitlines()]
PACKAGE = Path(__file__).resolve().parents[2] / "rft" / "grading"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
HARMONY = "<|start|>user<|message|>q<|end|><|start|>assistant"


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
        (r"\boxed{41}, hence the final \boxed", None),
        ("\\boxed{41}, hence $\\boxed$.\n", None),
        (r"\boxed{42}, as \boxed asks", "42"),
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
        ("x-3", None),
        ("10{,}000", "10,000"),
        (r"is $-\frac{1}{2}$.", r"-\frac{1}{2}"),
        (r"$\frac{1+\sqrt{5}}{2}$", None),
        ("42, by eq2", "42"),
        ("4x", None),
        ("42cm", "42"),
        ("$(3,5)$", None),
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
        (r"\boxed{41}, hence the final \boxed", None, 0.0),
        ("41, hence the final \\boxed \n", None, 0.0),
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
        ("analysis a assistantfinal b assistantanalysis c", " b "),
        ("analysis a assistantfinal b assistantfinal c", " c"),
        ("<think>a</think> b", " b"),
        ("a</think> b<|im_end|>", " b<|im_end|>"),
        ("a</think> b<|endoftext|>", " b"),
        ("<think>a", None),
        ("So let me see how this can be worked out now. <think>a", None),
        ("<think>a</think> b <think>c", None),
        (f"{FINAL}<think>a<|return|>", None),
        (f"{FINAL}<think>a</think>b<|return|>", "b"),
        ("analysis a assistantfinal <think> b", None),
        (" \nanalysis a", None),
        ("analysis a<|return|>", None),
        ("analysis a assistantfinal b<|return|>", " b"),
        ("", ""),
    ],
)
def test_only_the_last_final_message_counts(response, text):
    assert final_message(response)[0] == text


@pytest.mark.parametrize(
    ("prompt", "channel", "response", "text"),
    [
        (HARMONY, "", f"{FINAL}a", "a"),
        (HARMONY, "", f"{FINAL}a<|return|>", "a"),
        (HARMONY, "", f"{ANALYSIS}x{NEXT}{FINAL}a<|return|>", "a"),
        (HARMONY, "", f"{ANALYSIS}a<|return|>", None),
        (HARMONY, "", "a", None),
        (HARMONY, "", "a<|return|>", None),
        (HARMONY, "", "", None),
        (HARMONY, "", f"a{FINAL}b<|return|>", None),
        (HARMONY, "", "analysis a", None),
        (HARMONY, "", "\n analysis a", None),
        (HARMONY, "", "\n analysisxassistantfinala", "a"),
        (HARMONY, "", "analysisxassistantfinala<|return|>", "a"),
        (HARMONY, "", "final42", "42"),
        (HARMONY, "", "finally 42", None),
        (HARMONY, "", "final answer 42", None),
        (HARMONY + "\n", "", "a", None),
        (HARMONY + "<|channel|>final", "", "a", None),
        ("<|im_start|>assistant\n", None, "a", "a"),
        ("<|im_start|>assistant\n<think>", "think", "a", None),
        ("<|im_start|>assistant\n<think>\n", "think", "a</think>b", "b"),
        ("<|im_start|>assistant\n<think>\n", "think", "a</think>b<|endoftext|>", "b"),
        ("<|im_start|>assistant\n<think>\n", "think", "a</think>b<think>c", None),
        ("<|im_start|>assistant\n<think>\n", "think", f"{FINAL}a<|return|>", None),
        ("<|im_start|>assistant\n<think>\n\n</think>\n", None, "a", "a"),
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}-{case['response'][:30]}-{case['gold'][:20]}")
def test_public_cases(case):
    found = grade(case["response"], case["gold"])
    wanted = {"strict": (True, True), "lenient": (False, True), "wrong": (False, False)}[case["verdict"]]
    assert (found.correct, found.correct_lenient) == wanted


def test_recall_and_false_accepts_on_the_public_cases():
    """The string graders measured in docs/grading.md find at most 0.69 of all answers and 0.90 of the easy ones."""
    easy = ("integer", "decimal", "fraction", "percent", "units", "text")
    count = Counter()
    for case in CASES:
        found = grade(case["response"], case["gold"])
        side = "wrong" if case["verdict"] == "wrong" else "easy" if case["kind"] in easy else "other"
        count.update({side: 1, f"{side} strict": found.correct, f"{side} lenient": found.correct_lenient})
    assert count["wrong"] > 150 and count["wrong strict"] == count["wrong lenient"] == 0
    assert (count["easy strict"] + count["other strict"]) / (count["easy"] + count["other"]) > 0.52
    assert count["easy lenient"] / count["easy"] > 0.90
    assert (count["easy lenient"] + count["other lenient"]) / (count["easy"] + count["other"]) > 0.69


@pytest.mark.parametrize("unit", ["cm", r"\text{ dogs}", r"\%", r"^\circ", r"\text{ cm}^2", " apples"])
@pytest.mark.parametrize("other", [" km", r"\text{ cats}", r"\text{ million}", r"\text{ cm}^3"])
def test_lenient_never_drops_two_different_units(unit, other):
    assert equal(f"5{unit}", "5", lenient=True)
    assert not equal(f"5{unit}", f"5{other}", lenient=True)


def test_the_problem_restated_is_no_strict_answer():
    assert not equal(r"17\cdot 23", "391")
    assert not equal(r"\sqrt{50}", r"5\sqrt{2}")
    assert not equal("(x+1)^2", "x^2+2x+1")


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


@pytest.mark.parametrize("label", [None, "", "  ", "$$", r"\frac{1}{2", "{", "proof", "notfound", r"\boxed{}", "nan"])
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


def test_floods_are_graded_in_linear_time():
    """Floods of `benchmarks.grading`; a quadratic step takes minutes, a slow machine has fifty times the usual time."""
    from benchmarks.grading import FLOODS, flood_texts

    for name, text in flood_texts():
        start = time.process_time()
        for gold in ("42", r"\{(1,2),x\}", r"2\sqrt{3}"):
            assert not grade(text, gold).correct or name in FLOODS
        assert time.process_time() - start < 5, name


def test_large_numbers_are_never_built():
    for answer in ("9^{9^{9^{9}}}", "99999999!", "9**9**9", "1e999999999", "10^{999}", "2^{" + "9" * 30 + "}"):
        start = time.process_time()
        assert not grade(rf"\boxed{{{answer}}}", "42").correct_lenient
        assert time.process_time() - start < 1


def test_the_package_imports_the_standard_library_only():
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            banned = ("threading", "signal", "subprocess", "multiprocessing", "random", "time")
            assert all(name.split(".")[0] in sys.stdlib_module_names and name not in banned for name in names), path
