"""Every patch is live: with it left out of the tree, the probe that its header names fails.

It fails by an assertion, or with the very error that the patch keeps upstream from raising: a probe that dies of a name
which another patch or a hook misses shows nothing. Each probe runs in a shadow checkout (see shadow.py). Probes that
read a whole training run share one run, from which all their patches are left out at once, and those of `TOGETHER` an
engine or two ranks. `-k PATCH` selects, and only what is selected is run. With the whole series in place the probes
pass where they stand, in tests/patches and tests/stack.
"""

import time
from functools import cache

import pytest
from forked import run_forked
from probes import RUN_FIXTURE, Outcome, Probe, all_probes, collect, read_outcomes
from shadow import SERIES, change_shadow, make_shadow, run_in_shadow

PROBES = all_probes()
OPENRLHF, VLLM = SERIES["openrlhf"], SERIES["vllm"]
SECONDS_PROBE, SECONDS_RUN = 900, 2400
LEFT_OUT = "left out"
ASSERTED = ("assert ", "AssertionError", "Failed: ")  # how pytest begins what it says of an assertion, and of `fail`
# What upstream dies of without the patch, as its Why says: the beginning of the error.
UPSTREAM_DIES = {
    "optional-flash-attn.patch": "ModuleNotFoundError: No module named 'flash_attn'",
    # transformers, of a checkpoint that is quantised and a configuration of None
    "mxfp4-actor-load.patch": (
        "AttributeError: 'NoneType' object has no attribute 'to_dict'",
        "AttributeError: 'NoneType' object has no attribute 'get'",  # transformers 5
    ),
    "numeric-extra-logs.patch": "ValueError: too many dimensions 'str'",
    "zero-learning-rate.patch": "ZeroDivisionError: float division by zero",
    "full-sync-without-nccl.patch": (
        "ValueError: Expected a cuda device, but got: cpu",
        "RuntimeError: NCCL error: unhandled cuda error",  # vLLM 0.19.1
    ),
    "mxfp4-without-kernel.patch": (
        "AssertionError: get_mxfp4_backend(with_lora_support=False) found",
        "AttributeError: 'NoneType' object has no attribute 'is_monolithic'",  # vLLM 0.19.1
    ),
    "cpu-seeded-requests.patch": "RuntimeError: CPU Generator does not use offset",
}
if OPENRLHF == "openrlhf-0.9.10":  # a rank dies of torch's "a view and is being modified inplace"
    UPSTREAM_DIES["step-without-graph.patch"] = "RuntimeError: actor_checks.py: exit status 1"
# Left out together, for one start of an engine or of two ranks: none of them has to do with what another's probe looks
# at. (Without cpu-live-weights the probe of cpu-rows-alone would fail as well, and that of engine-options would die of
# vLLM 0.19.1's packed weights: these are apart.)
TOGETHER = (
    {
        f"{VLLM}/cpu-live-weights.patch",
        f"{VLLM}/cpu-seeded-requests.patch",
        f"{VLLM}/gpt-oss-unknown-weights.patch",
        f"{VLLM}/ranks-on-the-loopback.patch",
    },
    {f"{VLLM}/cpu-rows-alone.patch", f"{VLLM}/mxfp4-without-kernel.patch"},
    {f"{OPENRLHF}/mxfp4-loaded-once.patch", f"{OPENRLHF}/ranks-on-the-loopback.patch"},
)
# These run in processes of their own making and use what no patch touches of vLLM, or fail before they start an engine.
WITHOUT_ENGINE = (
    "tests/patches/",
    "tests/stack/test_actor_training.py",
    "tests/stack/test_spikes.py",
    "tests/stack/test_zero3_load.py",
    "tests/stack/test_engine.py::test_weight_that_comes_as_bytes_is_loaded_and_sharded",
    "tests/stack/test_engine.py::test_served_weights_are_the_merged_weights_bit_for_bit",
    "tests/stack/test_rollouts.py::test_engine_reports_the_death_of_its_core",
    "tests/stack/test_training_run.py::test_adapters_are_served_exactly",
)


@pytest.fixture(scope="session")
def facts(tmp_path_factory):
    return collect([probe.test for probe in PROBES], tmp_path_factory.mktemp("facts") / "facts.json")


def test_every_probe_is_found_and_not_skipped_here(facts):
    assert [f"{p.patch}: {p.test}" for p in PROBES if p.test not in facts] == []
    assert UPSTREAM_DIES.keys() - {p.patch for p in PROBES} == set()
    assert set().union(*TOGETHER) - {p.name for p in PROBES} == set()
    assert {p.test: facts[p.test]["skipped"] for p in PROBES if facts[p.test]["skipped"]} == {}


