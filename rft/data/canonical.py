"""One canonical text for each problem, so that typography cannot hide a copy; its hash is the problem's identity."""

import hashlib
import re
import unicodedata

from rft.grading import normalize

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|big|bigl|bigr|Big|Bigl|Bigr)(?![A-Za-z])"
    r"|\\[!,;: ()\[\]]|\$|~"
)
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname)\b *")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_FORMULA = re.compile(r"(?<!\\)\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_OPERATOR = re.compile(r"[-+*/^!=<>|\\]")
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SPACES_AND_GROUPS = re.compile(r"[\s{}]+")
# No comma after a zero: "0,125" is a decimal fraction as much of the world writes it, and no integer.
_INTEGER = re.compile(r"([+-]?)((?:[1-9][0-9]{0,2}(?:,[0-9]{3})+)|[0-9]+)")


def canonical_words_text(problem: str) -> str:
    """`problem` in NFKC and lower case, without invisible characters and LaTeX that only lays out; words kept apart."""
    text = problem if problem.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", problem))
    if "\\" in text:
        text = _FRACTION.sub(r"\\frac", _WRAPPER.sub(" ", text))
    return _LAYOUT.sub(" ", text).lower()


def canonical_text(words_text: str) -> str:
    """The canonical text of a problem, from its `canonical_words_text`: no blanks, braces or final punctuation."""
    return _SPACES_AND_GROUPS.sub("", words_text).rstrip(".?!:;,")


def canonical_formulas(problem: str) -> str:
    """The canonical text of a problem's formulas alone, in order; "" unless they have a digit and an operator.

    `Simplify $\\sqrt{8}$.` and `What is $\\sqrt 8$?` have it in common; `$ABC$` or `$5$` would say nothing.
    """
    found = ("".join(groups) for groups in _FORMULA.findall(problem))
    text = " ".join(canonical_text(canonical_words_text(formula)) for formula in found)
    return text if _OPERATOR.search(text) and any(char.isdigit() for char in text) else ""


def content_hash(problem: str) -> str:
    """Identity of a problem: the first 16 hex digits of the sha256 of its canonical text.

    64 bits: two of a million different problems share a hash with probability 3e-8.
    """
    return hash_text(canonical_text(canonical_words_text(problem)))


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def words(words_text: str) -> list[str]:
    """The runs of letters and digits in a `canonical_words_text`: what n-grams are made of."""
    return _WORD.findall(words_text)


def numbers(words_text: str) -> list[str]:
    """The numbers of a problem, sorted: a variant of a problem with other numbers is another problem."""
    return sorted(_NUMBER.findall(words_text))


def priority(seed: int, identity: str) -> bytes:
    """A number that depends on `seed` and `identity` alone, 16 bytes. The smallest are a random sample by seed.

    Unlike a shuffled list, it gives the same sample for any order of the input, and a larger sample holds a smaller.
    """
    return hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:16]


def integer_label(answer: str) -> str | None:
    """`answer` as a plain integer, without sign of plus, commas or leading zeros; None where it is anything else."""
    found = _INTEGER.fullmatch(normalize(answer))
    if found is None:
        return None
    digits = found[2].replace(",", "").lstrip("0") or "0"
    return "-" + digits if found[1] == "-" and digits != "0" else digits
