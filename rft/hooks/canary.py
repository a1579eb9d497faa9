"""A functional check of the weight sync: a fixed prompt's log-probabilities move if and only if the weights did.

Receipts say what was written; the canary says that it is what the engine computes with. A sync that was never served
has happened to others for weeks (prime-rl #2242, tinker-feedback #70), and on the CPU here (private packed weights).
"""

import asyncio
import statistics
from argparse import Namespace
from typing import TYPE_CHECKING

from rft.hooks import weight_digest
from rft.rules.stability import LOUD

if TYPE_CHECKING:
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor

PROMPT_TOKENS = 32
# Share of the probed layer outputs that moved. From here on an update that moves no log-probability is an error, not
# rounding: even a tiny model computes the canary's log-probabilities from 24,000 such outputs, so that some 24 moved.
VISIBLE = 1e-3
OTHERS = 4  # requests before each measurement, of different lengths
MEASUREMENTS = 16  # of the base model, and of an adapter that looks wrong on an engine with noise
APART = 8.0  # standard errors from which weights have moved for certain; see `apart`
SEEN = 5.0  # from which an update counts as served: 7e-4 by chance, which delays the finding by a few versions
PATIENCE = 10  # adapter versions in a row that hide in an engine's noise before the sync counts as not served


async def shift(engine: "LLMRayActor") -> float | None:
    """Largest |Δ log-probability|, nats, of the canary prompt's tokens between the served adapter and the base model.

    Measured once for each adapter version, before the first rollout with it, while the engine has no other work; every
    later call of that version gets the same number. None when the base was never measured: `measure_base`.

    The base is measured several times with other requests between, and the nearest of these counts. An engine whose
    kernels are deterministic gives the same numbers each time, bit for bit, and one measurement shows an adapter that
    was not served. On any other the spread of the base is the noise level. What looks wrong is measured as often as
    the base before it is judged, see `judge`. Where nothing was to move and did, and every byte of the engine's weights
    is the base's, its kernels have begun to round otherwise: these measurements are noise too, and the run goes on.

    Args:
        engine: OpenRLHF's `LLMRayActor`.

    Raises:
        RuntimeError: the update is zero, and both the log-probabilities and the engine's weights are others; or the
            layers' outputs moved (`VISIBLE`, `LOUD`) and the log-probabilities do not, at once on a deterministic
            engine, for `PATIENCE` versions in a row where noise may hide it.
    """
    version = getattr(engine, "adapter_version", 0)
    measured = engine.__dict__.setdefault("canary", {})
    if version not in measured:
        for old in [v for v in measured if v not in ("base", "weights", "hidden")]:
            del measured[old]
        measured[version] = asyncio.ensure_future(_measure(engine, measured))
    return await measured[version]


def measure_base(engines: list, args: Namespace) -> None:
    """Let every engine measure the base model, before a resumed run gives them its adapter; blocks.

    Args:
        engines: handles of OpenRLHF's `LLMRayActor`.
        args: OpenRLHF's; under `vllm_enable_sleep` the engines are woken for it.
    """
    from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

    if args.vllm_enable_sleep:
        batch_vllm_engine_call(engines, "wake_up")
    batch_vllm_engine_call(engines, "canary_shift")
    if args.vllm_enable_sleep:
        batch_vllm_engine_call(engines, "sleep")


async def _measure(engine, measured: dict) -> float | None:
    receipts = getattr(engine, "adapter_receipts", None)
    if receipts is None:
        await _log_probs(engine)  # the first may choose kernels, and so compute with others than all later ones
        measured["base"] = [await _after_others(engine, number) for number in range(MEASUREMENTS)]
        measured["weights"] = await weight_digest.digests(engine)
        return 0.0
    if "base" not in measured:
        return None
    base, now = measured["base"], [await _log_probs(engine)]
    noise = noise_of(base)
    moved = min(largest_difference(now[0], one) for one in base)
    doubt = suspicion(moved, noise, receipts)
    # Measurements that were equal by chance prove no determinism: one that stands alone must not end a run.
    if doubt == "changed nothing" or (noise and doubt):
        now += [await _after_others(engine, number) for number in range(1, MEASUREMENTS)]
    if doubt == "changed nothing" and apart(base, now) > APART:
        require_same_weights(measured["weights"], await weight_digest.digests(engine), receipts[0]["version"], moved)
        base += now
    measured["hidden"] = judge(base, now, receipts, measured.get("hidden", 0))
    return moved


def require_same_weights(before: list[dict], now: list[dict], version: int, moved: float) -> None:
    """Log-probabilities moved under an adapter that changed nothing: RuntimeError unless the weights are the same.

    Args:
        before, now: checksums of the engine's workers, `rft.hooks.weight_digest`.
        version, moved: of the adapter; by how many nats.
    """
    if names := weight_digest.changed(before, now):
        raise RuntimeError(
            f"LoRA sync: adapter version {version} changed no weight, but the canary's log-probabilities moved by "
            f"{moved:.3g}, and {len(names)} tensors of the engine are not what they were, such as {names[0]}: the "
            "engine does not compute with the weights of its receipts"
        )
    print(
        f"canary: with adapter version {version}, which changed no weight, its log-probabilities moved by {moved:.3g} "
        "nats, and every weight of the engine is what it was: its kernels round otherwise than before. That much is "
        "noise from now on",
        flush=True,
    )


