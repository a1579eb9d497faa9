"""A functional check of the weight sync: a fixed prompt's log-probabilities move if and only if the weights did.

Receipts say what was written; the canary says that it is what the engine computes with. A sync that was never served
has happened to others for weeks (prime-rl #2242, tinker-feedback #70), and on the CPU here (private packed weights).
"""

import asyncio

PROMPT_TOKENS = 32
SURVIVED = 0.5  # kept_share from which an update that moves nothing is an error, not rounding


async def shift(engine) -> float | None:
    """Largest |Δ log-probability|, nats, of the canary prompt's tokens between the served adapter and the base model.

    Measured once for each adapter version, before the first rollout with it, while the engine has no other work; every
    later call of that version gets the same number. None when the base was never measured: `measure_base`.

    Args:
        engine: OpenRLHF's `LLMRayActor`.

    Raises:
        RuntimeError: the served weights equal the base's and the log-probabilities do not; or most of the update
            survived rounding and the log-probabilities do not move at all.
    """
    version = getattr(engine, "adapter_version", 0)
    measured = engine.__dict__.setdefault("canary", {})
    if version not in measured:
        for old in [v for v in measured if v != "base"]:
            del measured[old]
        measured[version] = asyncio.ensure_future(_measure(engine, measured))
    return await measured[version]


def measure_base(engines: list, args) -> None:
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
    now = await _log_probs(engine)
    if receipts is None:
        # Twice, since a kernel that is not deterministic must not be taken for a sync that failed.
        measured["base"] = (now, largest_difference(now, await _log_probs(engine)))
        return 0.0
    if "base" not in measured:
        return None
    base, noise = measured["base"]
    moved = largest_difference(now, base)
    require_consistent(moved, noise, receipts)
    return moved


def require_consistent(moved: float, noise: float, receipts: list[dict]) -> None:
    """Compare the canary with what the workers' receipts say. Raises RuntimeError, see `shift`."""
    changed = max(receipt["changed_share"] for receipt in receipts)
    kept = min(receipt["kept_share"] or 0.0 for receipt in receipts)
    version = receipts[0]["version"]
    if changed == 0 and moved > noise:
        raise RuntimeError(
            f"LoRA sync: adapter version {version} changed no weight, but the canary's log-probabilities moved by "
            f"{moved:.3g} (noise {noise:.3g}): the engine does not compute with the weights of its receipts"
        )
    if kept >= SURVIVED and moved <= noise:
        raise RuntimeError(
            f"LoRA sync: adapter version {version} changed {changed:.1%} of its weights, but the canary's "
            f"log-probabilities moved by {moved:.3g} (noise {noise:.3g}): the new weights are not served"
        )


def largest_difference(a: list[float], b: list[float]) -> float:
    """Largest absolute difference between two lists of equal length."""
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


async def _log_probs(engine) -> list[float]:
    """The engine's log-probability of each canary token but the first."""
    from vllm import SamplingParams

    config = engine.llm.model_config
    vocabulary, length = config.get_vocab_size(), min(PROMPT_TOKENS, config.max_model_len - 1)
    tokens = [7919 * i % vocabulary for i in range(1, length + 1)]  # 7919 is prime: they spread over any vocabulary
    output = await engine.generate(tokens, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    return [place[token].logprob for token, place in zip(tokens[1:], output.prompt_logprobs[1:], strict=True)]
