"""Which prompts a run trains on, and in which order: pass-rate bands, order files, weighted mixtures."""

import json
import math
from pathlib import Path
from typing import NamedTuple

from rft import __version__
from rft.code import labels
from rft.data.canonical import content_hash, priority
from rft.data.check import check_file
from rft.data.row_files import input_identity, read_rows, require_apart, write_rows, written_together
from rft.grading import equal
from rft.grading.short_answer import answers_of, is_search_label, normalized
from rft.problems import problem_text, shorten

ORDERS = ("file", "random", "easy-first", "hard-first")


class Part(NamedTuple):
    """A dataset of a mixture and its weight."""

    path: Path
    weight: float


def make_curriculum(
    parts: list[Part],
    rates: Path | None,
    band: tuple[float, float],
    order: str,
    size: int | None,
    seed: int,
    out: Path,
) -> dict:
    """Write the chosen prompts to `out`, their ids to `<out>.order.txt`, and `<out>.manifest.json`.

    Args:
        parts: JSONL files with an `id` in each row; every prompt is used once at most. Of a problem that two files
            have, the copy in the later one is left out, and counted.
        rates: pass rates, as `data/estimate_pass_rates.py` writes them; None where neither band nor order needs them.
        band: lowest and highest pass rate kept, both inclusive.
        order: one of `ORDERS`, or the path of an order file: one id a line, of any part. Its order is that of the
            output, so nothing is mixed and weights must be equal; prompts that it lacks are left out.
        size: prompts in all; None for as many as the weights allow.
        seed: of the order `random`.

    Returns:
        The manifest.

    Raises:
        ValueError: bad input, an id without a pass rate, or too few prompts. Nothing has been written then.
    """
    names = [out.name, f"{out.name}.order.txt", f"{out.name}.manifest.json"]
    others = [*([rates] if rates else []), *([] if order in ORDERS else [Path(order)])]
    require_apart([out.with_name(name) for name in names], [*(part.path for part in parts), *others])
    by_id = read_rates(rates) if rates else None
    datasets = [read_dataset(part.path) for part in parts]
    require_mixable(parts, datasets)
    unique = without_copies(parts, datasets)
    listed = None if order in ORDERS else read_listed(Path(order), parts, datasets, unique)
    chosen = []
    for part, rows in zip(parts, unique, strict=True):
        kept = rows if by_id is None else in_band(rows, by_id, band, part.path)
        chosen.append(arrange(kept, by_id, order, seed) if listed is None else [r for r in kept if r["id"] in listed])
    if listed is None:
        mixed = mix(chosen, [part.weight for part in parts], size, [str(part.path) for part in parts])
    else:
        mixed = in_listed_order(chosen, listed, size, order)
    with written_together(out.parent, names) as paths:
        manifest = {
            "settings": {"band": band if rates else None, "order": Path(order).name, "size": size, "seed": seed},
            "versions": {"rft": __version__},
            "pass_rates": input_identity(rates) if rates else None,
            "order_file": input_identity(Path(order)) if listed else None,
            "parts": [
                {
                    **input_identity(part.path),
                    "weight": part.weight,
                    "rows": len(rows),
                    "copies": len(rows) - len(own),
                    "eligible": len(kept),
                }
                for part, rows, own, kept in zip(parts, datasets, unique, chosen, strict=True)
            ],
            "files": {out.name: write_rows(paths[out.name], mixed)},
        }
        paths[names[1]].write_text("".join(f"{row['id']}\n" for row in mixed), encoding="utf-8")
        paths[names[2]].write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def read_dataset(path: Path) -> list[dict]:
    """Rows of a checked problem file, with the fields that every part of a mixture has.

    Raises:
        ValueError: the first fault that `check_file` finds, or a row without an id.
    """
    faults, _ = check_file(path)
    if faults:
        raise ValueError(f"{faults[0]}{f' (and {len(faults) - 1} more faults)' if len(faults) > 1 else ''}")
    rows = []
    for number, row in read_rows(path):
        if "id" not in row:
            raise ValueError(f"{path}, line {number}: field 'id' is missing, wanted one in each row; add them")
        source = row.get("datasource", path.stem)
        rows.append({"input": row["input"], "label": row["label"], "id": row["id"], "datasource": source})
    return rows


