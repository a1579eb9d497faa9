"""The executor that OpenRLHF calls: its answer, its errors, and its one client of a retriever that really answers."""

import asyncio
import json
import re
import runpy
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from openrlhf.utils.agent import AgentExecutorBase
from scripted_agent import TOKENIZER, Scripted, ids, params

from rft.agents.executor import AgentError, SearchExecutor
from rft.agents.settings import Settings
from rft.grading.short_answer import label_of
from rft.hooks.numeric_logs import numeric_only, text_only
from rft.hooks.rollout_seeds import assign

ROOT = Path(__file__).parents[2]
PROMPT = "<|start|>user<|message|>?<|end|>"
SEARCH, ANSWER = "<search>alder leaf</search>", "<answer>The Teeth.</answer>"
LABEL = label_of(["teeth", "a saw"])
NUMBERS = {
    "turns", "searches", "invalid_actions", "observation_tokens", "action_tokens", "search_seconds", "answered",
    "forced_answer", "information_cut", "correctness", "label_invalid",
}  # fmt: skip
TEXTS = {"answer", "turn_seconds", "search_latencies"}


@asynccontextmanager
async def retriever(handler):
    """A server on a free port that answers /retrieve with what `handler(query)` returns; its requests' peers."""
    peers = []

    async def answer(request: web.Request) -> web.Response:
        peers.append(request.transport.get_extra_info("peername"))
        asked = await request.json()
        found = [await handler(query) for query in asked["queries"]]
        if not all(isinstance(each, list) for each in found):
            return web.Response(status=400, text="no such query")
        return web.json_response({"result": found})

    app = web.Application()
    app.router.add_post("/retrieve", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", peers
    finally:
        await runner.cleanup()


def passage(text: str) -> dict:
    return {"document": {"id": "1", "contents": f'"A title"\n{text}', "title": "A title", "text": text}, "score": 1.0}


async def found(query: str) -> list[dict]:
    return [passage(f"All about {query}.")]


def settings(url: str, **changes) -> Settings:
    return Settings(**{"turn_tokens": 80, "observation_tokens": 500, "retriever_url": url} | changes)


def sample(executor: SearchExecutor, script: list, number: int = 0, label=LABEL, max_length=4000):
    place = {"prompt_index": 7, "reward_timeout": None, "seed": 1, "step": 2, "occurrence": 0}
    asked = assign(params(max_tokens=9000), PROMPT, place, number)
    return executor.execute(PROMPT, label, asked, max_length, TOKENIZER, Scripted(script))


def one(script: list, handler=found, **changes) -> dict:
    async def run() -> dict:
        async with retriever(handler) as (url, _):
            executor = SearchExecutor(settings(url))
            try:
                return await sample(executor, script, **changes)
            finally:
                await executor.close()

    return asyncio.run(run())


def test_the_file_of_the_agent_is_what_openrlhf_loads(monkeypatch):
    monkeypatch.setenv("RFT_AGENT_MAX_TURNS", "3")
    loaded = runpy.run_path(str(ROOT / "agents/agent_func_search.py"))["AgentExecutor"]
    assert issubclass(loaded, AgentExecutorBase) and loaded().settings.max_turns == 3


def test_a_sample_has_all_that_the_trainer_and_the_records_read():
    got = one(["hm", SEARCH, ANSWER])
    logs, tokens = got.pop("extra_logs"), got["observation_tokens"]
    assert got.keys() == {
        "prompt", "label", "reward", "scores", "observation_tokens", "action_ranges", "rollout_log_probs", "truncated",
    }  # fmt: skip
    assert (got["prompt"], got["label"], got["truncated"]) == (PROMPT, LABEL, False)
    assert (got["reward"], got["scores"]) == (1.0, 1.0) and type(got["reward"]) is float
    assert len(got["rollout_log_probs"]) == len(tokens) and type(tokens) is list
    said = [tokens[start:end] for start, end in got["action_ranges"]]
    assert said == [ids("hm"), ids(SEARCH), ids(ANSWER)]

    assert numeric_only(logs).keys() == NUMBERS and text_only(logs).keys() == TEXTS
    assert (logs["turns"], logs["searches"], logs["invalid_actions"], logs["answered"]) == (3, 1, 1, 1)
    assert logs["action_tokens"] == sum(map(len, said))
    assert logs["action_tokens"] + logs["observation_tokens"] == len(tokens) - len(ids(PROMPT))
    assert (logs["forced_answer"], logs["information_cut"], logs["correctness"], logs["label_invalid"]) == (0, 0, 1, 0)
    assert logs["answer"] == "The Teeth." and len(json.loads(logs["turn_seconds"])) == 3
    (latency,) = json.loads(logs["search_latencies"])
    assert latency == pytest.approx(logs["search_seconds"], abs=1e-3) and latency > 0


def test_every_sample_logs_the_same_names():
    """OpenRLHF batches samples by the names of the first one."""
    without = one(["hm"] * 4)
    assert without["extra_logs"].keys() == one([SEARCH, ANSWER])["extra_logs"].keys()
    assert (without["extra_logs"]["answer"], without["extra_logs"]["search_latencies"]) == ("", "[]")
    assert (without["reward"], without["truncated"], without["extra_logs"]["forced_answer"]) == (0.0, False, 1.0)


@pytest.mark.parametrize(
    "script, label, reward, score",
    [
        ([ANSWER], LABEL, 1.0, 1.0),
        (["<answer>leaf</answer>"], LABEL, 0.0, 0.0),
        ([ANSWER], "teeth", 0.0, -1.0),
        ([ANSWER], None, 0.0, -1.0),
        ([ANSWER], ["teeth"], 0.0, -1.0),
        (["<answer></answer>"], label_of(["teeth"]), 0.0, 0.0),
        (["</answer>teeth"] * 4, LABEL, 0.0, 0.0),
    ],
)
def test_the_reward_is_exact_match_and_an_unreadable_label_is_excluded(script, label, reward, score):
    got = one(script, label=label)
    assert (got["reward"], got["scores"]) == (reward, score)
    assert got["extra_logs"]["label_invalid"] == (score < 0)


async def refuse(query: str) -> None:
    return None


def test_a_failed_search_names_sample_turn_and_cause():
    with pytest.raises(AgentError) as caught:
        one(["hm", SEARCH], refuse, number=3)
    text = str(caught.value)
    assert text.startswith(
        "the tags agent's conversation failed\n  batch index 7, sample 3, turn 2, searching: RetrieverError: http://127"
    )
    assert "refused the request with status 400: no such query" in text and "Traceback" in text
    assert caught.value.__cause__ is None, "it crosses to a process that may lack the cause's class"


def test_a_failed_engine_names_sample_turn_and_cause():
    with pytest.raises(AgentError, match=r"batch index 7, sample 0, turn 1, sampling: OSError: gone"):
        one([OSError("gone")])


@pytest.mark.parametrize("protocol", ["tags", "harmony"])
def test_a_limit_below_the_sentences_to_the_model_ends_it_at_the_first_sample(protocol):
    executor = SearchExecutor(settings("http://127.0.0.1:9", observation_tokens=64, protocol=protocol))
    with pytest.raises(
        AgentError, match=r"sample 0, found RFT_AGENT_OBSERVATION_TOKENS=64, wanted (\d+) or more"
    ) as caught:
        asyncio.run(sample(executor, [ANSWER]))
    least = int(re.search(r"wanted (\d+) or more", str(caught.value))[1])
    enough = settings("http://127.0.0.1:9", observation_tokens=least, protocol=protocol, max_turns=3)
    got = asyncio.run(sample(SearchExecutor(enough), ["hm<|return|>"] * 3))
    assert got["extra_logs"]["turns"] == 3


def test_a_call_of_a_long_name_gets_a_short_sentence():
    """What was wrong quotes the policy."""
    call = f"<|channel|>commentary to={'f' * 900}<|message|>{{}}<|call|>"
    executor = SearchExecutor(settings("http://127.0.0.1:9", protocol="harmony", turn_tokens=2000))
    got = asyncio.run(sample(executor, [call] * 4, max_length=20_000))
    assert got["extra_logs"]["invalid_actions"] == 4 and got["extra_logs"]["observation_tokens"] < 4 * 500


def test_a_prompt_without_room_names_the_sample():
    with pytest.raises(AgentError, match=r"batch index 7, sample 0, the prompt leaves no room"):
        one([ANSWER], max_length=3)


def test_queries_that_a_retriever_would_refuse_do_not_end_the_run():
    """Some tokens are a hundred characters long."""
    asked = []

    async def keep(query: str) -> list[dict]:
        asked.append(query)
        return [passage("x")]

    async def run() -> None:
        async with retriever(keep) as (url, _):
            executor = SearchExecutor(settings(url, turn_tokens=6000))
            await sample(executor, [f"<search>{'q' * 5000}</search>", ANSWER], max_length=20_000)
            await executor.close()

    asyncio.run(run())
    assert asked == ["q" * 4096]


def test_a_search_that_waits_holds_up_no_other_sample_and_all_share_one_connection(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def run() -> list:
        release = asyncio.Event()

        async def wait_for_slow(query: str) -> list[dict]:
            if query == "slow":
                await release.wait()
            return await found(query)

        async with retriever(wait_for_slow) as (url, peers):
            executor = SearchExecutor(settings(url))
            slow = asyncio.create_task(sample(executor, ["<search>slow</search>", ANSWER]))
            for number in range(3):
                got = await sample(executor, [f"<search>q{number}</search>", ANSWER], number)
                assert f"All about q{number}." in TOKENIZER.decode(got["observation_tokens"])
            assert not slow.done()
            release.set()
            assert (await slow)["reward"] == 1.0
            await executor.close()
            return peers

    peers = asyncio.run(run())
    assert len(peers) == 4 and len(set(peers)) == 2, "one for the slow search, one for all others"
