"""At the end, say what each probe said when its patch was left out, and what had to be left out with it."""

import pytest

LOG = pytest.StashKey[list[str]]()


@pytest.fixture
def left_out_log(request):
    """A function that takes a line and the patches that were left out as well."""
    lines = request.config.stash.setdefault(LOG, [])

    def log(line: str, also: list[str]) -> None:
        lines.append(line + (f" (also left out: {', '.join(also)})" if also else ""))

    return log


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(LOG, [])
    if lines:
        terminalreporter.section("probes with their patch left out")
    for line in lines:
        terminalreporter.write_line(line)
