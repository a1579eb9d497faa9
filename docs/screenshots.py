"""Draw the pictures of docs/ anew from a run's directory.

    .venv/bin/python docs/screenshots.py RUN [--output docs/monitor.svg]

The monitor's page of a finished run, as `rft.runs.monitor RUN --once` prints it. The picture shows the run's
name and no path, loads nothing from elsewhere, and is the same for the same page.
"""

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from rft.runs.find import find_run
from rft.runs.monitor.page import page
from rft.runs.monitor.state import read_state

WIDTH = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("monitor.svg"))
    args = parser.parse_args()
    args.output.write_text(monitor_svg(find_run(args.run)), encoding="utf-8")
    print(f"written: {args.output}")


def monitor_svg(run: Path) -> str:
    """The monitor's page of a run as SVG."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(page(read_state(run), WIDTH))
    svg = console.export_svg(title=".venv/bin/python -m rft.runs.monitor RUN", theme=MONOKAI, unique_id="monitor")
    # rich's font would be fetched from the network; every browser has a monospaced one.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")


if __name__ == "__main__":
    main()
