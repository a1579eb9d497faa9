"""Reward of code tasks for OpenRLHF 0.9.3: ``--remote_rm_url rewards/reward_func_code.py``. Asks the code server.

1.0 where every test passes, else 0.0. OpenRLHF gives a reward file no options; these are environment variables:
RFT_CODE_PASS_RATE_THRESHOLD (0 to 1): the share of tests passed is the reward, and 0 below this share.
RFT_CODE_SECONDS: CPU seconds a test may take, default 5.0.
RFT_CODE_ALLOW_UNSAFE=1: train with a server that isolates nothing. CODE_SERVER_URL says where the server is.
"""

import asyncio
import math
import os
import threading

import torch

from rft.code.extract import METHODS
from rft.code_server.client import SECONDS, Client
from rft.code_server.grade import Grade, grade, require_isolation
from rft.grading import response_of

EXCLUDED_SCORE = -1.0  # outside of 0 to 1, so that dynamic filtering drops the group whatever its range
CAUSES = {"compile_error": "compile_error"}  # what is logged, and the server's name of it
CAUSES |= {f"test_{cause}": cause for cause in ("error", "timeout", "killed", "unsupported")}


def reward_func(queries: list[str], prompts: list[str], labels: list, **kwargs: object) -> dict:
    """Test the program of each response against its label (`rft.code.labels`).

    OpenRLHF calls this with lists of one, in as many threads at once as Python's executor has (CPU cores + 4, 32 at
    most); all of them share one event loop and its connections. Returns ``rewards`` and ``scores``, float32 ``(n,)``,
    and ``extra_logs``, a dict of finite float32 ``(n,)`` and one of texts, for the sample files.

    A label that cannot be parsed is excluded, not graded, as `rewards/reward_func_em.py` does it.

    Raises CodeServerError where the server gives no verdict, after the client's retries, or does not isolate programs
    and RFT_CODE_ALLOW_UNSAFE is unset: the trainer makes a RewardError of it and ends. Never a reward of 0. Raises
    ValueError where a query does not begin with its prompt.
    """
    pairs = [(response_of(query, prompt), prompt) for query, prompt in zip(queries, prompts, strict=True)]
    grades = asyncio.run_coroutine_threadsafe(_grade_all(pairs, labels), _loop()).result()
    rewards = _floats(reward_of(g) for g in grades)
    return {
        "rewards": rewards,
        "scores": _floats(reward_of(g) if g.label_valid else EXCLUDED_SCORE for g in grades),
        "extra_logs": {
            "correctness": _floats(g.correct for g in grades),
            "pass_rate": _floats(g.pass_rate for g in grades),
            "has_program": _floats(g.program is not None for g in grades),
            "extraction_method": _floats(METHODS.index(g.method) for g in grades),
            **{name: _floats(g.met(cause) for g in grades) for name, cause in CAUSES.items()},
            "test_causes": [" ".join(g.answer.causes) if g.answer else "" for g in grades],
            "slowest_test_seconds": _floats(max(g.answer.runtimes) if g.answer else 0.0 for g in grades),
            "unsafe_verdict": _floats(g.answer is not None and g.answer.isolation == "none" for g in grades),
            "truncated_response": _floats(g.truncated for g in grades),
            "label_invalid": _floats(not g.label_valid for g in grades),
        },
    }


def reward_of(graded: Grade) -> float:
    """1 or 0; with a threshold the pass rate, 0 below it."""
    if THRESHOLD is None:
        return float(graded.correct)
    return graded.pass_rate if graded.pass_rate >= THRESHOLD else 0.0


async def _grade_all(pairs: list[tuple[str, str]], labels: list) -> list[Grade]:
    global _client, _isolates
    _client = _client or Client()
    if not _isolates:
        require_isolation((await _client.health())["isolation"], _client.url)
        _isolates = True
    work = (grade(_client, *pair, label, TEST_SECONDS) for pair, label in zip(pairs, labels, strict=True))
    return await asyncio.gather(*work)


def _loop() -> asyncio.AbstractEventLoop:
    """The one event loop behind all threads, in a thread of its own."""
    global _running
    with _lock:
        if _running is None:
            _running = asyncio.new_event_loop()
            threading.Thread(target=_running.run_forever, name="code rewards", daemon=True).start()
        return _running


def _number(name: str, low: float, high: float, default: float | None) -> float | None:
    """An option from the environment; ValueError, when the engine loads this file, where it is no such number."""
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ValueError(f"found {name}={text}, wanted a number from {low:g} to {high:g}; correct it or unset it")
    return value


def _floats(values) -> torch.Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float32)


THRESHOLD = _number("RFT_CODE_PASS_RATE_THRESHOLD", 0.0, 1.0, None)
TEST_SECONDS = _number("RFT_CODE_SECONDS", 0.1, 60.0, SECONDS)
_lock = threading.Lock()
_running: asyncio.AbstractEventLoop | None = None
_client: Client | None = None
_isolates = False  # the server has said so, or nobody minds
