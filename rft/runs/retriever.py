"""Wait until a retriever has its index and answers, with its progress (docs/retriever.md); or end a run without it.

    .venv/bin/python -m rft.runs.retriever URL [--seconds 600] [--pid PID --log FILE] [--run-dir DIR]
    .venv/bin/python -m rft.runs.retriever URL --pid PID --log FILE --watch RUN_DIR      until the server has ended

Exit status 0 once it answers; 1 where its process has ended before, the time is over, or it holds another corpus than
the run of DIR/run.json began with. With --watch the launcher, which is the parent, is ended within seconds of its
server, or a minute after that answers nothing more, whatever the training does just then.
"""

import json
import sys
from pathlib import Path

from rft.record.flags import flag
from rft.retriever.client import SERVICE, Client
from rft.runs import service

SECONDS = 600.0  # to load an index that is there: of 21 million passages 61 GB, from a disk
RECORDED = ("corpus", "corpus_name", "passages", "index", "encoder")  # of its health, in run.json
DECISIVE = ("corpus", "index", "encoder")  # which passages a query finds


def main() -> int:
    parser = service.parser(SERVER, __doc__)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="a run that may be resumed")
    args = parser.parse_args()
    former = recorded(args.run_dir) if args.run_dir else {}
    return service.main(SERVER, args, lambda found: require_same(former, found))


def describe(found: dict) -> str:
    """What answers: passages, corpus and index, of its health."""
    by = f" by {found['encoder']}" if found.get("encoder") else ""
    name, digest = found.get("corpus_name"), str(found.get("corpus"))[:16]
    return f"{found.get('passages', 0):,} passages of {name} (sha256 {digest}), {found.get('index')}{by}"


def progress(found: dict) -> str:
    """What it still does; empty where it can answer."""
    if found.get("status") == "ok":
        return ""
    at = found.get("progress") or {}
    if not at.get("of"):
        return f"{at.get('what') or found.get('status')}"
    return f"{at.get('what')}: {at.get('done', 0):,} of {at['of']:,}"


SERVER = service.Server(SERVICE, Client, SECONDS, describe, progress)


def identity(found: dict) -> dict:
    """What run.json keeps of a retriever's health."""
    return {name: found[name] for name in RECORDED if name in found}


def recorded(run_dir: Path) -> dict:
    """The retriever that the run began with; empty where none is recorded."""
    file = run_dir / "run.json"
    return json.loads(file.read_text(encoding="utf-8")).get("retriever") or {} if file.is_file() else {}


def require_same(former: dict, found: dict) -> None:
    """A resumed run asks what it asked before.

    Raises:
        ValueError: corpus, index or encoder is another one, and ALLOW_CHANGED is not set.
    """
    differing = [name for name in DECISIVE if former.get(name) and found.get(name) not in (None, former[name])]
    if not differing or flag("ALLOW_CHANGED"):
        return
    here, there = (", ".join(f"{name} {side[name]}" for name in differing) for side in (found, former))
    raise ValueError(
        f"the retriever of the run has changed\n  found:  {here}\n  wanted: {there}, as at its last start\n"
        f"  repair: CORPUS and RETRIEVER_INDEX of that start, or RETRIEVER_URL of such a server (of "
        f"{former.get('corpus_name')}); to go on with what is here now: ALLOW_CHANGED=1"
    )


if __name__ == "__main__":
    sys.exit(main())
