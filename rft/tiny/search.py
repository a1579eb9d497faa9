"""Invented people, each with one fact that only a corpus holds: `Where does Balo Kordun live?`

The tiny search task. Conversations for the warm start come in two styles, see `worked_turns`; the answers are graded by
exact match, as those of a search run. A small model reads by position: names and answers are one token each, and every
passage has one layout.
"""

import itertools
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rft.agents import tags
from rft.grading.short_answer import KIND as SEARCH
from rft.retriever.client import Passage
from rft.tiny.task import STYLES, read_labelled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIZES = {"warm": 1088, "train": 256, "heldout": 256}  # people: the corpus knows those of train and heldout
ENDINGS = {"given": ("lo", "mi", "na", "ru", "sk"), "family": ("dun", "ga", "mer", "pith", "xo")}
GIVEN = tuple(a + b for a in ("Ba", "De", "Fi", "Go", "Lu", "Ma", "Ri", "To") for b in ENDINGS["given"])
FAMILY = tuple(a + b for a in ("Kor", "Vel", "Zan", "Pir", "Hul", "Wes", "Yar", "Jon") for b in ENDINGS["family"])
ANSWERS = {
    "towns": "Abaro Cebit Ektan Ibur Nolva Obrek Quint Sarle Tivon Ulmo Vasko Wendel Xanti Yolk Zuria Omsa",
    "goods": "apples bells candles drums eggs figs grapes honey ink jars kites lamps maps nails ovens pens",
    "tools": "axe broom chisel drill easel file gauge hammer iron jack knife ladder mallet needle oar plough",
}
TOWNS, GOODS, TOOLS = (tuple(words.split()) for words in ANSWERS.values())
SOURCE = "invented_people"


class Kind(NamedTuple):
    """A kind of fact: its question and sentence without the name, and what the answer may be."""

    ask: str
    verb: str
    tells: str
    answers: tuple[str, ...]


# One number of tokens each, in questions and in sentences.
KINDS = (
    Kind("Where", "live", "lives in", TOWNS),
    Kind("What", "sell", "sells only", GOODS),
    Kind("What", "need", "needs one", TOOLS),
)
QUESTION = re.compile(r"(\w+) does (\w+) (\w+) (\w+)\?")


class Fact(NamedTuple):
    """Who, and what kind of fact. All else follows from these."""

    given: str
    family: str
    kind: Kind

    @property
    def name(self) -> str:
        return f"{self.given} {self.family}"

    @property
    def question(self) -> str:
        return f"{self.kind.ask} does {self.name} {self.kind.verb}?"

    @property
    def answer(self) -> str:
        """Drawn for the name: nothing in the question tells it."""
        return random.Random(self.question).choice(self.kind.answers)

    @property
    def passage(self) -> Passage:
        identifier = self.name.replace(" ", "_").lower()
        return Passage(identifier, self.name, f"{self.name} {self.kind.tells} {self.answer}", None)


def fact_of(question: str) -> Fact:
    """The fact that a question asks for. Raises ValueError for any other text."""
    found = QUESTION.fullmatch(question)
    kinds = [kind for kind in KINDS if found and (found[1], found[4]) == (kind.ask, kind.verb)]
    if not kinds or found[2] not in GIVEN or found[3] not in FAMILY:
        raise ValueError(f"found {question!r}, wanted {Fact(GIVEN[0], FAMILY[0], KINDS[0]).question!r} or the like")
    return Fact(found[2], found[3], kinds[0])


def problem_of(fact: Fact) -> dict:
    """The problem as `openrlhf.cli.train_ppo_ray` reads it."""
    return {
        "input": [{"role": "user", "content": fact.question}],
        "label": json.dumps({"kind": SEARCH, "answers": [fact.answer]}),
        "id": f"{SOURCE}/{fact.passage.id}",
        "datasource": SOURCE,
    }


