"""Every patch is live: with it left out of the tree, the probe that its header names fails.

Each probe runs in a shadow checkout (see shadow.py). Probes that read a whole training run share one run, from which
all their patches are left out at once. `-k PATCH` selects, and only what is selected is run. With the whole series in
place the probes pass where they stand, in tests/patches and tests/stack.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from probes import RUN_FIXTURE, Outcome, Probe, all_probes, collect, read_outcomes
from shadow import make_shadow, run_in_shadow

PROBES = all_probes()
AT_ONCE = 2
SECONDS_PROBE, SECONDS_RUN = 900, 2400
# What other probes of the shared run read is written by these, so they get a run of their own.
OWN_RUN = {"metrics-jsonl.patch"}
RUNNING = threading.Lock()
WHOLE = "test_probes_of_this_folder_pass_in_a_shadow_with_the_whole_series"


@pytest.fixture(scope="session")
def facts(tmp_path_factory):
    return collect([probe.test for probe in PROBES], tmp_path_factory.mktemp("facts") / "facts.json")


def test_every_probe_is_found_and_not_skipped_here(facts):
    assert [f"{p.patch}: {p.test}" for p in PROBES if p.test not in facts] == []
    assert {p.test: facts[p.test]["skipped"] for p in PROBES if facts[p.test]["skipped"]} == {}


def run_tests(place, out: dict[str, set[str]], tests: list[str], seconds: float, *options: str):
    """Run tests in a new shadow without the patches `out`: (test -> Outcome, patches left out as well, output)."""
    folder, also = make_shadow(place, out)
    report = ["--junitxml", "report.xml", "-o", "junit_family=xunit1", "--basetemp", str(place / ".tmp")]
    started = time.monotonic()
    done = run_in_shadow(
        folder, ["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *report, *options, *tests], seconds
    )
    took = time.monotonic() - started
    outcomes = read_outcomes(folder / "report.xml") if (folder / "report.xml").exists() else {}
    return outcomes, also, f"exit status {done.returncode} after {took:.0f} s\n{done.stdout[-6000:]}"


def one_at_a_time(function, *arguments):
    """A training run takes up to 12 GB."""
    with RUNNING:
        return function(*arguments)


def of_this_folder(facts: dict) -> list[str]:
    return sorted({p.test for p in PROBES if p.test in facts and p.test.startswith("tests/patches/")})


@pytest.fixture(scope="session")
def trials(facts, request, tmp_path_factory):
    """Probe -> Future of `run_tests`. What needs a training run has one Future in common, and goes last."""
    selected = [i.callspec.params["probe"] for i in request.session.items if "probe" in getattr(i, "fixturenames", ())]
    chosen = [probe for probe in selected if probe.test in facts]
    reads_run = [p for p in chosen if RUN_FIXTURE in facts[p.test]["fixtures"]]
    root = tmp_path_factory.mktemp("left-out")
    futures: dict[Probe | None, Future] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        if any(item.name == WHOLE for item in request.session.items):
            futures[None] = pool.submit(run_tests, root / "whole-series", {}, of_this_folder(facts), SECONDS_RUN)
        for number, probe in enumerate(p for p in chosen if p not in reads_run):
            out = {probe.package: {probe.patch}}
            futures[probe] = pool.submit(run_tests, root / f"{number}", out, [probe.test], SECONDS_PROBE, "-x")
        shared = [p for p in reads_run if p.patch not in OWN_RUN]
        for group in filter(None, [shared, *([p] for p in reads_run if p.patch in OWN_RUN)]):
            out = {name: {p.patch for p in group if p.package == name} for name in {p.package for p in group}}
            place, tests = root / f"run-{group[0].label}", sorted({p.test for p in group})
            futures |= dict.fromkeys(group, pool.submit(one_at_a_time, run_tests, place, out, tests, SECONDS_RUN))
        yield futures
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.label)
def test_probe_fails_when_its_patch_is_left_out(probe, trials, left_out_log):
    assert probe in trials, f"there is no test {probe.test}"
    outcomes, also, output = trials[probe].result()
    outcome = outcomes.get(probe.test, Outcome(0, [], [], 0))
    left_out_log(f"{probe.patch}: {output.splitlines()[0]}: {(outcome.failures or ['NO FAILURE'])[0][:110]}", also)
    assert outcome.fails(), f"{probe.test} does not fail in its body without {probe.patch}: {outcome}\n{output}"
    # In a shared run, two probes that die of one cause show one patch, and nothing of the other.
    alike = [
        other.patch
        for other, future in trials.items()
        if other and other.patch != probe.patch and future is trials[probe]
        and set(outcomes.get(other.test, outcome).failures) & set(outcome.failures)
    ]  # fmt: skip
    assert not alike, f"{probe.patch} and {', '.join(alike)} fail for one reason: give one a probe without the run"


def test_probes_of_this_folder_pass_in_a_shadow_with_the_whole_series(trials, facts):
    """So it is the missing patch that fails them, not the shadow."""
    outcomes, also, output = trials[None].result()
    assert also == []
    assert sorted(test for test, outcome in outcomes.items() if outcome.passes()) == of_this_folder(facts), output
