"""Grade short answers to questions of fact by exact match, and read the labels of such questions.

The normal form is that of SQuAD's evaluation script (Rajpurkar et al. 2016, arXiv 1606.05250), which Search-R1
(arXiv 2503.09516) and most retrieval work use, in its order: lower case, no ASCII punctuation, no articles, single
spaces. Of Unicode nothing else is folded, neither accents nor wide digits, curly quotes or composed forms, so that
results can be set beside published ones. What of a response is its answer, `rft.agents` decides.

A label is a JSON string, `{"kind": "search", "answers": ["Paris", …]}`: lists of mixed types break Arrow's schemas.
"""

import json
import re
import string
from collections.abc import Iterable
from functools import lru_cache

KIND = "search"
MAX_CHARS = 10_000  # a longer answer is not an answer
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """The normal form of an answer; equal forms are equal answers."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def is_exact(answer: str | None, answers: Iterable[str]) -> bool:
    """Whether an answer is one of the accepted ones in normal form.

    No answer, one of more than 10,000 characters, or one of which nothing is left is none of them: an accepted `The
    The` has an empty form too, and silence must not be right.
    """
    if answer is None or len(answer) > MAX_CHARS:
        return False
    form = normalized(answer)
    return bool(form) and any(form == normalized(each) for each in answers)


def is_search_label(text: object) -> bool:
    """Whether a label is meant as one of a question of fact: a JSON object of kind `search`, sound or not."""
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return False
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("kind") == KIND


@lru_cache(maxsize=4096)  # a label comes back for every sample of its group
def answers_of(text: str) -> tuple[str, ...]:
    """The accepted answers that a label states.

    Raises:
        ValueError: it is no such label, or one of its answers could never be given.
    """
    try:
        fields = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"found the label {_shown(text)}, wanted JSON ({error})") from None
    if not isinstance(fields, dict) or fields.get("kind") != KIND or fields.keys() != {"kind", "answers"}:
        raise ValueError(f'found the label {_shown(text)}, wanted {{"kind": "{KIND}", "answers": ["…"]}}')
    answers = fields["answers"]
    if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
        raise ValueError(f"found {_shown(answers)} as answers of a label, wanted a list of one or more texts")
    if hopeless := [each for each in answers if not is_exact(each, [each]) or _SURROGATE.search(each)]:
        raise ValueError(
            f"found {_shown(hopeless[0])} as an answer of a label, wanted one of more than articles and punctuation, "
            f"of {MAX_CHARS} characters at most, without lone surrogates: nothing else can be right"
        )
    return tuple(answers)


def label_of(answers: Iterable[str]) -> str:
    """The label of a question with these accepted answers. Raises ValueError as `answers_of`."""
    text = json.dumps({"kind": KIND, "answers": list(answers)}, ensure_ascii=False)
    answers_of(text)
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