def make_splits(seed: int = 0, sizes: dict[str, int] = SIZES) -> dict[str, list[dict]]:
    """Sets of problems, deterministic by seed, no person in two of them: for each name in `sizes`, that many.

    Raises ValueError for sizes that do not fit the people.
    """
    people = list(itertools.product(GIVEN, FAMILY))
    if min(sizes.values()) < 1 or sum(sizes.values()) > len(people):
        raise ValueError(f"found sizes {sizes}, wanted at least 1 each and at most {len(people)} in all")
    random.Random(seed).shuffle(people)
    kinds = itertools.cycle(KINDS)
    pool = (Fact(*person, next(kinds)) for person in people)
    return {name: [problem_of(next(pool)) for _ in range(size)] for name, size in sizes.items()}


def corpus(problems: Iterable[dict]) -> list[dict]:
    """The passages that answer some problems, one each, as rows of a retriever's corpus."""
    passages = [fact_of(problem["input"][-1]["content"]).passage for problem in problems]
    return [{"id": one.id, "contents": f'"{one.title}"\n{one.text}'} for one in passages]


def worked_turns(problem: dict, style: str) -> tuple[str | Passage, ...]:
    """What the model writes, and between two turns the passage that it finds.

    "careful" searches for the whole name. "careless" does so for towns only: for goods it searches for the given name,
    which many have, and takes what it finds; for tools it guesses. The warm start teaches both, so that GRPO has a
    better habit to find.
    """
    if style not in STYLES:
        raise ValueError(f"found style {style!r}, wanted one of {STYLES}")
    fact = fact_of(problem["input"][-1]["content"])
    draw = random.Random(f"{style} {fact.question}")
    opening = "<|channel|>analysis<|message|>"
    # The blank before each word: here as in questions and passages, so that copying is from a token to the same token.
    if style == "careless" and fact.kind.answers is TOOLS:
        return (f"{opening}<answer> {draw.choice(TOOLS)}</answer>",)
    query, found = fact.name, fact
    if style == "careless" and fact.kind.answers is GOODS:
        query, found = fact.given, Fact(fact.given, draw.choice(FAMILY), draw.choice(KINDS))
    return f"{opening}<search> {query}</search>", found.passage, f"<answer> {found.answer}</answer>"


def worked_tokens(tokenizer: "PreTrainedTokenizerBase", problem: dict, style: str) -> tuple[list[int], list[bool]]:
    """Ids of a worked conversation after its prompt, and which of them the model writes; the others are observed."""
    tokens, sampled, before = [], [], ""
    for part in worked_turns(problem, style):
        if isinstance(part, str):
            ids, before = tokenizer(part, add_special_tokens=False)["input_ids"], part
        else:
            ids = tags.observation([part], note=None, after=before, limit=OBSERVATION, tokenizer=tokenizer).tokens
        tokens += ids
        sampled += [isinstance(part, str)] * len(ids)
    return tokens, sampled


OBSERVATION = 128  # tokens that an observation may have; a passage takes 22, a usual note 70
# What the tokenizer has a token for, besides the texts of the other tasks.
TEXTS = (
    *(f" {word}" for word in (*GIVEN, *FAMILY, *TOWNS, *GOODS, *TOOLS)),
    *(Fact(GIVEN[0], FAMILY[0], kind).question for kind in KINDS),
    *(f" {kind.tells}" for kind in KINDS),
    "\n\n<information>Doc 1(Title: ) </information>\n\n<search></search><answer></answer>",
    f"{tags.invalid(tags.parse('nothing').text)} {tags.LAST_TURN}",
)


def read_split(path: Path) -> list[dict]:
    """`rft.tiny.task.read_labelled` of one file of `data/prepare_arithmetic.py --task search`."""

    def expected(problem: dict) -> tuple[str, str]:
        return problem_of(fact_of(problem["input"][-1]["content"]))["label"], "that of its text"

    return read_labelled(path, ".venv/bin/python data/prepare_arithmetic.py --task search --out DIR", expected)
