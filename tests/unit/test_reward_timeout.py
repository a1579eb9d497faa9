"""Reward functions that hang: in Python, where the event loop names them, and in one step of the interpreter."""

import asyncio
import subprocess
import sys
import textwrap
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from rft.hooks import rewards


def params(seconds: float):
    return types.SimpleNamespace(extra_args={"prompt_index": 17, "sample_index": 3, "reward_timeout": seconds})


def executor(reward_func):
    return types.SimpleNamespace(reward_func=reward_func, reward_endpoints=["reward.py"])


def test_a_hang_is_named_with_sample_time_and_place():
    released = []

    def hangs(queries, prompts, labels):
        while not released:
            pass

    async def both():
        try:
            await rewards.call(executor(hangs), "q", "p", "1", params(0.5))
        finally:
            released.append(True)  # or the thread would keep this process from ending

    with pytest.raises(rewards.RewardError) as late:
        asyncio.run(both())
    text = str(late.value)
    assert text.startswith(f"reward function hangs ({__file__}) has not returned after 0.5 s")
    assert "batch index 17, sample 3" in text and "--reward_timeout" in text
    assert "in hangs" in text.splitlines()[-2], "the last frame is where it hangs"


def test_waiting_for_a_thread_is_no_hang():
    def slow(queries, prompts, labels):
        time.sleep(0.4)
        return {"rewards": [float(labels[0])]}

    async def many():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.gather(*(rewards.call(executor(slow), "q", "p", str(n), params(3)) for n in range(8)))

    assert [found["rewards"] for found in asyncio.run(many())] == [[float(n)] for n in range(8)]


def test_without_a_limit_and_with_one_results_and_errors_are_the_functions_own():
    def raises(queries, prompts, labels):
        raise KeyError(labels[0])

    for given in (types.SimpleNamespace(extra_args=None), params(None), params(60)):
        call = rewards.call(executor(lambda *words: words), "q", "p", "1", given)
        assert asyncio.run(call) == (["q"], ["p"], ["1"])
        with pytest.raises(KeyError, match="7"):
            asyncio.run(rewards.call(executor(raises), "q", "p", "7", given))


HELD = """
    import asyncio, re, types
    from rft.hooks import reward_watchdog, rewards

    reward_watchdog.GRACE_SECONDS = 0.5

    def backtracks(queries, prompts, labels):
        if labels == ["1"]:
            return {"rewards": [1.0]}
        return re.match("(a+)+$", "a" * 64 + "b")  # one call of a C function, for ever

    def params(seconds):
        return types.SimpleNamespace(extra_args={"prompt_index": 17, "sample_index": 3, "reward_timeout": seconds})

    executor = types.SimpleNamespace(reward_func=backtracks, reward_endpoints=["reward.py"])
    print(asyncio.run(rewards.call(executor, "q", "p", "1", params(60))), flush=True)
    asyncio.run(rewards.call(executor, "q", "p", "2", params(0.5)))
"""


def test_a_function_that_lets_no_thread_run_costs_the_process_and_is_named(tmp_path):
    script = tmp_path / "held.py"
    script.write_text(textwrap.dedent(HELD))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'rewards': [1.0]}\n"
    assert done.returncode == -9
    first, where, repair, found = done.stderr.splitlines()
    assert first == f"reward function backtracks ({script}) has not returned after 0.5 s"
    assert where.strip() == "batch index 17, sample 3"
    assert "--reward_timeout" in repair and "interpreter lock" in found


def test_the_watchdog_ends_with_the_process_that_it_watches(tmp_path):
    code = """
        from rft.hooks import reward_watchdog
        reward_watchdog.end(reward_watchdog.begin(60, "late"))
        reward_watchdog.begin(60, "late")
    """
    # Returns when the standard output has closed, which the watchdog has inherited.
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
