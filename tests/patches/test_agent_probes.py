"""Probes of the executors that turn a prompt into a sample: the turns of an agent, the time of a reward."""

import asyncio
import types

import pytest
import torch


class Engine:
    """What an executor needs of an engine and a tokenizer; keeps the sampling parameters that it gets."""

    def __init__(self):
        self.asked = []

    async def generate(self, tokens, params):
        self.asked.append(params)
        done = types.SimpleNamespace(token_ids=[5], text="five", finish_reason="stop", logprobs=None)
        return types.SimpleNamespace(outputs=[done])

    def __call__(self, text, **options):
        return {"input_ids": torch.tensor([[1, 2]])}

    def decode(self, tokens, **options):
        return "text"


def seeds_of_turns(seed: int | None, choose=lambda turn, params: None) -> list[int | None]:
    """The seeds of four turns of one sample; `choose(turn, params)` is what its environment asks of the next turn."""
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
    from vllm import SamplingParams

    class Environment(AgentInstanceBase):
        def __init__(self):
            self.turns = 0

        async def step(self, state, **kwargs):
            self.turns += 1
            chosen = choose(self.turns, state["sampling_params"])
            feedback = {"rewards": torch.tensor(0.0), "environment_feedback": "", "done": self.turns == 4}
            return feedback | {"sampling_params": chosen}

    engine, params = Engine(), SamplingParams(max_tokens=4, seed=seed, logprobs=None)
    asyncio.run(MultiTurnAgentExecutor(Environment).execute("p", "1", params, 64, engine, engine))
    return [params.seed for params in engine.asked]


def test_each_turn_of_an_agent_has_its_own_seed():
    from vllm import SamplingParams

    first = seeds_of_turns(7)
    assert first[0] == 7, "a sample of one turn is what it was"
    assert len(set(first)) == 4 and all(0 <= seed < 2**63 for seed in first)
    assert first == seeds_of_turns(7)
    assert not set(first[1:]) & set(seeds_of_turns(8)[1:])
    assert seeds_of_turns(None) == [None] * 4, "where engines seed"
    fresh = lambda turn, params: SamplingParams(max_tokens=4, logprobs=None)  # noqa: E731
    assert seeds_of_turns(7, fresh) == first, "parameters of the environment's own, without a seed"
    own = lambda turn, params: SamplingParams(max_tokens=4, logprobs=None, seed=90 + turn)  # noqa: E731
    assert seeds_of_turns(7, own) == [7, 91, 92, 93]


HANGS = """
import pathlib, time

def reward_func(queries, prompts, labels):
    for _ in range(400):
        if pathlib.Path({release!r}).exists():
            break
        time.sleep(0.05)
    return {{"rewards": [0.0]}}
"""


def test_hanging_reward_function_stops_with_its_name_sample_and_place(tmp_path):
    from openrlhf.utils.agent import SingleTurnAgentExecutor
    from vllm import SamplingParams

    path, release = tmp_path / "my_reward.py", tmp_path / "release"
    path.write_text(HANGS.format(release=str(release)))
    place = {"prompt_index": 17, "sample_index": 3, "reward_timeout": 0.5}
    params, engine = SamplingParams(max_tokens=4, extra_args=place), Engine()

    async def execute():
        try:
            return await SingleTurnAgentExecutor([str(path)]).execute("p", "1", params, 16, engine, engine)
        finally:
            release.touch()  # the loop ends with its threads

    with pytest.raises(RuntimeError) as late:
        asyncio.run(execute())
    text = str(late.value)
    assert f"reward function reward_func ({path}) has not returned after 0.5 s" in text
    assert "batch index 17, sample 3" in text and "time.sleep(0.05)" in text


def execute(tmp_path, source: str) -> dict:
    from openrlhf.utils.agent import SingleTurnAgentExecutor
    from vllm import SamplingParams

    path = tmp_path / "my_reward.py"
    path.write_text(f"def reward_func(queries, prompts, labels):\n    {source}\n")
    params = SamplingParams(max_tokens=4, extra_args={"prompt_index": 17, "sample_index": 3})
    executor = SingleTurnAgentExecutor([str(path)])
    return asyncio.run(executor.execute("p", "1", params, 16, Engine(), Engine()))


def test_failing_reward_function_stops_with_its_name_index_and_traceback(tmp_path):
    with pytest.raises(RuntimeError) as failure:
        execute(tmp_path, "return {'rewards': [1 / 0]}")
    text = str(failure.value)
    assert "reward function reward_func" in text
    assert "my_reward.py" in text
    assert "ZeroDivisionError" in text
    assert "batch index 17, sample 3" in text
    assert "return {'rewards': [1 / 0]}" in text
    for source, found in (
        ("return {'rewards': [1.0, 0.0]}", "returned 2 rewards for 1 sample"),
        ("return None", "returned no reward"),
        ("return {'rewards': [float('nan')]}", "returned rewards nan"),
    ):
        with pytest.raises(RuntimeError, match=found):
            execute(tmp_path, source)


def test_reward_of_any_kind_becomes_one_number(tmp_path):
    assert execute(tmp_path, "import torch; return {'rewards': torch.tensor([1.0]), 'scores': [0]}")["scores"] == 0.0
    assert execute(tmp_path, "return {'rewards': 0.25}")["reward"] == 0.25
