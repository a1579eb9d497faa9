"""Serves passages of a corpus for queries, over HTTP; makes the index where there is none.

    .venv/bin/python -m rft.retriever --corpus X.jsonl --index bm25
    .venv/bin/python -m rft.retriever --corpus X.jsonl --index dense [--encoder DIR] [--kind flat|hnsw|torch]

Rows of the corpus: {"id", "contents": '"title"\\ntext'}, as wiki-18's, or {"title", "text"}. Listens on this machine's
loopback at once, and says in /health how far it is. Another address needs a token, in a file or in RETRIEVER_TOKEN.
Ends with SIGTERM or Ctrl-C; a build that was stopped goes on with the next start. Exit status 0, 1 where it cannot
serve, 2 bad use. docs/retriever.md
"""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from rft.retriever import PORT, TOKEN_VARIABLE, URL_VARIABLE, limits
from rft.retriever.engine import KINDS, WORDLLAMA, Options, open_engine
from rft.retriever.state import State
from rft.service import listen

DENSE = ("encoder", "kind", "query_prefix", "passage_prefix")  # options of a dense index


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    args = parser.parse_args(arguments)
    given = {name: value for name in DENSE if (value := getattr(args, name)) is not None}
    if given and args.index != "dense":
        parser.error(f"found --{next(iter(given)).replace('_', '-')} with --index {args.index}; wanted --index dense")
    if args.encoder in (None, WORDLLAMA) and not {"query_prefix", "passage_prefix"}.isdisjoint(given):
        parser.error(f"found a prefix for {WORDLLAMA}, which has none; wanted --encoder DIR with it")
    options = Options(args.corpus, args.index, index_dir=args.index_dir, command=tuple(arguments), **given)
    listen.log_in_lines("rft.retriever")
    if args.build_only:
        return _build(options)
    try:
        token = listen.read_token(args.token_file, TOKEN_VARIABLE, args.host)
        listener = listen.bound(args.host, args.port, URL_VARIABLE, limits.CONNECTIONS)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from rft.retriever.serve import serve

    listen.raise_file_limit(4 * limits.CONNECTIONS)
    failure, ended = asyncio.run(serve(listener, options, token))
    if failure is not None:
        _say(failure)
    if not ended:  # a library is in a long step, which no signal ends: nothing half written can be taken for whole
        sys.stderr.flush()
        os._exit(0)
    return 0 if failure is None else 1


def _build(options: Options) -> int:
    state = State(options.corpus.name)
    try:
        engine = open_engine(options, state.progress)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    except Exception as error:
        _say(error)
        return 1
    print(f"{options.folder}: {engine.index}, {len(engine.corpus):,} passages, corpus {engine.corpus.sha256}")
    return 0


def _say(error: Exception) -> None:
    """What went wrong: a line for what a user can mend, else where it happened too."""
    if not isinstance(error, ValueError | OSError):
        logging.getLogger("rft.retriever").error("the index cannot be made or opened", exc_info=error)
    print(f"error: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.retriever",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE.jsonl", help="a passage a line")
    parser.add_argument("--index", required=True, choices=("dense", "bm25"))
    parser.add_argument(
        "--encoder",
        "--embedder",
        metavar="DIR",
        help=f"folder of sentence-transformers; default: {WORDLLAMA}, which comes with a package and works offline",
    )
    parser.add_argument(
        "--kind", choices=KINDS, help="flat: exact, mapped (default); hnsw: a graph; torch: exact, in fp16 on the GPUs"
    )
    parser.add_argument("--index-dir", type=Path, metavar="DIR", help="default: beside the corpus, by its name")
    parser.add_argument("--query-prefix", metavar="TEXT", help="before each query; default: the encoder's own")
    parser.add_argument("--passage-prefix", metavar="TEXT", help="before each passage; default: the encoder's own")
    parser.add_argument("--build-only", action="store_true", help="make the index and end")
    listen.add_options(parser, PORT)
    return parser
