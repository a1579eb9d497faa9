"""The question files of the search task by one command: training without copies of what is evaluated, a file a set."""

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from rft.data import hub, made
from rft.data.canonical import content_hash, priority
from rft.data.row_files import write_rows, written_together
from rft.data.search import copies, sets
from rft.data.search.prompts import DEFAULT, PROTOCOLS, instruction_of
from rft.data.search.questions import Question, question_row, read_questions
from rft.data.sets import Input

FOLDER = "search"  # in the launchers' DATA_ROOT
MANIFEST = "search_manifest.json"
TRAIN, PROBE = "search_train.jsonl", "search_probe.jsonl"
TRAIN_MANIFEST = f"{TRAIN}.manifest.json"  # what preflight asks whether the training file is decontaminated
PROBE_EACH = 100  # questions of each evaluation set, for evaluations during a run
AGAIN, AGAIN_OTHERWISE = "asked in an earlier row too", "asked in an earlier row, with other answers"
UNGRADABLE = "no answer that can be graded"


def make(out: Path, given: Path | None, protocol: str, seed: int, force: bool) -> tuple[dict, bool]:
    """Every question file of the search task in `out` (`made.make`).

    Args:
        given: a folder with the published files (`sets.match`); None to fetch them from the hub (`rft.data.hub`).
        protocol: of `PROTOCOLS`; its instruction is in every row.
        seed: of the probe's choice.
    """
    inputs, unused = sets.match(given) if given else (None, [])
    for each in inputs or ():
        print(f"{each.path}: {each.kind.strip('/').replace('/', ', ')}")
    for name in unused:
        print(f"{given / name}: not used")
    instruction = instruction_of(protocol)
    told = hashlib.sha256(instruction.encode()).hexdigest()[:16]
    settings = {"from": "files" if given else "hub", "protocol": protocol, "instruction": told, "seed": seed}

    def fetch() -> list[Input]:
        return sets.of_hub(hub.fetch(out, sets.HUB))

    write = partial(build, settings=settings, instruction=instruction)
    return made.make(out, MANIFEST, settings, inputs, fetch, write, force)


def build(stage: Path, inputs: list[Input], settings: dict, instruction: str) -> dict:
    """Write every file below `stage`; return the manifest."""
    print("reading and comparing questions: minutes for all of NQ and HotpotQA", flush=True)
    of_split = {True: [], False: []}
    for each in inputs:
        of_split[sets.split_of(each.kind) == sets.TRAIN].append(each)
    training, drops, others = read_unique(of_split[True], sets.TRAINED)
    listed, passed_over, more = read_unique(of_split[False], sets.EVALUATED)
    if not training or not listed:
        found, wanted = ("training", sets.TRAINED) if not training else ("evaluation", sets.EVALUATED)
        raise ValueError(
            f"found no {found} question of {', '.join(wanted)} in {inputs[0].path.parent}, wanted some; the set of a "
            "row is its data_source, or the folder of its file"
        )
    evaluated = {name: [q for q in listed if q.datasource == name] for name in sets.EVALUATED}
    evaluated = {name: questions for name, questions in evaluated.items() if questions}
    training, rejected = without_copies(training, (q for questions in evaluated.values() for q in questions))
    dropped = sum(drops.values(), Counter(entry["reason"] for entry in rejected))
    files = {TRAIN: training} | {f"{name}.jsonl": questions for name, questions in evaluated.items()}
    files[PROBE] = [q for questions in evaluated.values() for q in chosen(questions, settings["seed"])]
    with written_together(stage, [*files, TRAIN_MANIFEST, MANIFEST]) as paths:
        entries = {}
        for name, questions in files.items():
            written = write_rows(paths[name], (question_row(each, instruction) for each in questions))
            source = {"source": f"the {len(evaluated)} above", "revision": ""} if name == PROBE else None
            left_out = dropped if name == TRAIN else passed_over.get(Path(name).stem, {})
            entries[name] = written | {"dropped": dict(left_out)} | (source or made.origin(of_split[name == TRAIN]))
        held_out = [name for name in files if name != TRAIN]
        entries[TRAIN_MANIFEST] = made.write_decontamination(
            paths[TRAIN_MANIFEST], TRAIN, entries, held_out, copies.settings(), rejected
        )
        more = {"answer_overlap": copies.answer_overlap(training, evaluated), "other_sets": dict(others + more)}
        return made.write_manifest(paths[MANIFEST], settings, inputs, entries, **more)


def read_unique(inputs: Iterable[Input], wanted: Iterable[str]) -> tuple[list[Question], dict[str, Counter], Counter]:
    """Questions of some sets, the first of those that a set asks twice.

    Returns:
        The questions, in order; by set what was left out, by reason; and the rows of other sets, by their name.

    Raises:
        ValueError: a row is no question; an id that two questions of a set have.
    """
    seen, ids, kept, dropped, others = {}, {}, [], {name: Counter() for name in wanted}, Counter()
    for where, question in _questions(inputs):
        name = question.datasource
        if name not in dropped:
            others[name] += 1
            continue
        if not question.answers:
            dropped[name][UNGRADABLE] += 1
            continue
        earlier = seen.setdefault((name, content_hash(question.text)), question)
        if earlier is not question:
            shared = copies.telling_answers(earlier) & copies.telling_answers(question)
            dropped[name][AGAIN if shared else AGAIN_OTHERWISE] += 1
            continue
        if ids.setdefault(question.id, where) is not where:
            raise ValueError(f"{where}: found id {question.id!r}, which {ids[question.id]} has too; make ids unique")
        kept.append(question)
    return kept, dropped, others


def _questions(inputs: Iterable[Input]) -> Iterator[tuple[str, Question]]:
    for each in inputs:
        for where, question in read_questions(each.path, sets.set_of(each.kind)):
            yield f"{each.path}, {where}", question


def without_copies(training: list[Question], evaluated: Iterable[Question]) -> tuple[list[Question], list[dict]]:
    """The training questions that no evaluation set asks, and the others with what each is a copy of."""
    index, kept, rejected = copies.index_of(evaluated), [], []
    for question in training:
        if copy := copies.find_copy(question, index):
            rejected.append({"id": question.id, **copy._asdict()})
        else:
            kept.append(question)
    return kept, rejected


def chosen(questions: list[Question], seed: int) -> list[Question]:
    """`PROBE_EACH` questions of a set by seed, in the order of the set."""
    taken = {each.id for each in sorted(questions, key=lambda each: priority(seed, each.id))[:PROBE_EACH]}
    return [each for each in questions if each.id in taken]


def add_options(parser: argparse._ActionsContainer) -> None:
    """Options of the search task beside `--out`, `--from` and `--force`."""
    parser.add_argument(
        "--protocol", choices=sorted(PROTOCOLS), help="that the rows explain to the model; default: tags"
    )


def run(args: argparse.Namespace) -> None:
    """The command: a table of what was made, and how many answers training has taught."""
    out = args.out / FOLDER
    manifest, is_complete = make(out, args.given, args.protocol or DEFAULT, args.seed, args.force)
    made.show(manifest, out)
    for name, count in manifest["other_sets"].items():
        print(f"{count:,} rows of {name}: not used")
    for name, found in manifest["answer_overlap"].items():
        print(f"{name}: {found['rate']:.1%} of {found['questions']:,} questions have an answer that training has too")
    state = "complete already, every hash checked" if is_complete else "complete"
    print(f"{out}: {state}; no training question repeats one of an evaluation set")
