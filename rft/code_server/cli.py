"""Judges programs of the model by tests, over HTTP, each in a sandbox.

    .venv/bin/python -m rft.code_server [--port N] [--workers N] [--host H --token-file FILE]

Listens on this machine's loopback. Another address needs a token, in a file or in CODE_SERVER_TOKEN. Ends with SIGTERM
or Ctrl-C. Exit status 0, 1 where it cannot serve, 2 bad use. docs/code_rewards.md
"""

import argparse
import asyncio
import sys

from rft.code_server import PORT, TOKEN_VARIABLE, URL_VARIABLE, limits
from rft.service import listen


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        token = listen.read_token(args.token_file, TOKEN_VARIABLE, args.host)
        listener = listen.bound(args.host, args.port, URL_VARIABLE, limits.CONNECTIONS)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from rft.code.sandbox import IsolationError
    from rft.code_server.serve import serve

    listen.log_in_lines("rft.code_server")
    listen.raise_file_limit(4 * limits.CONNECTIONS)
    options = {"level": args.isolation, "allow_unsafe": args.allow_unsafe, "token": token, "with_tool": args.tool}
    try:
        asyncio.run(serve(listener, args.workers, **options))
    except KeyboardInterrupt:  # before it served
        return 130
    except IsolationError as error:
        print(
            f"error: {error}\n(--allow-unsafe serves without isolation, and says so in every answer)", file=sys.stderr
        )
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.code_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    listen.add_options(parser, PORT)
    parser.add_argument(
        "--workers", "--concurrency", type=_positive, default=12, metavar="N", help="programs that run at once"
    )
    parser.add_argument("--isolation", choices=("namespaces", "landlock", "none"), help="default: the best there is")
    parser.add_argument(
        "--allow-unsafe", action="store_true", help="serve where no isolation is to be had; every answer says so then"
    )
    parser.add_argument("--tool", action="store_true", help="serve POST /execute too, a Python tool for agents")
    return parser


def _positive(text: str) -> int:
    if not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"found {text}; wanted 1 to 1024")
    return int(text)
