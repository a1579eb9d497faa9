"""Evaluations of a search agent: what is drawn, counted, kept, compared and refused. The retriever is a real one."""

import json
import runpy
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from passages_server import TREES, retriever
from scripted_agent import request_output

from rft.agents.settings import Settings as AgentSettings
from rft.evals import cache, conversations, sampling
from rft.evals.agent import Agent, opened, require_corpus, require_room, retriever_at
from rft.evals.compare import add_comparisons
from rft.evals.models import Model, checked
from rft.evals.page import page
from rft.evals.prompts import load_tokenizer, render
from rft.evals.refusals import require_agent
from rft.evals.results import regrade
from rft.evals.run import evaluate
from rft.evals.settings import Settings
from rft.evals.stepping import SteppedEngine
from rft.evals.table import print_results, wide_console
from rft.grading.short_answer import label_of
from rft.retriever import RetrieverError

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"max_turns": 4, "turn_tokens": 64, "observation_tokens": 400}
# What the policy says to a question, turn by turn.
SAYS = {
    "alder?": ["I look. <search>alder leaf</search>", "So <answer>The Alder.</answer>"],
    "birch?": ["<answer>birch</answer>"],
    "oak?": ["Hm.", "<search>oak</search>", "<answer>pine</answer>"],
    "yew?": ["Hm.", "Hm.", "Hm.", "Hm."],
}
PROBLEMS = [
    {"input": [{"role": "user", "content": question}], "label": label_of([question[:-1], "x"]), "id": question}
    for question in SAYS
]


class Engine:
    """Stands for vLLM's engine: a few requests a step, the last ones first, each as `SAYS` has it."""

    def __init__(self, tokenizer):
        self.tokenizer, self.waiting, self.aborted, self.steps, self.threads = tokenizer, {}, [], 0, set()

    def add_request(self, name, prompt, params, lora_request=None):
        self.threads.add(threading.current_thread())
        self.waiting[name] = prompt["prompt_token_ids"], params

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def abort_request(self, names):
        self.aborted += names
        for name in names:
            self.waiting.pop(name, None)  # as vLLM: one that has ended is no error

    def step(self):
        self.threads.add(threading.current_thread())
        self.steps += 1
        return [self._output(name, *self.waiting.pop(name)) for name in list(self.waiting)[-3:]]

    def _output(self, name, tokens, params):
        text = self.tokenizer.decode(tokens, skip_special_tokens=False)
        turn = text.count("</information>") + text.count("That turn is not valid")
        said = next(says for question, says in SAYS.items() if f"<|message|>{question}<|end|>" in text)[turn]
        output = request_output(self.tokenizer(said, add_special_tokens=False)["input_ids"], "stop", turn, params)
        output.request_id = name
        return output


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with retriever(tmp_path_factory.mktemp("retriever")) as found:
        yield found