def require_mixable(parts: list[Part], datasets: list[list[dict]]) -> None:
    """Raise ValueError for a weight that is no share, an id in two parts, or text prompts beside chat messages."""
    seen, first = {}, type(datasets[0][0]["input"])
    for part, rows in zip(parts, datasets, strict=True):
        if not (part.weight > 0 and math.isfinite(part.weight)):
            raise ValueError(f"{part.path}: found weight {part.weight}, wanted a positive number; correct --dataset")
        if type(rows[0]["input"]) is not first:
            raise ValueError(
                f"found text as input in one of {[str(p.path) for p in parts]} and chat messages in another, "
                "wanted one form; convert one of the files"
            )
        for row in rows:
            if seen.setdefault(row["id"], part.path) is not part.path:
                raise ValueError(f"found id {row['id']!r} in {seen[row['id']]} and {part.path}, wanted it in one only")


def without_copies(parts: list[Part], datasets: list[list[dict]]) -> list[list[dict]]:
    """The rows of each part without problems that an earlier part has: published sets share problems under two ids.

    Raises:
        ValueError: the copies state different answers, so that one of the two must be wrong.
    """
    first, unique = {}, []
    for part, rows in zip(parts, datasets, strict=True):
        own = []
        for row in rows:
            earlier, path = first.setdefault(content_hash(problem_text(row)), (row, part.path))
            if earlier is row:
                own.append(row)
            elif not same_label(row["label"], earlier["label"]):
                raise ValueError(
                    f"found one problem with label {shorten(earlier['label'])} as id {earlier['id']!r} in {path}, and "
                    f"with {shorten(row['label'])} as id {row['id']!r} in {part.path}; wanted one answer; remove one"
                )
        unique.append(own)
    return unique


def same_label(one: str, other: str) -> bool:
    """Whether two labels state one answer, or the same tests; of questions, whether some answer is in both."""
    if is_search_label(one) and is_search_label(other):
        return not {*map(normalized, answers_of(one))}.isdisjoint(map(normalized, answers_of(other)))
    if labels.is_code_label(one) and labels.is_code_label(other):
        return labels.parse(one) == labels.parse(other)
    return equal(one, other)


def read_rates(path: Path) -> dict[str, float]:
    """Pass rate by id, from JSON lines with `id` and `pass_rate`."""
    rates = {}
    for number, row in read_rows(path):
        name, rate = row.get("id"), row.get("pass_rate")
        if not isinstance(name, str) or name in rates:
            raise ValueError(f"{path}, line {number}: field 'id' is {shorten(name)}, wanted a string, each once")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise ValueError(f"{path}, line {number}: field 'pass_rate' is {shorten(rate)}, wanted 0 to 1")
        rates[name] = rate
    return rates


def read_listed(path: Path, parts: list[Part], datasets: list[list[dict]], unique: list[list[dict]]) -> dict[str, int]:
    """The ids of an order file (see `read_order`), each with its line.

    Raises:
        ValueError: weights that differ, or an id of a copy that `without_copies` left out.
    """
    listed = read_order(path, {row["id"] for rows in datasets for row in rows})
    if len({part.weight for part in parts}) > 1:
        raise ValueError(
            f"found weights {[part.weight for part in parts]} beside the order file {path}, which alone sets the "
            "order; wanted equal ones; remove =WEIGHT from --dataset"
        )
    left = {row["id"] for rows in unique for row in rows}
    for name, line in listed.items():
        if name not in left:
            raise ValueError(
                f"{path}, line {line}: found id {name!r}, whose problem an earlier --dataset has under another id; "
                "wanted each problem once; put that id here"
            )
    return listed


