"""All problem files of the math task by one command: fetch or find, build, check, publish together."""

import argparse
from functools import partial
from itertools import islice
from pathlib import Path

from rft.data import hub, made, prepare, probes
from rft.data.check import check_file, shared_faults
from rft.data.local import match
from rft.data.prepare import Sizes
from rft.data.row_files import outdated_files, read_rows, write_rows, written_together
from rft.data.sets import TRAINING, Input, evaluation_rows
from rft.record.digest import file_sha256

MANIFEST = "data_manifest.json"
TRAINED = "trained.jsonl"
# Pairs of these files share no problem. The ID probe is a part of the pool, outside of what is trained on.
APART = (
    ("sft_train.jsonl", "sft_dev.jsonl", "sft_rl_pool.jsonl", probes.AIME, probes.OOD[-1]),
    ("sft_train.jsonl", "sft_dev.jsonl", TRAINED, probes.ID_PROBE),
)


def make(out: Path, given: list[Input] | None, sizes: Sizes, trained: int, seed: int, force: bool) -> tuple[dict, bool]:
    """Every problem file of the math task in `out`: evaluation sets, training sets, probes, manifests (`made.make`).

    Args:
        given: files of the published sets; None to fetch them from the hub (`rft.data.hub`).
        trained: prompts at the head of the RL pool that a run will train on; the in-distribution probe has none.
    """
    prepare.require_sizes(sizes)
    if trained < 1:
        raise ValueError(f"found --trained {trained}, wanted at least 1; pass the prompts that a run takes")
    settings = {**sizes._asdict(), "trained": trained, "seed": seed, "from": "files" if given else "hub"}

    def outdated(manifest: dict) -> list[str]:
        training = [name for name in manifest["files"] if prepare.OWN.fullmatch(name)]
        found = outdated_files(out, prepare.MANIFEST, prepare.OWN, training)
        return found + outdated_files(out, probes.MANIFEST, probes.EXTERNAL, manifest["files"])

    write = partial(build, settings=settings, sizes=sizes)
    return made.make(out, MANIFEST, settings, given, partial(hub.fetch, out), write, force, outdated)


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
            entries[f"sources/{kind}.jsonl"] = entry | {"dropped": dropped} | made.origin(published[kind])
    sources = [stage / "sources" / f"{kind}.jsonl" for kind in kinds]
    probed = probes.make_probe_sets(sources, None, [], seed, stage)
    if probes.AIME not in probed["files"]:
        raise ValueError(
            f"found no AIME of {probes.HELD_OUT_YEAR} or later, wanted one to evaluate on; add it to --from"
        )
    from_kinds = {"source": ", ".join(f"{kind}.jsonl" for kind in kinds), "revision": ""}
    for name, entry in probed["files"].items():
        entries[name] = entry | {"dropped": probed["dropped"] if name == probes.OOD[-1] else {}} | from_kinds
    evaluations = [stage / probes.AIME, stage / probes.OOD[-1]]
    training = prepare.prepare([each.path for each in published[TRAINING]], None, evaluations, sizes, seed, stage)
    stages = {s["stage"]: sum(s["dropped"].values()) for s in training["stages"] if s["dropped"]}
    for name, entry in training["files"].items():
        entries[name] = (
            entry | {"dropped": stages if name == "sft_rl_pool.jsonl" else {}} | made.origin(published[TRAINING])
        )
    pool = stage / "sft_rl_pool.jsonl"
    of_pool = {"dropped": {}, "source": pool.name, "revision": ""}
    head = (row for _, row in islice(read_rows(pool), settings["trained"]))
    entries[TRAINED] = write_rows(stage / TRAINED, head) | of_pool
    probed = probes.make_probe_sets([], pool, [stage / TRAINED], seed, stage)
    entries |= {name: entry | of_pool for name, entry in probed["files"].items()}
    require_disjoint(stage)
    for name in (probes.MANIFEST, prepare.MANIFEST, probes.ID_MANIFEST):
        entries[name] = {"sha256": file_sha256(stage / name)}
    return made.write_manifest(stage / MANIFEST, settings, inputs, entries)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the launchers' DATA_ROOT")
    parser.add_argument(
        "--from", type=Path, dest="given", metavar="PLACE", help="downloaded sets; default: from the hub"
    )
    parser.add_argument("--force", action="store_true", help="replace files in --out that differ")
    sizes = parser.add_argument_group("with --task math")
    sizes.add_argument("--trained", type=int, default=6400, help="first prompts of the pool that a run trains on")
    prepare.add_sizes(sizes)


def run(args: argparse.Namespace) -> None:
    """The command: matched files, then a table of what was made."""
    given = None
    if args.given:
        given, unused = match(args.given)
        for each in given:
            print(f"{args.given / each.name}: {each.kind}")
        for name in unused:
            print(f"{args.given / name}: not used")
    manifest, is_complete = make(args.out, given, prepare.sizes_of(args), args.trained, args.seed, args.force)
    made.show(manifest, args.out)
    state = "complete already, every hash checked" if is_complete else "complete"
    print(f"{args.out}: {state}; no training set shares a problem with an evaluation set")
