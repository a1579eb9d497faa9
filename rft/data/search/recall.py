"""Whether the answers to questions occur in a corpus at all: no retriever can find what is not there."""

from collections.abc import Iterable
from typing import NamedTuple

from rft.data.search.copies import SAY_NOTHING
from rft.data.search.questions import Question
from rft.grading.short_answer import normalized

END = ""  # key of what ends at a node; no word is empty


class Found(NamedTuple):
    """Of one evaluation set."""

    name: str
    questions: int  # with an answer other than yes and no
    found: int  # of them, some answer of which is in the corpus
    missing: list[str]  # ids of the others


class Recall:
    """Answers as sequences of normalised words, and which of them passages have had so far.

    An answer occurs where its words stand in a row in the title and text, both as the grader normalises them: letter
    case, punctuation, articles and layout do not count. What occurs need not answer the question: the share of
    questions is an upper bound of what retrieval can find.
    """

    def __init__(self, sets: dict[str, Iterable[Question]]):
        self.trie: dict = {}
        self.sets: dict[str, dict[str, list[dict]]] = {}
        for name, questions in sets.items():
            self.sets[name] = {q.id: nodes for q in questions if (nodes := self._nodes(q))}

    def _nodes(self, question: Question) -> list[dict]:
        """The ends of a question's answers in the trie."""
        ends = []
        for answer in sorted({*map(normalized, question.answers)} - SAY_NOTHING - {""}):
            node = self.trie
            for word in answer.split():
                node = node.setdefault(word, {})
            node.setdefault(END, False)
            ends.append(node)
        return ends

    def read(self, text: str) -> None:
        """Note the answers in one passage. Tens of microseconds for a hundred words."""
        words, trie = normalized(text).split(), self.trie
        for place, word in enumerate(words):
            node = trie.get(word)
            while node is not None:
                if END in node:
                    node[END] = True
                place += 1
                node = node.get(words[place]) if place < len(words) else None

    def found(self) -> list[Found]:
        """What the passages read so far have, by set."""
        made = []
        for name, questions in self.sets.items():
            missing = [each for each, ends in questions.items() if not any(end[END] for end in ends)]
            made.append(Found(name, len(questions), len(questions) - len(missing), missing))
        return made
