"""The corpus: a passage a line, read as a stream, and by number through a table of places; never wholly in memory.

Rows are `{"id", "contents": '"title"\\ntext'}`, as those of wiki-18, or `{"title", "text"}` with or without `id`.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from rft.problems import is_text, parse_line, shorten


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of a text file, of `.gz` unpacked; ValueError where it cannot be read."""
    if not path.is_file():
        raise ValueError(f"found no file {path}, wanted a corpus as .jsonl or .jsonl.gz; correct the path")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield from enumerate(stream, 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: cannot be unpacked ({error}); fetch the file again") from None


def fields_of(line: bytes) -> tuple[str | None, str, str]:
    """Id (None where there is none), title and text of a line; ValueError says what of it is no passage."""
    row = parse_line(line)
    identifier = row.get("id")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int | None):
        raise ValueError(f"field 'id' is {shorten(identifier)}, wanted a string or a number; correct it")
    if "contents" in row:
        contents = row["contents"]
        if not isinstance(contents, str):
            raise ValueError(f"field 'contents' is {shorten(contents)}, wanted a title, a line end and a text")
        title, end, text = contents.partition("\n")
        title, text = (title, text) if end else ("", title)
        title = title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title
    elif "text" in row:
        title, text = row.get("title") or "", row["text"]
    else:
        raise ValueError(f"found fields {sorted(row)}, wanted 'id' and 'contents', or 'title' and 'text'; rename them")
    for name, value in (("title", title), ("text", text), ("id", "" if identifier is None else str(identifier))):
        if not isinstance(value, str) or not is_text(value):
            raise ValueError(f"field {name!r} is {shorten(value)}, wanted text; correct it or remove the row")
    return None if identifier is None else str(identifier), " ".join(title.splitlines()), text


def document_of(line: bytes, number: str) -> dict[str, str]:
    """A passage as the retriever answers with it: `id` (else `number`), `contents`, `title` and `text`, as they are.

    Control characters and lone surrogates stay; ValueError says what of the line is no passage.
    """
    row = parse_line(line)
    identifier, contents = row.get("id"), row.get("contents")
    if identifier is None:  # as `fields_of` has it
        identifier = number
    if contents is None:
        title, text = row.get("title") or "", row.get("text")
        contents = f'"{title}"\n{text}'
    elif isinstance(contents, str):
        title, end, text = contents.partition("\n")
        title, text = (title, text) if end else ("", title)
        title = title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title
    else:
        text = None
    is_id = isinstance(identifier, str | int) and not isinstance(identifier, bool)
    if not isinstance(text, str) or not isinstance(title, str) or not is_id:
        raise ValueError(f"found {shorten(row)}; wanted texts 'id' and 'contents', or 'title' and 'text'; correct it")
    if not text.strip() and not title.strip():
        raise ValueError("found neither title nor text, wanted some; remove the row")
    return {"id": str(identifier), "contents": contents, "title": title, "text": text}
