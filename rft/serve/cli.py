"""Serve a run's adapter over HTTP, as it was trained and evaluated, and show that it is.

    .venv/bin/python -m rft.serve RUN [--best] [--check] [-- OPTION OF VLLM SERVE …]

Prints the `vllm serve` command and starts it: OpenAI's API, on this machine's loopback. Then asks a problem of the run
and compares log-probabilities with the PEFT model. Ends with Ctrl-C, with --check by itself.
Exit status 0, 1 where the server is not the policy or has ended, 2 bad use. docs/serving.md
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import requests

from rft.record.adapters import told
from rft.runs.find import chosen_run
from rft.serve import served_run

WAIT = 0.5  # seconds between two looks at a server that starts


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    place = given.index("--") if "--" in given else len(given)
    args = _parser().parse_args(given[:place])
    try:
        served = served_run.read_run(chosen_run(args.run), args.best, args.base)
        command = served_run.serve_command(served, args.host, args.port, not _has_gpu(), given[place + 1 :])
        if not args.print:
            _require_free(args.host, args.port)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if served.chain:
        print(f"trained from {told(served.chain)}", file=sys.stderr)
    variables = served_run.environment()
    print(shlex.join([*(f"{name}={value}" for name, value in variables.items()), *command]), flush=True)
    return 0 if args.print else _serve(served, args, command, variables)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.serve",
        usage="%(prog)s RUN [--best] [--check] [--print] [--host H] [--port N] [-- OPTION OF VLLM SERVE …]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run's directory, or a folder of runs, whose newest is taken")
    parser.add_argument("--best", action="store_true", help="the best adapter by the evaluations in the loop")
    parser.add_argument("--base", type=Path, metavar="DIR", help="the base checkpoint, where it has moved")
    parser.add_argument("--check", action="store_true", help="start, compare, end")
    parser.add_argument("--print", action="store_true", help="print the command only")
    parser.add_argument("--host", default="127.0.0.1", help="another one than this machine needs VLLM_API_KEY")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--reference", choices=("cpu", "cuda", "none"), default="cpu", help="where the PEFT model runs (bf16, whole)"
    )
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _require_free(host: str, port: int) -> None:
    """Raise ValueError where something listens already: what it answers would be taken for the server's answers."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(2)
        if not probe.connect_ex((host, port)):
            raise ValueError(f"found a server at {host}:{port}; wanted a free port; choose another with --port")


def _serve(served: served_run.ServedRun, args: argparse.Namespace, command: list[str], variables: dict) -> int:
    server = subprocess.Popen(command, env=os.environ | variables)
    try:
        return _checked(served, args, server) or (0 if args.check else server.wait())
    except KeyboardInterrupt:
        return 130
    finally:
        _end(server)


def _checked(served: served_run.ServedRun, args: argparse.Namespace, process: subprocess.Popen) -> int:
    """Wait for the server, ask it, print what it says; the exit status, 0 where it is the policy."""
    from rft.serve import smoke

    url = f"http://{f'[{args.host}]' if ':' in args.host else args.host}:{args.port}"
    server = smoke.Server(url, served_run.served_name(served), os.environ.get("VLLM_API_KEY"))
    while not server.is_up():
        if process.poll() is not None:
            print(f"error: vllm serve ended with exit status {process.returncode}, see above", file=sys.stderr)
            return 1
        time.sleep(WAIT)
    try:
        asked = smoke.questions(served)
        problem, prompt = asked[0]
        answer = server.complete(prompt.tokens, served.options.generate_max_len)
        print(f"asked:    {problem['input'][-1]['content']}\nanswered: {answer['text']}\nlabel:    {problem['label']}")
        if args.reference != "none":
            found = smoke.compare(server, served, [prompt for _, prompt in asked], args.reference)
            print(
                "log-probabilities, nats a token, mean |Δ| over {tokens} tokens: {mismatch:.2g} from the PEFT model, "
                "{base_mismatch:.2g} from the base, these two {effect:.2g} apart".format(**found)
            )
    except (ValueError, requests.RequestException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"serving {server.model} at {url}/v1", flush=True)
    return 0


def _end(server: subprocess.Popen) -> None:
    """SIGTERM, which lets vLLM end its engine; SIGKILL after half a minute."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
