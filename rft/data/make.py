"""All problem files of the math task by one command: fetch or find, build, check, publish together."""

import argparse
import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rft import __version__
from rft.data import hub, prepare, probes
from rft.data.check import check_file, shared_faults
from rft.data.local import match
from rft.data.prepare import Sizes
from rft.data.row_files import outdated_files, read_rows, require_apart, write_rows, written_together
from rft.data.sets import TRAINING, Input, evaluation_rows
from rft.record.digest import file_sha256

if TYPE_CHECKING:
    from rich.table import Table

MANIFEST = "data_manifest.json"
STAGE = ".making"
TRAINED = "trained.jsonl"
# Pairs of these files share no problem. The ID probe is a part of the pool, outside of what is trained on.
APART = (
    ("sft_train.jsonl", "sft_dev.jsonl", "sft_rl_pool.jsonl", probes.AIME, probes.OOD[-1]),
    ("sft_train.jsonl", "sft_dev.jsonl", TRAINED, probes.ID_PROBE),
)


def make(out: Path, given: list[Input] | None, sizes: Sizes, trained: int, seed: int, force: bool) -> tuple[dict, bool]:
    """Every problem file of the math task in `out`, all or none: evaluation sets, training sets, probes, manifests.

    Args:
        given: files of the published sets; None to fetch them from the hub (`rft.data.hub`).
        trained: prompts at the head of the RL pool that a run will train on; the in-distribution probe has none.
        force: replace files in `out` that differ from what is made.

    Returns:
        The manifest, and whether it was there already, with every file as it says: then nothing has been read or made.

    Raises:
        ValueError: bad input, or `out` has files that differ. No problem file in `out` has changed then.
        OSError: the disk is full, or a place cannot be written.
    """
    prepare.require_sizes(sizes)
    if trained < 1:
        raise ValueError(f"found --trained {trained}, wanted at least 1; pass the prompts that a run takes")
    if out.exists() and not out.is_dir():
        raise ValueError(f"found a file at {out}, wanted a folder to write to; pass another --out")
    out.mkdir(parents=True, exist_ok=True)
    settings = {**sizes._asdict(), "trained": trained, "seed": seed, "from": "files" if given else "hub"}
    with alone(out):
        former = read_manifest(out / MANIFEST)
        if former and not force:
            require_same(out, former, settings)
        if former and complete(out, former, settings, given):
            return former, True
        stage = out / STAGE
        shutil.rmtree(stage, ignore_errors=True)  # of a killed command
        try:
            inputs = given or hub.fetch(out)
            manifest = build(stage, inputs, settings, sizes)
            require_apart([out / name for name in manifest["files"]], [each.path for each in inputs])
            publish(stage, out, manifest, force)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    return manifest, False


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No second command makes data in this folder meanwhile."""
    with (out / ".make.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"found another command at work in {out}, wanted none; wait for it") from None
        yield


def read_manifest(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not all(entry["sha256"] for entry in [*found["files"].values(), *found["sources"]]) or not found["settings"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: found no manifest of ours, wanted one; move the file away") from None
    return found


def require_same(out: Path, former: dict, settings: dict) -> None:
    """ValueError where the folder was made with other settings, or one of its files has changed since."""
    others = [name for name, value in settings.items() if former["settings"].get(name) != value]
    if others:
        there, asked = (", ".join(f"{n} {of.get(n)}" for n in others) for of in (former["settings"], settings))
        raise ValueError(
            f"found {out} made with {there}, wanted {asked}; pass the same again, another --out, "
            "or --force to replace the files"
        )
    changed = [n for n, e in former["files"].items() if (out / n).is_file() and file_sha256(out / n) != e["sha256"]]
    if changed:
        raise ValueError(
            f"found {out / changed[0]} changed since it was made (sha256 in {MANIFEST}), wanted it as made; "
            "move it away and run this again, or pass --force to replace it"
        )


def complete(out: Path, former: dict, settings: dict, inputs: list[Input] | None) -> bool:
    """Whether every file is there, of these settings and sources, with its hash."""
    if former["settings"] != settings:
        return False
    if inputs is None:
        pinned = hub.read_lock(out / hub.LOCK)
        if any(pinned.get(s["source"], {}).get("revision") != s["revision"] for s in former["sources"]):
            return False
    elif {(e["name"], e["sha256"]) for e in former["sources"]} != {(i.name, file_sha256(i.path)) for i in inputs}:
        return False
    return all((out / n).is_file() and file_sha256(out / n) == e["sha256"] for n, e in former["files"].items())


def build(stage: Path, inputs: list[Input], settings: dict, sizes: Sizes) -> dict:
    """Make every file below `stage`; return the manifest. The steps of docs/data.md, in their order."""
    print("filtering and comparing: minutes for all of NuminaMath-1.5", flush=True)
    seed, entries = settings["seed"], {}
    kinds = [kind for kind in dict.fromkeys(each.kind for each in inputs) if kind != TRAINING]
    published = {kind: [each for each in inputs if each.kind == kind] for kind in (*kinds, TRAINING)}
    with written_together(stage / "sources", [f"{kind}.jsonl" for kind in kinds]) as paths:
        for kind in kinds:
            rows, dropped = evaluation_rows(kind, published[kind])
            entry = write_rows(paths[f"{kind}.jsonl"], rows)
            entries[f"sources/{kind}.jsonl"] = entry | {"dropped": dropped} | origin(published[kind])
    sources = [stage / "sources" / f"{kind}.jsonl" for kind in kinds]
    made = probes.make_probe_sets(sources, None, [], seed, stage)
    if probes.AIME not in made["files"]:
        raise ValueError(
            f"found no AIME of {probes.HELD_OUT_YEAR} or later, wanted one to evaluate on; add it to --from"
        )
    from_kinds = {"source": ", ".join(f"{kind}.jsonl" for kind in kinds), "revision": ""}
    for name, entry in made["files"].items():
        entries[name] = entry | {"dropped": made["dropped"] if name == probes.OOD[-1] else {}} | from_kinds
    evaluations = [stage / probes.AIME, stage / probes.OOD[-1]]
    training = prepare.prepare([each.path for each in published[TRAINING]], None, evaluations, sizes, seed, stage)
    stages = {s["stage"]: sum(s["dropped"].values()) for s in training["stages"] if s["dropped"]}
    for name, entry in training["files"].items():
        entries[name] = entry | {"dropped": stages if name == "sft_rl_pool.jsonl" else {}} | origin(published[TRAINING])
    pool = stage / "sft_rl_pool.jsonl"
    of_pool = {"dropped": {}, "source": pool.name, "revision": ""}
    head = (row for _, row in islice(read_rows(pool), settings["trained"]))
    entries[TRAINED] = write_rows(stage / TRAINED, head) | of_pool
    made = probes.make_probe_sets([], pool, [stage / TRAINED], seed, stage)
    entries |= {name: entry | of_pool for name, entry in made["files"].items()}
    require_disjoint(stage)
    for name in (probes.MANIFEST, prepare.MANIFEST, probes.ID_MANIFEST):
        entries[name] = {"sha256": file_sha256(stage / name)}
    sources = [each._asdict() | {"sha256": file_sha256(each.path)} for each in inputs]
    for each in sources:
        del each["path"]  # of this machine
    manifest = {"settings": settings, "versions": {"rft": __version__}, "sources": sources, "files": entries}
    (stage / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def origin(inputs: list[Input]) -> dict:
    """`source` and `revision` of files made of these inputs: repositories and their commits, or the files given."""
    found = dict.fromkeys((each.source, each.revision[:12]) if each.revision else (each.name, "") for each in inputs)
    return {"source": "\n".join(source for source, _ in found), "revision": "\n".join(r for _, r in found).strip()}


def require_disjoint(stage: Path) -> None:
    """ValueError unless every file can be read and no two of `APART` share a problem."""
    for names in APART:
        hashes = {}
        for name in filter(lambda name: (stage / name).is_file(), names):
            faults, hashes[stage / name] = check_file(stage / name)
            if faults:
                raise ValueError(f"{faults[0]}; report this as a bug")
        for fault in shared_faults(hashes):
            raise ValueError(f"{fault}; report this as a bug")


def publish(stage: Path, out: Path, manifest: dict, force: bool) -> None:
    """Give the files below `stage` their names in `out`, the manifest last; those that are there already are kept.

    Raises:
        ValueError: a file of this name in `out` has another content, and not `force`. Nothing has changed then.
    """
    training = [name for name in manifest["files"] if prepare.OWN.fullmatch(name)]
    outdated = outdated_files(out, prepare.MANIFEST, prepare.OWN, training)
    outdated += outdated_files(out, probes.MANIFEST, probes.EXTERNAL, manifest["files"])
    there = [name for name in manifest["files"] if (out / name).is_file()]
    differ = [name for name in there if file_sha256(out / name) != manifest["files"][name]["sha256"]] + outdated
    if differ and not force:
        raise ValueError(
            f"found {out / differ[0]} with another content than what was made"
            f"{f' (and {len(differ) - 1} more)' if len(differ) > 1 else ''}; wanted no file that this command did not "
            "make; pass another --out, or --force to replace them"
        )
    (out / "sources").mkdir(exist_ok=True)
    for name in manifest["files"]:
        if name in differ or name not in there:
            (stage / name).replace(out / name)
    for name in outdated:
        (out / name).unlink(missing_ok=True)
    (stage / MANIFEST).replace(out / MANIFEST)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the launchers' DATA_ROOT")
    parser.add_argument("--from", type=Path, dest="given", metavar="DIR", help="downloaded sets; default: from the hub")
    parser.add_argument("--trained", type=int, default=6400, help="first prompts of the pool that a run trains on")
    parser.add_argument("--force", action="store_true", help="replace files in --out that differ")
    prepare.add_sizes(parser)


def run(args: argparse.Namespace) -> None:
    """The command: matched files, then a table of what was made."""
    from rich.console import Console

    given = None
    if args.given:
        given, unused = match(args.given)
        for each in given:
            print(f"{args.given / each.name}: {each.kind}")
        for name in unused:
            print(f"{args.given / name}: not used")
    manifest, is_complete = make(args.out, given, prepare.sizes_of(args), args.trained, args.seed, args.force)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=140)  # else 80 in a file
    console.print(table(manifest, args.out))
    state = "complete already, every hash checked" if is_complete else "complete"
    print(f"{args.out}: {state}; no training set shares a problem with an evaluation set")


def table(manifest: dict, out: Path) -> "Table":
    """What is in a folder, a row a file."""
    from rich.table import Table

    shown = Table(title=str(out), title_justify="left")
    shown.add_column("file", no_wrap=True)
    shown.add_column("rows", justify="right", no_wrap=True)
    shown.add_column("source", overflow="fold")
    shown.add_column("revision", no_wrap=True)
    shown.add_column("dropped", overflow="fold")
    for name, entry in manifest["files"].items():
        if "rows" in entry:
            dropped = "\n".join(f"{count:,} {reason}" for reason, count in entry["dropped"].items())
            shown.add_row(name, f"{entry['rows']:,}", entry["source"], entry["revision"], dropped)
    return shown
