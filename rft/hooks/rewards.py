"""Rewards that are right or stop the run: upstream logs an exception and trains on without a reward."""

import asyncio
import inspect
import math
import numbers
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from rft.hooks import reward_watchdog

if TYPE_CHECKING:
    from openrlhf.utils.agent import SingleTurnAgentExecutor
    from vllm import SamplingParams


class RewardError(RuntimeError):
    """A reward function raised, did not return in time, or returned what cannot be a reward."""


def merge(rewards_info: list | None, source: str, where: str) -> dict:
    """The reward of one sample, from what a reward function or server returned for it.

    Args:
        rewards_info: a list of one dict: `rewards`, one number (plain, or a list, array or tensor of one), `scores`
            likewise (default: the reward), `extra_logs`, a dict (default: empty).
        source: the reward function's file or the server's address, for messages.
        where: which sample, for messages.

    Returns:
        `reward` and `scores`, floats, and `extra_logs`. A score of 0 counts as a score; upstream takes it for a missing
        one (OpenRLHF #1219).

    Raises:
        RewardError: no reward, another number of them than samples, or one that is not a finite number.
    """
    info = rewards_info[0] if rewards_info else None
    if not isinstance(info, dict) or info.get("rewards") is None:
        raise RewardError(
            f"{source} returned no reward\n  {where}\n  found:  {info!r}\n  wanted: a dict with 'rewards'"
        )
    reward = _single(info["rewards"], "rewards", source, where)
    score = reward if info.get("scores") is None else _single(info["scores"], "scores", source, where)
    return {"reward": reward, "scores": score, "extra_logs": info.get("extra_logs") or {}}


async def call(
    executor: "SingleTurnAgentExecutor", query: str, prompt: str, label: str, sampling_params: "SamplingParams"
) -> dict:
    """What the reward function returns for one sample, called in a thread as upstream does, but not forever.

    The time counts from where the function begins: samples wait for one of a few threads, and a queue is no hang.
    A function that never lets this thread run again is ended by `rft.hooks.reward_watchdog`, with the whole engine.

    Args:
        executor: OpenRLHF's `SingleTurnAgentExecutor`.
        sampling_params: its `extra_args` name the sample, and hold `reward_timeout`, seconds; without it no limit.

    Raises:
        RewardError: it has not returned in time; the text says where it was then.
    """
    seconds = (sampling_params.extra_args or {}).get("reward_timeout")
    late = f"{name_of(executor)} has not returned after {seconds} s\n  {position(sampling_params)}"
    late += "\n  repair: fix the function, or give it more time, --reward_timeout SECONDS"
    loop, begun, threads, watched = asyncio.get_running_loop(), asyncio.Event(), [], []

    def run() -> dict:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(begun.set)  # before anything that may raise, or the loop would wait forever
        if seconds is not None:
            watched.append(reward_watchdog.begin(seconds, f"{late}\n  found:  it held Python's interpreter lock"))
        try:
            return executor.reward_func([query], [prompt], [label])
        finally:
            forget()

    def forget() -> None:
        for number in watched:
            reward_watchdog.end(number)

    result = asyncio.ensure_future(asyncio.to_thread(run))
    await begun.wait()
    done, _ = await asyncio.wait([result], timeout=seconds)
    if not done:
        stack = "".join(traceback.format_stack(sys._current_frames()[threads[0]])).rstrip()
        forget()
        raise RewardError(f"{late}\n{stack}")
    return result.result()


def failure(error: Exception, source: str, where: str) -> RewardError:
    """The error that stops training when the reward function raised `error`; its text holds the traceback."""
    if isinstance(error, RewardError):
        return error
    text = "".join(traceback.format_exception(error)).rstrip()
    return RewardError(f"{source} raised {type(error).__name__}: {error}\n  {where}\n{text}")


def name_of(executor: "SingleTurnAgentExecutor") -> str:
    """The reward function's name and file, or the addresses of the reward servers."""
    if executor.reward_func is None:
        return f"reward server {', '.join(executor.reward_endpoints)}"
    file = inspect.getsourcefile(executor.reward_func) or executor.reward_endpoints[0]
    return f"reward function {getattr(executor.reward_func, '__name__', 'reward_func')} ({file})"


def position(sampling_params: "SamplingParams") -> str:
    """Which sample a request is, see `rft.hooks.rollout_seeds.assign`."""
    place = getattr(sampling_params, "extra_args", None) or {}
    return f"batch index {place.get('prompt_index', 'unknown')}, sample {place.get('sample_index', 'unknown')}"


def _single(value, field: str, source: str, where: str) -> float:
    values = value.flatten().tolist() if hasattr(value, "flatten") else value
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(values) != 1:
        raise RewardError(
            f"{source} returned {len(values)} {field} for 1 sample\n  {where}\n"
            f"  wanted: as many {field} as queries, in their order"
        )
    if not isinstance(values[0], numbers.Real) or not math.isfinite(values[0]):
        raise RewardError(f"{source} returned {field} {values[0]!r}\n  {where}\n  wanted: a finite number")
    return float(values[0])
