"""Judges programs of the model by tests, over HTTP, each in a sandbox.

    .venv/bin/python -m rft.code_server [--port N] [--workers N] [--host H --token-file FILE]

Listens on this machine's loopback. Another address needs a token, in a file or in CODE_SERVER_TOKEN. Ends with SIGTERM
or Ctrl-C. Exit status 0, 1 where it cannot serve, 2 bad use. docs/code_rewards.md
"""

import argparse
import asyncio
import ipaddress
import logging
import os
import resource
import socket
import sys
from pathlib import Path

from rft.code_server import PORT, TOKEN_VARIABLE, URL_VARIABLE, limits

SHORTEST = 16  # characters of a token
MAKE_TOKEN = "(umask 077; .venv/bin/python -c 'import secrets; print(secrets.token_urlsafe())' > {})"
LOGGED = 2000  # characters of the begin, and of the end, of one entry in the log


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        token = _token(args.token_file)
        _require_token(args.host, token)
        listener = _bound(args.host, args.port)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from rft.code.sandbox import IsolationError
    from rft.code_server.serve import serve

    _log_in_lines()
    _raise_file_limit()
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
    parser.add_argument("--host", default="127.0.0.1", help="beyond the loopback with a token only")
    parser.add_argument("--port", type=_port, default=PORT, help="0 takes a free one; the log says which")
    parser.add_argument(
        "--workers", "--concurrency", type=_positive, default=12, metavar="N", help="programs that run at once"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="holds what requests must bear")
    parser.add_argument("--isolation", choices=("namespaces", "landlock", "none"), help="default: the best there is")
    parser.add_argument(
        "--allow-unsafe", action="store_true", help="serve where no isolation is to be had; every answer says so then"
    )
    parser.add_argument("--tool", action="store_true", help="serve POST /execute too, a Python tool for agents")
    return parser


def _port(text: str) -> int:
    if not 0 <= int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"found {text}; wanted 0 to 65535")
    return int(text)


def _positive(text: str) -> int:
    if not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"found {text}; wanted 1 to 1024")
    return int(text)


def _token(file: Path | None) -> str | None:
    """The token of the file, else of the environment; None where there is neither."""
    if file is None:
        token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        if file.stat().st_mode & 0o077:
            raise ValueError(f"found {file} readable by others; wanted it for its owner only: chmod 600 {file}")
        token, where = file.read_text(encoding="ascii").strip(), str(file)
    if token and (len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
        make = MAKE_TOKEN.format(file or "TOKEN_FILE")
        raise ValueError(f"found no sound token in {where}; wanted {SHORTEST} printable characters or more: {make}")
    if file is not None and not token:
        raise ValueError(f"found {file} empty; wanted a token: {MAKE_TOKEN.format(file)}")
    return token or None


def _require_token(host: str, token: str | None) -> None:
    """Raise ValueError where others could reach the server and none is asked for a token."""
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"found --host {host} without a token; wanted 127.0.0.1, or a token that requests must bear: "
            f"{MAKE_TOKEN.format('TOKEN_FILE')}, then --token-file TOKEN_FILE"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(host: str, port: int) -> socket.socket:
    """A socket at the address; raises ValueError where it is not to be had."""
    listener = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(limits.CONNECTIONS)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ValueError(
            f"found {host}:{port} not to be had ({error.strerror}); wanted a free port of this machine; choose another "
            f"with --port, and set {URL_VARIABLE} to it"
        ) from None
    return listener


def _log_in_lines() -> None:
    """Everything on stderr, no entry longer than a page."""

    class Bounded(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            text = super().format(record)
            return text if len(text) <= 2 * LOGGED else f"{text[:LOGGED]} … {text[-LOGGED:]}"  # the error stands last

    handler = logging.StreamHandler()
    handler.setFormatter(Bounded("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("rft.code_server").setLevel(logging.INFO)


def _raise_file_limit() -> None:
    """As many open files as connections and pipes need, where the hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * limits.CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
