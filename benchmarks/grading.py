"""How fast and how right is the grader? One core, a few seconds.

    .venv/bin/python -m benchmarks.grading [--cases tests/unit/grading_cases.jsonl]

Prints the median time of one `grade` call, both profiles, on responses of 2,000 characters; the seconds that floods of
200,000 characters take; and recall and false accepts on a file of cases, JSON lines of `kind`, `response`, `gold` and
`verdict` (`strict`: both profiles accept, `lenient`: only the lenient one, `wrong`: neither).
"""

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path

from rft.grading import grade

RESPONSE_CHARS = 2_000
FLOOD_CHARS = 200_000
N = range(3_000)
ANSWER_CHARS = 9_900
FINAL = "<|channel|>final<|message|>"
PROSE = "We multiply both sides by 3 and collect the terms of the sum, so that 12 remain. "
ENDINGS = {  # what ends the response, # being a number, and the label
    "right box": (r"So it is \boxed{#}.", "#"),
    "wrong box": (r"So it is \boxed{#}.", "-42"),
    "right fraction": (r"So it is \boxed{\dfrac{#}{3}}.", r"\frac{#}3"),
    "right decimal": (r"So it is \boxed{#.50}.", "#.5"),
    "no box": ("So it is #.", "#"),
    "no final message": ("", "#"),
    "wrong expression": (r"So it is \boxed{#\sqrt{3}+1}.", r"\frac{\sqrt{5}}{2}"),
}
FLOODS = {
    "open boxes": "\\boxed{",
    "complete boxes": "\\boxed{1}",
    "boxes and spaces": "\\boxed" + " " * 50,
    "boxes in boxes": "\\boxed{" * (FLOOD_CHARS // 8) + "}" * (FLOOD_CHARS // 8),
    "dollars": "$",
    "braces": "{",
    "commas": ",",
    "digits": "1",
    "pairs": "1,",
    "fractions": "1/",
    "latex fractions": "\\frac{1}{2}",
    "minus": "-",
    "letters and digits": "a1",
    "spaces": " ",
    "markers": FINAL,
    "half markers": "<|",
    "stripped markers": "assistantfinal",
    "thoughts": "<think>",
    "backslashes": "\\",
}
ANSWERS = {  # floods within one box, up to what counts as an answer
    "digits": "1",
    "spaces": "1 ",
    "tuples": "(1,2),",
    "nested tuples": "(1," * 2_000 + "1" + ")" * 2_000,
    "nested braces": "{" * 4_900 + "}" * 4_900,
    "nested sets": "\\{" * 2_400 + "\\}" * 2_400,
    "large set": "\\{" + "1,(2,x)," * 1_200 + "1\\}",
    "wrappers": "\\text{" * 1_400 + "}" * 1_400,
    "fractions": "\\frac{" * 1_600,
    "powers": "9^{" * 3_000,
    "roots": "\\sqrt{" * 1_600,
    "sums": "+x",
    "units": "1 cm ",
    "joined": "1 or ",
    "signs": "\\pm 1,",
    "relations": "1<",
    "matrix": "\\begin{pmatrix}" + "1&" * 4_000 + "\\end{pmatrix}",
    "short sums": "(" + "+".join(f"x^{{{i}}}" for i in range(45)) + ")",
    "short towers": "9^{9^{9^{9}}}+" * 15 + "9^{9^{9^{9}}}",
    "short roots": "+".join(f"\\sqrt[7]{{{i}x}}" for i in range(2, 20)),
    "short pairs": "\\{" + ",".join(f"x^{i}+{i}" for i in range(2, 26)) + ",(1,2)\\}",
    "spaced commas": "1, ",
}


def speeds() -> None:
    """Print the median microseconds of one `grade` call by the response's ending."""
    print(f"median of one call, response of {RESPONSE_CHARS:,} characters")
    head = f"<|channel|>analysis<|message|>{PROSE * 9}<|end|><|start|>assistant{FINAL}"
    for name, (ending, gold) in ENDINGS.items():
        start = head if ending else head.removesuffix(FINAL)
        text = start + (PROSE * 30)[: RESPONSE_CHARS - len(start) - len(ending) - 14] + ending
        # As in training: groups of eight samples for one label; a wrong answer is another one each time.
        text += "<|return|>" if ending else ""
        pairs = [(text.replace("#", str(n if "wrong" in name else n // 8)), gold.replace("#", str(n // 8))) for n in N]
        times = []
        for response, label in pairs:
            began = time.perf_counter_ns()
            grade(response, label)
            times.append(time.perf_counter_ns() - began)
        print(f"  {name:20} {statistics.median(times) / 1000:8.1f} us")


def repeated(unit: str, chars: int) -> str:
    """``unit`` again and again, cut at ``chars`` characters."""
    return (unit * (chars // len(unit) + 1))[:chars]


def flood_texts() -> list[tuple[str, str]]:
    """Names and responses: full responses of `FLOOD_CHARS`, and answers of `ANSWER_CHARS` within one box."""
    rows = [(name, repeated(unit, FLOOD_CHARS)) for name, unit in FLOODS.items()]
    for name, unit in ANSWERS.items():
        content = unit if len(unit) > 100 else repeated(unit, ANSWER_CHARS)
        rows.append((f"answer: {name}", f"\\boxed{{{content}}}"))
    return rows


def floods() -> None:
    """Print the CPU seconds of one `grade` call for each flood: the slowest label of three."""
    print(f"floods of {FLOOD_CHARS:,} characters, and of one answer of 10,000; slowest of three labels")
    worst = 0.0
    for name, text in flood_texts():
        seconds = 0.0
        for gold in ("42", r"\{(1,2),x\}", r"2\sqrt{3}"):
            start = time.process_time()
            grade(text, gold)
            seconds = max(seconds, time.process_time() - start)
        worst = max(worst, seconds)
        print(f"  {name:28} {seconds:8.4f} s")
    print(f"  {'slowest':28} {worst:8.4f} s")


def read_cases(path: Path) -> list[dict]:
    """Cases of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def verdicts(cases: list[dict]) -> dict[str, Counter]:
    """By kind: `right` and `wrong` cases, and how many of either each profile accepts."""
    counts: dict[str, Counter] = {}
    for case in cases:
        found = grade(case["response"], case["gold"])
        side = "wrong" if case["verdict"] == "wrong" else "right"
        for kind in (case["kind"], "all"):
            row = counts.setdefault(kind, Counter())
            row.update({side: 1, f"{side} strict": found.correct, f"{side} lenient": found.correct_lenient})
    return counts


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=Path("tests/unit/grading_cases.jsonl"))
    args = parser.parse_args()
    speeds()
    floods()
    print(
        f"{'kind':16} {'right':>6} {'strict':>7} {'lenient':>8} {'wrong':>6} {'strict':>7} {'lenient':>8}   (accepted)"
    )
    for kind, row in sorted(verdicts(read_cases(args.cases)).items(), key=lambda item: (item[0] == "all", item[0])):
        right, wrong = (f"{row[f'{side} strict']:7} {row[f'{side} lenient']:8}" for side in ("right", "wrong"))
        print(f"{kind:16} {row['right']:6} {right} {row['wrong']:6} {wrong}")


if __name__ == "__main__":
    main()
