"""Attacks 1 to 64 on the real server: none passes a test, leaves anything on the host or hurts another job."""

import threading

import host_watch
import pytest
import served
from attacks import (
    calling,
    crashing,
    exhausting,
    forging,
    outliving,
    poisoning,
    prying,
    replacing,
    returning,
    trespassing,
)

FAMILIES = (forging, replacing, prying, returning, poisoning, exhausting, crashing, outliving, calling, trespassing)
ATTACKS = [attack for family in FAMILIES for attack in family.ATTACKS]


def test_every_attack_has_a_program():
    assert {attack.number for attack in ATTACKS} == set(range(1, 65))
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


def test_the_watch_sees_a_program_that_runs(server):
    """What the attacks are looked for with: their names, and the number of processes."""
    program = served.MARKED + "import time\ndef f(x):\n    time.sleep(2)\n    return x"
    answer = []

    thread = threading.Thread(target=lambda: answer.append(server.judge(program, ["assert f(1) == 1"])))
    thread.start()
    seen = host_watch.soon(host_watch.marked, "the program is not seen")
    thread.join()
    assert answer[0][1]["results"] == [1]
    server.nothing_left()
    assert not set(seen) & set(host_watch.processes())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(server, attack):
    beside = server.beside()
    status, answer = server.attack(attack)
    assert 400 <= status < 500 or (status, answer["results"]) == (200, attack.expected), (status, str(answer)[:2000])
    if status == 200:
        assert answer["isolation"] == server.level
        assert len(answer["causes"]) == len(answer["runtimes"]) == len(attack.tests)
        assert all(
            (cause == "passed") == bool(result)
            for cause, result in zip(answer["causes"], answer["results"], strict=True)
        )
    assert beside() == (200, served.HONEST_RESULTS)
    assert server.process.poll() is None, server.log()
    assert server.honest() == (200, served.HONEST_RESULTS)
    server.nothing_left()