def judge(base: list[list[float]], now: list[list[float]], receipts: list[dict], hidden: int) -> int:
    """Whether the canary shows the update of the workers' receipts. Raises RuntimeError, see `shift`.

    Args:
        base: log-probabilities of the canary's tokens, of each measurement of the base model.
        now: the same of the served adapter: one measurement, or `MEASUREMENTS` where one would be noise.
        receipts: of the engine's workers, `rft.hooks.lora_worker.apply_lora`.
        hidden: adapter versions in a row, up to this one, whose update was not to be seen in the noise.

    Returns:
        The next `hidden`.
    """
    version, noise = receipts[0]["version"], noise_of(base)
    moved = min(largest_difference(now[0], one) for one in base)
    doubt = suspicion(moved, noise, receipts)
    distance = apart(base, now)
    if doubt != "moved nothing" or distance > SEEN:
        return 0
    if noise and hidden + 1 < PATIENCE:
        return hidden + 1
    changed = max(receipt["changed_share"] for receipt in receipts)
    raise RuntimeError(
        f"LoRA sync: adapter version {version} changed {changed:.1%} of its weights, but the canary's "
        f"log-probabilities moved by {moved:.3g} (noise {noise:.3g}), for {hidden + 1} versions: the new weights "
        "are not served"
    )


def suspicion(moved: float, noise: float, receipts: list[dict]) -> str | None:
    """What speaks against a receipt after one measurement: `changed nothing` but moved, `moved nothing` but changed."""
    if max(receipt["changed_share"] for receipt in receipts) == 0:
        return "changed nothing" if moved > noise else None
    seen = min(receipt["output_moved_share"] for receipt in receipts) >= (LOUD if noise else VISIBLE)
    return "moved nothing" if seen and moved <= noise else None


def noise_of(base: list[list[float]]) -> float:
    """The largest difference between two measurements of the same weights, nats; 0 for deterministic kernels."""
    return max(max(values) - min(values) for values in zip(*base, strict=True))


def apart(base: list[list[float]], now: list[list[float]]) -> float:
    """Student's t between two sets of measurements, pooled variance, the largest over the tokens; 0 for equal sets.

    With 16 and 16 measurements of the same weights and normal noise, t exceeds `APART` with probability 6e-9 a token,
    2e-7 for 31 of them. Noise of two values is the worst: equal weights then exceed it where one value fills (nearly)
    one set and the other the other, with probability 8e-7 a token at most. And a check of unchanged weights comes to
    this only where one measurement lay outside of the base's spread.
    """
    values = []
    for before, after in zip(zip(*base, strict=True), zip(*now, strict=True), strict=True):
        n, m = len(before), len(after)
        distance = abs(statistics.fmean(before) - statistics.fmean(after))
        scatter = n * statistics.pvariance(before) + m * statistics.pvariance(after)
        error = (scatter / (n + m - 2) * (1 / n + 1 / m)) ** 0.5
        values.append(distance / error if error else float("inf") if distance else 0.0)
    return max(values)


def largest_difference(a: list[float], b: list[float]) -> float:
    """Largest absolute difference between two lists of equal length."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


async def _after_others(engine, number: int) -> list[float]:
    """`_log_probs` after other requests: a few short ones, and twice in a row of measurements a full batch.

    What ran before can change how kernels round, so measurements one after another agree and say nothing about the
    noise of a run. On an H200 gpt-oss-120b's engine gave other log-probabilities, the same ones from then on, once a
    batch had filled `max_num_batched_tokens`; its weights were equal, bit for bit (docs/benchmarks.md).
    """
    from vllm import SamplingParams

    lengths = [PROMPT_TOKENS * (i + 1) // OTHERS for i in range(OTHERS)]
    if number % (MEASUREMENTS // 2) == MEASUREMENTS // 4:
        batch, longest = engine.llm.vllm_config.scheduler_config.max_num_batched_tokens, _longest(engine)
        lengths = [longest] * (batch // longest + 1)
    sampling = SamplingParams(max_tokens=OTHERS, temperature=0, ignore_eos=True)
    others = [_tokens(engine, number * OTHERS + i + 1, length) for i, length in enumerate(lengths)]
    await asyncio.gather(*(engine.generate(tokens, sampling) for tokens in others))
    return await _log_probs(engine)


def _longest(engine) -> int:
    """Tokens of the longest prompt that leaves room for an answer."""
    return engine.llm.model_config.max_model_len - OTHERS


def _tokens(engine, first: int, length: int) -> list[int]:
    """Token ids from all over the vocabulary, at most `length` of them and `_longest`."""
    vocabulary = engine.llm.model_config.get_vocab_size()
    places = range(first, first + min(length, _longest(engine)))
    return [7919 * place % vocabulary for place in places]  # 7919 is prime: they spread over any vocabulary


async def _log_probs(engine) -> list[float]:
    """The engine's log-probability of each canary token but the first."""
    from vllm import SamplingParams

    tokens = _tokens(engine, 1, PROMPT_TOKENS)
    output = await engine.generate(tokens, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    return [place[token].logprob for token, place in zip(tokens[1:], output.prompt_logprobs[1:], strict=True)]