@pytest.fixture
def llm(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    return SimpleNamespace(llm_engine=Engine(tokenizer), get_tokenizer=lambda: tokenizer)


@pytest.fixture
def agent(url):
    return opened(AgentSettings(**LIMITS, retriever_url=url), [], 2000)


def requests_of(llm, samples: int = 1) -> list[sampling.Request]:
    prompts = render(llm.get_tokenizer(), PROBLEMS, None, None)
    return [sampling.Request(prompt.digest, prompt.tokens, i) for prompt in prompts for i in range(samples)]


def untimed(sample: dict) -> dict:
    turns = [{key: value for key, value in turn.items() if key != "seconds"} for turn in sample["turns"]]
    timed = ("turn_seconds", "search_latencies", "search_seconds")
    return {key: value for key, value in sample.items() if key not in timed} | {"turns": turns}


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
    conversations.draw(llm, requests_of(llm)[:1], sampling.parameters(0.0, 1.0, 200, 0, 0), kept.append, agent=agent)
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


def test_a_retriever_that_dies_is_an_error_by_name_and_leaves_nothing_in_the_engine(llm, agent, monkeypatch):
    gone = replace(agent.settings, retriever_url="http://127.0.0.1:1")
    monkeypatch.setattr(conversations, "Client", partial(conversations.Client, patience=0.0))
    requests, kept = requests_of(llm), []
    with pytest.raises(
        RetrieverError, match=rf"prompt {requests[0].prompt}, sample 0, turn 1, searching: .*127.0.0.1:1"
    ):
        conversations.draw(
            llm,
            requests[:1] + requests[3:],
            sampling.parameters(0.0, 1.0, 200, 0, 0),
            kept.append,
            agent=replace(agent, settings=gone),
        )
    assert not llm.llm_engine.waiting


def test_what_cannot_be_kept_ends_it_and_leaves_nothing_in_the_engine(llm, agent):
    def full(sample: dict) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        conversations.draw(llm, requests_of(llm, 8), sampling.parameters(0.0, 1.0, 200, 0, 0), full, agent=agent)
    assert not llm.llm_engine.waiting and llm.llm_engine.aborted
    assert [thread.name for thread in threading.enumerate() if "conversations" in thread.name] == []


def test_an_engine_that_fails_ends_it(llm, agent, monkeypatch):
    def step():
        raise RuntimeError("the engine died")

    monkeypatch.setattr(llm.llm_engine, "step", step)
    with pytest.raises(RuntimeError, match="the engine died"):
        conversations.draw(llm, requests_of(llm), sampling.parameters(0.0, 1.0, 200, 0, 0), list, agent=agent)
    assert not llm.llm_engine.waiting


def test_an_empty_work_needs_no_step(llm):
    async def nothing() -> None: ...

    SteppedEngine(llm).run(nothing())
    assert llm.llm_engine.steps == 0


@pytest.fixture
def evaluation(llm, checkpoint, url, tmp_path, monkeypatch):
    """Evaluates the tiny checkpoint, whose engine says what `SAYS` says, under the names that are given."""
    dataset, (model,) = tmp_path / "trees.jsonl", checked([("base", checkpoint)])
    dataset.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    served = []

    class Server:
        def __init__(self, *options) -> None: ...

        def serve(self, model):
            served.append(model.name)
            return llm, None, {"method": "base checkpoint", "backends": {"device": "cpu"}}

        def close(self) -> None: ...

    monkeypatch.setattr("rft.evals.server.Server", Server)
    settings = Settings(max_tokens=1600, max_prompt_tokens=200, cache=tmp_path / "cache")

    def run(*names: str, at: str = url, **changes) -> list[dict]:
        agent = AgentSettings(**{**LIMITS, **changes}, retriever_url=at)
        models = [model._replace(name=name) for name in names]
        return evaluate(models, [dataset], replace(settings, agent=agent))

    return SimpleNamespace(run=run, served=served, dataset=dataset, settings=settings, model=model)


def test_numbers_of_conversations(evaluation, url):
    (found,) = evaluation.run("base")
    assert found["greedy_pass@1"] == 0.5 and found["no_answer"] == 0.25 and found["truncated"] == 0.0
    assert [record["correct"] for record in found["records"]] == [True, True, False, False]
    assert [record["answer"] for record in found["records"]] == ["The Alder.", "birch", "pine", None]
    numbers = found["conversations"]
    assert (numbers["searches"], numbers["no_search"], numbers["turns"]) == (0.5, 0.5, 10 / 4)
    assert (numbers["invalid_actions"], numbers["told_to_answer"]) == (5 / 10, 1 / 4)
    by = numbers["by_searches"]
    assert {key: (one["value"], one["n"], one["samples"]) for key, one in by.items()} == {
        "0": (0.5, 2, 2), "1": (0.5, 2, 2),
    }  # fmt: skip
    assert by["1"]["interval95"][0] < 0.5 < by["1"]["interval95"][1]
    assert found["mean_tokens"] == sum(record["tokens"] for record in found["records"]) / 4
    assert "has_boxed" not in found and found["agent"]["protocol"] == "tags"
    assert found["retriever"]["corpus"] == found["agent"]["retriever"]["corpus"] == retriever_at(url)["corpus"]
    console = wide_console()
    with console.capture() as said:
        print_results([found], console)
    assert "0.50 searches and 2.50 turns a sample" in said.get()


def test_a_second_run_draws_nothing_and_another_protocol_or_limit_everything(evaluation):
    first = evaluation.run("base")
    assert evaluation.served == ["base"]
    again = evaluation.run("base")
    assert evaluation.served == ["base"] and json.loads(json.dumps(again)) == json.loads(json.dumps(first))
    evaluation.run("base", topk=1)
    assert evaluation.served == ["base"] * 2 and len(list(evaluation.settings.cache.iterdir())) == 2


def test_samples_of_another_corpus_are_never_mixed(evaluation, tmp_path):
    (first,) = evaluation.run("base")
    (tmp_path / "other").mkdir()
    with retriever(tmp_path / "other", TREES | {"Ash": "The ash has keys."}) as other:
        (second,) = evaluation.run("base", at=other)
        assert evaluation.served == ["base"] * 2
        with pytest.raises(ValueError, match=r"found agent .*evaluate them in one command"):
            add_comparisons([first, second | {"model": "other"}])
        run = tmp_path / "run.json"
        run.write_text(json.dumps({"retriever": {"corpus": first["retriever"]["corpus"]}}))
        (tmp_path / "adapter").mkdir()
        (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
        trained = Model("tuned", tmp_path / "adapter", "adapter", tmp_path)
        require_corpus(trained, first["retriever"]["corpus"])
        with pytest.raises(ValueError, match=r"model tuned: found a retriever of the corpus .*run\.json records"):
            opened(AgentSettings(retriever_url=other), [trained], 2000)


def test_paired_comparison_and_page_show_the_conversation(evaluation, monkeypatch):
    before, _ = evaluation.run("before", "same")
    # The same model would share its samples; this one says other things, as an adapter's engine does.
    monkeypatch.setitem(SAYS, "oak?", ["<search>oak</search>", "I know: <answer>oak</answer>"])
    evaluation.settings.cache.rename(evaluation.settings.cache.with_name("of-before"))
    (after,) = evaluation.run("after")
    results = add_comparisons([before, after])
    assert results[1]["versus"]["flips"] == {"won": ["oak?"], "lost": []}
    shown = page(results)
    assert 'class="environment"' in shown and TREES["Oak"] in shown and "I know: &lt;answer&gt;oak" in shown
    assert "0.50 searches and 2.50 turns a sample" in shown and "label oak or x" in shown
    text = json.dumps(results)
    assert regrade(json.loads(text), "g") == []


def test_several_answers_vote_in_their_normal_form(evaluation, url):
    agent = AgentSettings(**LIMITS, retriever_url=url)
    settings = replace(evaluation.settings, mode="sampling_pass@8", agent=agent)
    (found,) = evaluate([evaluation.model], [evaluation.dataset], settings)
    values = {name: metric["value"] for name, metric in found["metrics"].items()}
    assert values == {"sampling_pass@8": 0.5, "sampling_avg@8": 0.5, "sampling_maj@8": 0.5}
    assert found["conversations"]["by_searches"]["0"]["samples"] == 16


@pytest.mark.parametrize(
    ("labels", "agent", "message"),
    [
        (["4"], True, r"found 0 of 1 labels .* and --agent search; .* leave --agent out"),
        ([label_of(["elm"])], False, r"found 1 of 1 labels .* and no --agent; .* pass --agent search"),
        ([label_of(["elm"]), "4"], True, r"found 1 of 2 labels .* split the file"),
        ([label_of(["elm"]), "4"], False, r"found 1 of 2 labels .* split the file"),
    ],
)
def test_an_agent_without_questions_and_questions_without_an_agent_are_refused(tmp_path, labels, agent, message):
    problems = [{"id": str(i), "label": label} for i, label in enumerate(labels)]
    with pytest.raises(ValueError, match=message):
        require_agent(tmp_path / "d.jsonl", problems, agent)


def test_a_budget_in_which_nothing_can_be_searched_is_refused(tmp_path):
    settings = AgentSettings(**LIMITS)
    agent = Agent(settings, {}, max_length=600)
    require_room(tmp_path, 72, agent, 300)
    with pytest.raises(ValueError, match=r"nothing can be searched; .* pass --max-tokens 301"):
        require_room(tmp_path, 73, agent, 300)
    require_room(tmp_path, 73, replace(agent, max_length=601), 301)


def test_no_retriever_is_one_message(monkeypatch):
    monkeypatch.setattr("rft.evals.agent.PATIENCE", 0.0)
    with pytest.raises(RetrieverError, match=r"no answer from the retriever at http://127.0.0.1:1"):
        retriever_at("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ([], {}, "found 4 of 4 labels of questions that are searched for and no --agent"),
        (["--agent", "search"], {}, "no answer from the retriever at http://127.0.0.1:1"),
        (["--agent", "search"], {"RFT_AGENT_TOPK": "many"}, "RFT_AGENT_TOPK: found 'many', wanted a whole number"),
        (["--agent", "search"], {"RETRIEVER_URL": "nowhere"}, "RETRIEVER_URL: found 'nowhere', wanted an address"),
    ],
)
@pytest.mark.parametrize(
    ("command", "models"),
    [
        ("eval_posthoc", ["--model", "base={}"]),
        ("eval_baseline_s0", ["--model", "{}"]),
        ("eval_model_sweep", ["--baseline", "base={}", "--model", "same={}", "--probe", "trees.jsonl"]),
    ],
)
def test_commands_refuse_in_one_message_before_an_engine(
    command, models, options, variables, message, evaluation, checkpoint, monkeypatch, capsys
):
    monkeypatch.chdir(evaluation.dataset.parent)
    monkeypatch.setattr("rft.evals.agent.PATIENCE", 0.0)
    for name, value in ({"RETRIEVER_URL": "http://127.0.0.1:1"} | variables).items():
        monkeypatch.setenv(name, value)
    words = [word.format(checkpoint) for word in models] + [
        "--dataset",
        "trees.jsonl",
        "--output",
        "out.json",
        *options,
    ]
    monkeypatch.setattr(sys, "argv", [command, *words])
    assert runpy.run_path(str(ROOT / "eval" / f"{command}.py"), run_name="script")["main"]() == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith(command)]
    assert len(told) == 1 and message in told[0]
    assert not evaluation.served and not Path("out.json").exists()


