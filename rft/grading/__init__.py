"""Grade math responses by exact match: extraction, normalisation, comparison. Standard library only.

Every function is pure and deterministic, and linear in a response's length (what is not, a set's matching and an
expression's value, is capped in size): no model text is evaluated, no thread, signal or subprocess is used, so a reward
can run in any thread of any Ray worker. docs/grading.md lists the rules.
"""

from .compare import equal
from .extract import Extraction, extract_answer, final_message, last_boxed, open_channel, response_of
from .grade import Grade, grade
from .normalize import normalize
from .number import last_number
from .rational import parse_rational

__all__ = [
    "Extraction",
    "Grade",
    "equal",
    "extract_answer",
    "final_message",
    "grade",
    "last_boxed",
    "last_number",
    "normalize",
    "open_channel",
    "parse_rational",
    "response_of",
]
