"""Lines of a page in a terminal of any width: parts go to the next line whole, and what is cut is marked as cut."""

import re

from rich.text import Text

INDENT = 2


def flow(parts: list[str | Text], width: int, style: str = "", gap: str = "  ", indent: int = INDENT) -> list[Text]:
    """The parts one behind the other, on as many lines as they need; those behind the first line are indented.

    A part that is longer than a line is broken between its words, and a word never.
    """
    lines = [Text(style=style)]
    for part in parts:
        piece = part if isinstance(part, Text) else Text(part)
        if not piece.plain:
            continue
        room = width - lines[-1].cell_len - (len(gap) if lines[-1].plain.strip() else 0)
        if piece.cell_len <= room:
            lines[-1].append(gap if lines[-1].plain.strip() else "").append_text(piece)
        elif piece.cell_len <= width - indent:
            lines.append(Text(" " * indent, style).append_text(piece))
        else:
            for place, word in enumerate(piece.split(" ")):
                between = (gap if not place else " ") if lines[-1].plain.strip() else ""
                if lines[-1].plain.strip() and lines[-1].cell_len + len(between) + word.cell_len > width:
                    lines.append(Text(" " * indent, style))
                    between = ""
                lines[-1].append(between).append_text(word)
    return [line for line in lines if line.plain.strip()]


def comma_parts(words: str) -> list[str]:
    """`a, b; c` as parts for `flow` with a blank between them, each with its comma."""
    return re.split(r"(?<=[,;]) ", words)


def cut(text: Text, width: int, plain: bool) -> Text:
    """A line of at most `width` columns; a mark at its end says that it was longer."""
    if text.cell_len > width:
        mark = ".." if plain else "…"
        text.truncate(max(0, width - len(mark)))
        text.append(mark)
    text.no_wrap, text.overflow = True, "crop"
    return text