def read_order(path: Path, known: set[str]) -> dict[str, int]:
    """Ids of an order file, one a line, each with its line, in order; blank lines are skipped.

    Raises:
        ValueError: an id that is not among `known`, or that is listed twice, with its line.
    """
    if not path.is_file():
        raise ValueError(f"found no order file {path}; wanted one of {', '.join(ORDERS)}, or a file of ids, one a line")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}, wanted ids as text; make the file again") from None
    listed = {}
    for number, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            continue
        if name not in known:
            raise ValueError(f"{path}, line {number}: found id {name!r}, wanted one of the datasets; remove the line")
        if name in listed:
            raise ValueError(
                f"{path}, line {number}: found id {name!r}, which line {listed[name]} has too; remove one of the two"
            )
        listed[name] = number
    if not listed:
        raise ValueError(f"{path}: found no ids, wanted one a line; make the file again")
    return listed


def in_band(rows: list[dict], rates: dict[str, float], band: tuple[float, float], path: Path) -> list[dict]:
    """Rows whose pass rate is in `band`. A group of samples that all pass, or all fail, has no advantage to learn
    from, so the usual bands are within 0.1 to 0.9."""
    low, high = band
    if not 0 <= low <= high <= 1:
        raise ValueError(f"found --band {low} {high}, wanted 0 <= LOW <= HIGH <= 1; correct it")
    missing = [row["id"] for row in rows if row["id"] not in rates]
    if missing:
        raise ValueError(
            f"{path}: found {len(missing)} of {len(rows)} problems without a pass rate, {missing[0]!r} first; "
            "wanted one for each; run data/estimate_pass_rates.py on this file"
        )
    return [row for row in rows if low <= rates[row["id"]] <= high]


def in_listed_order(chosen: list[list[dict]], listed: dict[str, int], size: int | None, order: str) -> list[dict]:
    """Rows of all parts in the order of the listed ids, the first `size` of them.

    Raises:
        ValueError: fewer rows than `size`, or none.
    """
    rows = sorted((row for part in chosen for row in part), key=lambda row: listed[row["id"]])
    if len(rows) < (size or 1):
        raise ValueError(
            f"{order}: found {len(rows)} listed prompts that pass, wanted {size or 'at least 1'}; "
            "pass a smaller --size, a wider --band or more ids"
        )
    return rows[:size]


def arrange(rows: list[dict], rates: dict[str, float] | None, order: str, seed: int) -> list[dict]:
    """Rows in the wanted order, one of `ORDERS`. Equal pass rates are in random order, by seed."""
    if order == "file":
        return rows
    shuffled = sorted(rows, key=lambda row: priority(seed, row["id"]))
    if order == "random":
        return shuffled
    if rates is None:
        raise ValueError(f"found --order {order} without pass rates, wanted them; pass --pass-rates FILE")
    return sorted(shuffled, key=lambda row: rates[row["id"]], reverse=order == "easy-first")


def mix(parts: list[list[dict]], weights: list[float], size: int | None, names: list[str]) -> list[dict]:
    """Interleave the parts, each in its order, so that any beginning holds them in proportion to the weights.

    Without `size`, stops where the next prompt is wanted from a part that is used up: no prompt comes twice.

    Raises:
        ValueError: a part has fewer prompts than `size` asks of it, or nothing is left.
    """
    total, taken, mixed = sum(weights), [0] * len(parts), []
    while size is None or len(mixed) < size:
        due = [weight / total * (len(mixed) + 1) - count for weight, count in zip(weights, taken, strict=True)]
        part = max(range(len(parts)), key=lambda i: (due[i], -i))
        if taken[part] == len(parts[part]):
            if size is None and mixed:
                break
            raise ValueError(
                f"{names[part]}: found {len(parts[part])} prompts that pass, wanted about "
                f"{math.ceil((size or 1) * weights[part] / total)} for the mixture; pass a smaller --size, "
                "a wider --band or other weights"
            )
        mixed.append(parts[part][taken[part]])
        taken[part] += 1
    return mixed