def run_tests(root, label: str, out: dict[str, set[str]], tests: list[str], seconds: float):
    """Run tests in a shadow without the patches `out`: (test -> Outcome, patches left out as well, output).

    Where no engine is started, in the one shadow `root/forked`, which is changed from one call to the next.
    """
    forked = VLLM not in out and all(test.startswith(WITHOUT_ENGINE) for test in tests)
    place = root / ("forked" if forked else label)
    if place.exists():
        also = change_shadow(place, out)
    else:
        _, also = make_shadow(place, out)
    report = place / "report.xml"
    report.unlink(missing_ok=True)
    # Tensor-parallel engines fail as those of one rank do.
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-k", "not tp2", "--basetemp", str(place / ".tmp")]
    options += ["--junitxml", str(report), "-o", "junit_family=xunit1", *(["-x"] if len(tests) == 1 else [])]
    started = time.monotonic()
    if forked:
        done = run_forked(place, [*options, *tests], seconds)
    else:
        done = run_in_shadow(place, ["-m", "pytest", *options, *tests], seconds)
    took = time.monotonic() - started
    outcomes = read_outcomes(report) if report.exists() else {}
    return outcomes, also, f"exit status {done.returncode} after {took:.0f} s\n{done.stdout[-6000:]}"


def of_this_folder(facts: dict) -> list[str]:
    return sorted({p.test for p in PROBES if p.test in facts and p.test.startswith("tests/patches/")})


@pytest.fixture(scope="session")
def trial(facts, request, tmp_path_factory):
    """A function from a probe to the `run_tests` without its patch, and who shares it; None: nothing left out."""
    root = tmp_path_factory.mktemp("left-out")
    selected = [i.callspec.params["probe"] for i in request.session.items if "probe" in getattr(i, "fixturenames", ())]

    def reads_a_run(probe: Probe) -> bool:
        return RUN_FIXTURE in facts.get(probe.test, {"fixtures": ()})["fixtures"]

    def sharing(probe: Probe) -> tuple[Probe, ...]:
        if reads_a_run(probe):
            return tuple(filter(reads_a_run, selected))
        group = next((names for names in TOGETHER if probe.name in names), set())
        return tuple(other for other in selected if other.name in group) or (probe,)

    @cache
    def run(probes: tuple[Probe, ...], seconds: float):
        out = {name: {p.patch for p in probes if p.package == name} for name in {p.package for p in probes}}
        tests = sorted({p.test for p in probes}) or of_this_folder(facts)
        return run_tests(root, probes[0].label if probes else "whole-series", out, tests, seconds)

    def of(probe: Probe | None):
        probes = sharing(probe) if probe else ()
        return run(probes, SECONDS_RUN if not probe or reads_a_run(probe) else SECONDS_PROBE), probes

    return of


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.label)
def test_probe_fails_when_its_patch_is_left_out(probe, facts, trial, record_property):
    assert probe.test in facts, f"there is no test {probe.test}"
    (outcomes, also, output), sharing = trial(probe)
    outcome = outcomes.get(probe.test, Outcome(0, [], [], 0))
    said = f"{probe.patch}: {output.splitlines()[0]}: {(outcome.failures or ['NO FAILURE'])[0][:110]}"
    record_property(LEFT_OUT, said + (f" (also left out: {', '.join(also)})" if also else ""))
    assert outcome.fails(), f"{probe.test} does not fail in its body without {probe.patch}: {outcome}\n{output}"
    wanted = UPSTREAM_DIES.get(probe.patch, ASSERTED)
    strange = [failure for failure in outcome.failures if not failure.startswith(wanted)]
    assert not strange, f"{probe.test} does not fail by {wanted} without {probe.patch}, but: {strange}\n{output}"
    # In a shared run, two probes that die of one cause show one patch, and nothing of the other.
    alike = [
        other.patch
        for other in sharing
        if other.patch != probe.patch
        and set(outcomes.get(other.test, outcome).failures) & set(outcome.failures)
    ]  # fmt: skip
    assert not alike, f"{probe.patch} and {', '.join(alike)} fail for one reason: give one a probe without the run"


def test_probes_of_this_folder_pass_in_a_shadow_with_the_whole_series(trial, facts):
    """So it is the missing patch that fails them, not the shadow."""
    (outcomes, also, output), _ = trial(None)
    assert also == []
    assert sorted(test for test, outcome in outcomes.items() if outcome.passes()) == of_this_folder(facts), output
