"""Conversations of an evaluation: what is drawn does not depend on what runs beside it, and failures leave nothing."""

import json
import threading
from functools import partial

import pytest
from passages_server import TREES, retriever
from trees import GREEDY, LIMITS, SAYS, engine_of, requests_of, untimed

from rft.agents.settings import Settings as AgentSettings
from rft.evals import conversations, sampling
from rft.evals.agent import opened
from rft.evals.stepping import SteppedEngine
from rft.retriever import RetrieverError


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with retriever(tmp_path_factory.mktemp("retriever")) as found:
        yield found


@pytest.fixture
def llm(checkpoint):
    return engine_of(checkpoint)


@pytest.fixture
def agent(url):
    return opened(AgentSettings(**LIMITS, retriever_url=url), [], 2000)


def test_conversations_do_not_depend_on_how_many_run_at_once(llm, agent):
    found = []
    for at_once, requests in ((1, requests_of(llm, 5)), (3, requests_of(llm, 5)[::-1]), (64, requests_of(llm, 5))):
        samples = {}
        conversations.draw(
            llm,
            requests,
            sampling.parameters(0.6, 1.0, 200, 0, 0),
            lambda one, kept=samples: kept.update({(one["prompt"], one["index"]): untimed(one)}),
            agent=agent,
            at_once=at_once,
        )
        found.append(samples)
    assert len(found[0]) == 4 * 5 and found[0] == found[1] == found[2]
    assert llm.llm_engine.threads == {threading.main_thread()}


def test_a_sample_is_the_conversation_with_its_turns(llm, agent):
    kept = []
    conversations.draw(llm, requests_of(llm)[:1], GREEDY, kept.append, agent=agent)
    (one,) = kept
    ids = partial(llm.get_tokenizer(), add_special_tokens=False)
    first, between, last = one["turns"]
    assert [turn["by"] for turn in one["turns"]] == ["model", "environment", "model"]
    assert [first["text"], last["text"]] == SAYS["alder?"] and TREES["Alder"] in between["text"]
    assert one["response"] == "".join(turn["text"] for turn in one["turns"])
    assert one["tokens"] == sum(len(ids(said)["input_ids"]) for said in SAYS["alder?"])
    assert one["tokens"] == first["tokens"] + last["tokens"] and one["observation_tokens"] == between["tokens"]
    assert (one["answer"], one["finish"], one["searches"], one["invalid_actions"]) == ("The Alder.", "stop", 1, 0)
    assert json.loads(one["search_latencies"])[0] >= 0 and first["seconds"] >= 0


def test_a_retriever_that_dies_is_an_error_by_name_and_leaves_nothing_in_the_engine(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(conversations, "Client", partial(conversations.Client, patience=0.0))
    requests, kept, step, own = requests_of(llm), [], llm.llm_engine.step, retriever(tmp_path)
    url = own.__enter__()
    dying = opened(AgentSettings(**LIMITS, retriever_url=url), [], 2000)

    def step_once_it_is_dead():
        if not llm.llm_engine.steps:
            own.__exit__(None, None, None)
        return step()

    monkeypatch.setattr(llm.llm_engine, "step", step_once_it_is_dead)
    named = rf"prompt {requests[0].prompt}, sample 0, turn 1, searching: .*no answer from the retriever at {url}"
    with pytest.raises(RetrieverError, match=named):
        conversations.draw(llm, [*requests[1::2], requests[0]], GREEDY, kept.append, agent=dying)
    assert not llm.llm_engine.waiting and "searches" in kept[0]


def test_what_cannot_be_kept_ends_it_and_leaves_nothing_in_the_engine(llm, agent):
    def full(sample: dict) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        conversations.draw(llm, requests_of(llm, 8), GREEDY, full, agent=agent)
    assert not llm.llm_engine.waiting and llm.llm_engine.aborted
    assert [thread.name for thread in threading.enumerate() if "conversations" in thread.name] == []


def test_an_engine_that_fails_ends_it(llm, agent, monkeypatch):
    def step():
        raise RuntimeError("the engine died")

    monkeypatch.setattr(llm.llm_engine, "step", step)
    with pytest.raises(RuntimeError, match="the engine died"):
        conversations.draw(llm, requests_of(llm), GREEDY, list, agent=agent)
    assert not llm.llm_engine.waiting


def test_an_empty_work_needs_no_step(llm):
    async def nothing() -> None: ...

    SteppedEngine(llm).run(nothing())
    assert llm.llm_engine.steps == 0
