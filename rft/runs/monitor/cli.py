"""Watch a run on the terminal: progress, metrics with their healthy ranges, evaluations, spikes, decisions, machine.

    .venv/bin/python -m rft.runs.monitor RUN [--once] [--interval SECONDS]

RUN is a run's directory or a folder of runs, of which the newest is taken. Reads only. Ctrl-C quits; the page also
ends by itself once the run has ended. For a run that logs to other paths set METRICS_LOG_DIR and SPIKE_LOG_PATH as
the run has them; with GPU_HOUR_PRICE, the price of one GPU for an hour, the page says what the run costs. Exit status:
0, or 2 for bad input and where there is no run (any more).
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rft.runs.find import find_run
from rft.runs.monitor.forecast import price
from rft.runs.monitor.page import page
from rft.runs.monitor.progress import status
from rft.runs.monitor.state import State, read_state

ASCII_TERMINALS = ("linux", "dumb", "vt100", "vt220")  # whose fonts lack block characters


def main() -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m rft.runs.monitor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--once", action="store_true", help="print one page; so does a pipe")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two pages (default 2)")
    args = parser.parse_args()
    if not args.interval > 0:
        parser.error(f"--interval is {args.interval:g}; wanted a number of seconds above 0")
    sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the terminal's own screen comes back
    console = Console(highlight=False)
    try:
        price()  # refused at once where it is no price
        run = find_run(args.run)
        if args.once or not console.is_terminal:
            show(console, read_state(run))
        else:
            watch(console, run, args.interval)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


def watch(console: Console, run: Path, interval: float) -> None:
    """Draw the page until the run has ended or Ctrl-C; then leave the last page, whole, on the terminal."""
    state, in_place = read_state(run), not console.is_dumb_terminal
    screen = Live(console=console, screen=True, auto_refresh=False) if in_place else contextlib.nullcontext()
    try:
        with screen:
            while not status(state).ended:
                if in_place:
                    screen.update(drawn(console, state, console.height), refresh=True)
                else:
                    show(console, state)
                time.sleep(interval)
                state = read_state(run, state)
    except KeyboardInterrupt:
        pass
    show(console, state)


def show(console: Console, state: State) -> None:
    """Print a whole page."""
    console.print(drawn(console, state, None))


def drawn(console: Console, state: State, height: int | None):
    """The page at the terminal's present size."""
    plain = not console.encoding.startswith("utf") or os.environ.get("TERM") in ASCII_TERMINALS
    return page(state, console.width, height, plain)