def test_the_commands_evaluate_with_the_agent(evaluation, url, checkpoint, monkeypatch, capsys):
    monkeypatch.chdir(evaluation.dataset.parent)
    for name, value in {
        "RETRIEVER_URL": url,
        "RFT_AGENT_TURN_TOKENS": "64",
        "RFT_AGENT_OBSERVATION_TOKENS": "400",
    }.items():
        monkeypatch.setenv(name, value)
    words = ["--model", str(checkpoint), "--dataset", "trees.jsonl", "--max-tokens", "1600", "--output", "out.json"]
    monkeypatch.setattr(sys, "argv", ["eval_baseline_s0", *words, "--agent", "search"])
    assert runpy.run_path(str(ROOT / "eval" / "eval_baseline_s0.py"), run_name="script")["main"]() == 0
    assert "75.0% answered: below 95%, so train the format first" in capsys.readouterr().out
    (found,) = json.loads(Path("out.json").read_text())
    assert found["greedy_pass@1"] == 0.5 and found["conversations"]["searches"] == 0.5


def test_cached_conversations_of_a_kill_are_whole_lines(evaluation):
    first = evaluation.run("base")
    (file,) = evaluation.settings.cache.iterdir()
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join(lines[:3]) + b"\n" + lines[3][:40])
    assert len(cache.read_samples(file)[1]) == 2
    again = evaluation.run("base")
    assert [untimed(r) for r in again[0]["records"]] == [untimed(r) for r in first[0]["records"]]
