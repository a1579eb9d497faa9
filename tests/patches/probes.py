"""Which test proves which patch, and what a run of such tests found."""

import json
import os
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from rft.overlay.commands import REPOSITORY, examine
from rft.overlay.diff import header_text
from rft.overlay.headers import fields

FACTS = "RFT_PROBE_FACTS"  # where the plugin below writes: it runs in a process of its own
RUN_FIXTURE = "run_dir"  # what asks for it reads a whole training run


@dataclass(frozen=True)
class Probe:
    """One `Probe:` line: package folder, patch file, and `tests/FILE.py::FUNCTION`."""

    package: str
    patch: str
    test: str

    @property
    def name(self) -> str:
        return f"{self.package}/{self.patch}"

    @property
    def label(self) -> str:
        return f"{self.patch.removesuffix('.patch')}-{self.test.split('::')[-1]}"


def all_probes() -> list[Probe]:
    """Every probe of every patch of the installed series, in series order."""
    return [
        Probe(package.name, patch, test)
        for package in (inspection.package for inspection in examine(sys.executable).inspections)
        for patch, data in package.patches.items()
        for test in fields(header_text(data))[0].get("Probe", [])
    ]


def collect(tests: list[str], report: Path) -> dict[str, dict]:
    """Let pytest collect the tests, in a process of its own: test -> {"fixtures": […], "skipped": […]}.

    Tests that pytest does not find are missing from the answer; `skipped` gives reasons that hold on this machine.
    """
    from forked import run_forked_here  # not where this module is pytest's plugin

    files = sorted({test.split("::")[0] for test in tests if (REPOSITORY / test.split("::")[0]).is_file()})
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", Path(__file__).stem]
    done = run_forked_here([*options, *files], {FACTS: str(report)}, report.with_suffix(".out"), 600)
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads(report.read_text())


def pytest_collection_finish(session) -> None:
    """As a pytest plugin: write what `collect` returns. A parametrised test counts as its function."""
    if FACTS not in os.environ:
        return
    facts: dict[str, dict] = {}
    for item in session.items:
        row = facts.setdefault(item.nodeid.split("[")[0], {"fixtures": item.fixturenames, "skipped": []})
        row["skipped"] += [
            f"{mark.name} {mark.kwargs.get('reason', '')}" for mark in item.iter_markers() if _skips(mark)
        ]
    Path(os.environ[FACTS]).write_text(json.dumps(facts))


def _skips(mark) -> bool:
    return mark.name in ("skip", "gpu", "xfail") or (mark.name == "skipif" and bool(mark.args[0]))


@dataclass(frozen=True)
class Outcome:
    """What happened to one test function, over its parameters: messages of failures in its body, and other mishaps."""

    passed: int
    failures: list[str]
    errors: list[str]
    skipped: int

    def fails(self) -> bool:
        """It ran and failed, in the test itself: not in a fixture, not at import."""
        return bool(self.failures) and not self.errors and not self.skipped

    def passes(self) -> bool:
        return bool(self.passed) and not (self.failures or self.errors or self.skipped)


def read_outcomes(report: Path) -> dict[str, Outcome]:
    """test -> Outcome, from a JUnit file that pytest wrote with `-o junit_family=xunit1`, which names the file."""
    found: dict[str, list[ET.Element]] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        found.setdefault(f"{case.get('file')}::{case.get('name').split('[')[0]}", []).append(case)
    outcomes = {}
    for test, cases in found.items():
        failures, errors = (
            [" ".join(e.get("message", "").split()) for case in cases for e in case.iter(kind)]
            for kind in ("failure", "error")
        )
        skipped = sum(case.find("skipped") is not None for case in cases)
        passed = sum(len(case.findall("*")) == len(case.findall("properties")) for case in cases)
        outcomes[test] = Outcome(passed, failures, errors, skipped)
    return outcomes
