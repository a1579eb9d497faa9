"""Where a server listens, and what it asks for there; its log, and how many files it may open."""

import argparse
import ipaddress
import logging
import os
import resource
import socket
from pathlib import Path

SHORTEST = 16  # characters of a token
MAKE_TOKEN = "(umask 077; .venv/bin/python -c 'import secrets; print(secrets.token_urlsafe())' > {})"
LOGGED = 2000  # characters of the begin, and of the end, of one entry in the log


def add_options(parser: argparse.ArgumentParser, port: int) -> None:
    """`--host`, `--port` and `--token-file`."""
    parser.add_argument("--host", default="127.0.0.1", help="beyond the loopback with a token only")
    parser.add_argument("--port", type=_port, default=port, help="0 takes a free one; the log says which")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="holds what requests must bear")


def _port(text: str) -> int:
    if not 0 <= int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"found {text}; wanted 0 to 65535")
    return int(text)


def read_token(file: Path | None, variable: str, host: str) -> str | None:
    """The token of the file, else of the environment's `variable`; None where there is neither.

    Raises:
        ValueError: it is no sound one, others can read the file, or `host` is no loopback and needs one.
        OSError: the file cannot be read.
    """
    if file is None:
        token, where = os.environ.get(variable), variable
    else:
        if file.stat().st_mode & 0o077:
            raise ValueError(f"found {file} readable by others; wanted it for its owner only: chmod 600 {file}")
        token, where = file.read_text(encoding="ascii").strip(), str(file)
    if token and (len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
        make = MAKE_TOKEN.format(file or "TOKEN_FILE")
        raise ValueError(f"found no sound token in {where}; wanted {SHORTEST} printable characters or more: {make}")
    if file is not None and not token:
        raise ValueError(f"found {file} empty; wanted a token: {MAKE_TOKEN.format(file)}")
    if not token and not _is_loopback(host):
        raise ValueError(
            f"found --host {host} without a token; wanted 127.0.0.1, or a token that requests must bear: "
            f"{MAKE_TOKEN.format('TOKEN_FILE')}, then --token-file TOKEN_FILE"
        )
    return token or None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int, variable: str, connections: int) -> socket.socket:
    """A socket that listens at the address.

    Args:
        host: name or address.
        port: 0 takes a free one.
        variable: of the environment, that tells clients of another port.
        connections: that may wait to be accepted.

    Raises:
        ValueError: the address is not to be had.
    """
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)  # named, or asyncio lets small answers wait for 40 ms
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(connections)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ValueError(
            f"found {host}:{port} not to be had ({error.strerror}); wanted a free port of this machine; choose another "
            f"with --port, and set {variable} to it"
        ) from None
    return listener


def log_in_lines(name: str) -> None:
    """Everything on stderr, no entry longer than a page; from INFO on what the logger `name` says."""

    class Bounded(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            text = super().format(record)
            return text if len(text) <= 2 * LOGGED else f"{text[:LOGGED]} … {text[-LOGGED:]}"  # the error stands last

    handler = logging.StreamHandler()
    handler.setFormatter(Bounded("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger(name).setLevel(logging.INFO)


def raise_file_limit(wanted: int) -> None:
    """As many open files as `wanted`, where the hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def address_of(listener: socket.socket) -> str:
    """`http://HOST:PORT` of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
