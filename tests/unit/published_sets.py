"""Made-up data sets in the forms of the hub's: columns, splits and file names, few and small problems."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NOUNS = ("apple", "brick", "candle", "drum", "engine", "flute", "goose", "hammer", "island", "jacket", "kettle", "lamp")
THINGS = ("lemon", "marble", "needle", "orchid", "pebble", "quill", "ribbon")
SUBJECTS = {"algebra": "Algebra", "number_theory": "Number Theory"}


def thing(i: int) -> str:
    return f"{THINGS[i % 7]} number {i * i + 7}"


GOOD = {
    "problem": "A farmer has 17 sheep and sells all but 9. How many sheep are left?",
    "solution": "All but nine are sold, so $\\boxed{9}$.",
    "answer": "9",
    "problem_type": "Algebra",
    "question_type": "math-word-problem",
    "problem_is_valid": "Yes",
    "solution_is_valid": "Yes",
    "source": "olympiads",
    "synthetic": False,
}


def numina(count: int) -> list[dict]:
    """Rows of NuminaMath-1.5 that pass every filter, all different."""
    text = "Every {a} costs {i} coins and each {b} costs twice that; how many coins buy one {a}, one {b} and a {c}?"
    return [
        GOOD
        | {
            "problem": text.format(i=i, a=NOUNS[i % 12], b=NOUNS[i // 12 % 12], c=NOUNS[i // 144 % 12]),
            "solution": f"We add: $\\boxed{{{3 * i}}}$.",
            "answer": str(3 * i),
        }
        for i in range(count)
    ]


def math(subject: str, count: int, level: str = "Level 5") -> list[dict]:
    return [
        {
            "problem": f"Solve {subject} of {thing(i)} today.",
            "level": level,
            "type": SUBJECTS[subject],
            "solution": f"It is $\\boxed{{{i}}}$.",
        }
        for i in range(count)
    ]


def gsm8k(count: int) -> list[dict]:
    return [
        {"question": f"Ann buys {thing(i)} for her aunt.", "answer": f"Count.\n#### 1,{i:03d}"} for i in range(count)
    ]


def aime_url(year: int, count: int = 15) -> list[dict]:
    wiki = "https://artofproblemsolving.com/wiki/index.php"
    return [
        {
            "id": i,
            "problem": f"In {year}, find how often {thing(year + i)} turns.",
            "solution": "See.",
            "answer": f"{i:03d}",
            "url": f"{wiki}/{year}_AIME_II_Problems/Problem_{i}",
        }
        for i in range(1, count + 1)
    ]


def aime_index(count: int = 30) -> list[dict]:
    return [
        {"problem_idx": i, "problem": f"How many {thing(3000 + i)} fit?", "answer": i, "problem_type": ["Algebra"]}
        for i in range(1, count + 1)
    ]


def write(path: Path, rows: list[dict]) -> Path:
    """Rows as Parquet or JSON lines, by the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_hub(folder: Path) -> Path:
    """Every repository that `rft.data.sets` names, below `folder`."""
    rows = numina(320)
    shard = "AI-MO/NuminaMath-1.5/data/train-0000{}-of-00002.parquet"
    write(folder / shard.format(0), rows[:200])
    write(folder / shard.format(1), rows[200:])
    for subject in SUBJECTS:
        math_set = folder / "EleutherAI" / "hendrycks_math" / subject
        write(math_set / "test-00000-of-00001.parquet", math(subject, 450))
        write(math_set / "train-00000-of-00001.parquet", math(subject, 3, "Level 1"))
    for split in ("main/test", "main/train", "socratic/test"):
        write(folder / "openai" / "gsm8k" / f"{split}-00000-of-00001.parquet", gsm8k(140))
    aime = {
        "MathArena/aime_2025": aime_index(),
        "HuggingFaceH4/aime_2024": aime_url(2024),
        "AI-MO/aimo-validation-aime": [*aime_url(2022), *aime_url(2023), *aime_url(2024)],
    }
    for repo, problems in aime.items():
        write(folder / repo / "data" / "train-00000-of-00001.parquet", problems)
        (folder / repo / "README.md").write_text("# a data set\n")
    return folder
