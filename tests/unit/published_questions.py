"""Made-up question sets in the forms of Search-R1, SkyRL and FlashRAG, with evaluated questions in training."""

from pathlib import Path

from published_sets import write

from rft.data.search.sets import REPO

# (set, split, question, answers)
ASKED = [
    ("nq", "train", "who built the old lighthouse of kelmar bay", ["Anna Torvald"]),
    ("nq", "train", "when was the harbour of brun opened", ["1901"]),
    ("nq", "train", "When was the harbour of Brun opened?", ["4 May 1901", "1901"]),  # asked again
    ("nq", "train", "what does the miller of hod keep in his left pocket", ["a key"]),
    ("hotpotqa", "train", "Are Tolva and Merrin both rivers?", ["yes"]),
    ("hotpotqa", "train", "Which river passes the town where the painter Ilse Varga was born?", ["Merrin"]),
    ("hotpotqa", "train", "Who is The?", ["The", "a"]),  # no answer that a grader can tell from none
    ("nq", "test", "who built the old lighthouse in kelmar bay", ["Anna Torvald", "A. Torvald"]),
    ("nq", "test", "What does the miller of Hod keep in his left pocket?", ["his watch"]),
    ("triviaqa", "test", "Which bird nests on the cliffs of Sarn?", ["puffin", "The Puffin"]),
    ("popqa", "test", "What is the capital of Orrin?", ["Brun"]),
    ("popqa", "test", "What is the capital of Orrin?", ["Hod"]),  # another Orrin
    ("hotpotqa", "dev", "Are Tolva and Kelmar both rivers?", ["no"]),
    ("2wikimultihopqa", "dev", "Who is the mother of the director of film Night of Sarn?", ["Ilse Varga"]),
    ("musique", "dev", "In which country is the birthplace of Anna Torvald?", ["Orrin"]),
    ("bamboogle", "test", "Who ruled Orrin when the harbour of Brun was opened?", ["Queen Hild"]),
]  # fmt: skip
COUNTS = {"search_train": 3, "nq": 2, "triviaqa": 1, "popqa": 1, "hotpotqa": 1, "2wikimultihopqa": 1, "musique": 1,
          "bamboogle": 1, "search_probe": 8}  # fmt: skip
COPIES = {"nq/train_0": ("near-duplicate", "nq/test_0"), "nq/train_3": ("exact", "nq/test_1")}


def rows(*splits: str) -> list[dict]:
    """Rows of FlashRAG's files: numbered by set and split."""
    made, counts = [], {}
    for name, split, question, answers in ASKED:
        number = counts[name, split] = counts.get((name, split), -1) + 1
        if split in splits:
            made.append({"set": name, "id": f"{split}_{number}", "question": question, "golden_answers": answers})
    return made


def flashrag(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "set"} | {"metadata": {"context": ["long"] * 3}}


def search_r1(row: dict) -> dict:
    """A row of Search-R1's Parquet files."""
    prompt = f"Answer the given question. For example, <answer> Beijing </answer>. Question: {row['question']}\n"
    return flashrag(row) | {
        "data_source": row["set"],
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": row["golden_answers"]}, "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    }


def skyrl(row: dict) -> dict:
    """A row of SkyRL's: no id, the question only in `extra_info`."""
    made = search_r1(row)
    source = f"searchR1_{row['set']}"
    return {
        "data_source": source,
        "prompt": made["prompt"],
        "ability": made["ability"],
        "env_class": "search",
        "reward_spec": made["reward_model"],
        "extra_info": {"index": 0, "need_tools_kwargs": True, "question": row["question"], "split": "train"},
        "metadata": None,
    }


def write_parquet(folder: Path, form=search_r1, held_out: str = "test.parquet") -> Path:
    """Both splits as one file each."""
    write(folder / "train.parquet", [form(row) for row in rows("train")])
    write(folder / held_out, [form(row) for row in rows("test", "dev")])
    return folder


def write_flashrag(folder: Path) -> Path:
    """A folder a set, a file a split; a dev split of a set that has test questions, and training of another set."""
    every = rows("train", "dev", "test")
    for name in {row["set"] for row in every}:
        for split in ("train", "dev", "test"):
            if chosen := [flashrag(row) for row in every if row["set"] == name and row["id"].startswith(split)]:
                write(folder / name / f"{split}.jsonl", chosen)
    write(
        folder / "nq" / "dev.jsonl", [{"id": "dev_0", "question": "what is in nobody's test?", "golden_answers": ["x"]}]
    )
    write(
        folder / "musique" / "train.jsonl", [{"id": "train_0", "question": "who trains here?", "golden_answers": ["x"]}]
    )
    return folder


def write_hub(folder: Path) -> Path:
    """The hub's repository."""
    write_parquet(folder / REPO)
    return folder
