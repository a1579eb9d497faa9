"""Evaluations of a search agent: what is counted, kept, compared and refused. The retriever is a real one."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from passages_server import TREES, retriever
from trees import GREEDY, LIMITS, PROBLEMS, SAYS, engine_of, requests_of, untimed

from rft.agents.settings import Settings as AgentSettings
from rft.evals import cache, conversations
from rft.evals.agent import Agent, opened, require_corpus, require_room, retriever_at
from rft.evals.compare import add_comparisons
from rft.evals.models import Model, checked
from rft.evals.page import page
from rft.evals.prompts import render
from rft.evals.refusals import require_agent
from rft.evals.regression import compare_files
from rft.evals.results import regrade
from rft.evals.run import evaluate
from rft.evals.settings import Settings
from rft.evals.table import print_results, wide_console
from rft.grading.short_answer import label_of
from rft.retriever import RetrieverError

ROOT = Path(__file__).resolve().parents[2]


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


def test_the_noise_floor_draws_the_conversations_again(evaluation, url):
    settings = replace(evaluation.settings, agent=AgentSettings(**LIMITS, retriever_url=url), noise_floor=True)
    first, again = evaluate([evaluation.model], [evaluation.dataset], settings)
    assert [first["model"], again["model"]] == ["base", "base (A/A)"] and len(evaluation.served) == 2
    assert (again["versus"]["tied"], again["versus"]["p_holm"]) == (4, None)


def test_samples_of_another_corpus_are_never_mixed(evaluation, llm, agent, tmp_path):
    (first,) = evaluation.run("base")
    (tmp_path / "other").mkdir()
    with retriever(tmp_path / "other", TREES | {"Ash": "The ash has keys."}) as other:
        (second,) = evaluation.run("base", at=other)
        assert evaluation.served == ["base"] * 2
        with pytest.raises(ValueError, match=r"found agent .*evaluate them in one command"):
            add_comparisons([first, second | {"model": "other"}])
        swapped = replace(agent, settings=replace(agent.settings, retriever_url=other))
        with pytest.raises(RetrieverError, match=r"found a retriever of .*, wanted that of the beginning"):
            conversations.draw(llm, requests_of(llm), GREEDY, list, agent=swapped)
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


def test_the_evaluation_in_the_loop_is_compared_with_it(evaluation, llm, tmp_path):
    (found,) = evaluation.run("base")
    prompts = render(llm.get_tokenizer(), PROBLEMS, None, None)
    rows = [
        {
            "prompt": prompt.text, "response": one["response"], "label": one["label"], "turns": one["turns"],
            "reward": float(one["correct"]), "correctness": float(one["correct"]), "truncated": 0.0,
            "response_tokens": one["tokens"] + one["observation_tokens"], "action_tokens": one["tokens"],
        }
        for prompt, one in zip(prompts, found["records"], strict=True)
    ]  # fmt: skip
    file = tmp_path / "eval_samples_step2.jsonl"

    def differing(changed: dict) -> list[str]:
        file.write_text("".join(json.dumps(row) + "\n" for row in [rows[0] | changed, *rows[1:]]))
        common, differences = compare_files(file, found)
        assert common == 4
        return [one.cause for one in differences]

    assert differing({}) == []
    assert differing({"correctness": 0.0})[0].startswith("same responses, graded differently")
    (cause,) = differing({"correctness": 0.0, "response": "I look. <answer>", "truncated": 1.0})
    sampled = found["records"][0]["tokens"]
    assert cause == f"cut by the length limit (longest: {sampled} tokens in training, {sampled} post hoc)"
    (cause,) = differing({"correctness": 0.0, "response": "I look up"})
    assert cause.startswith("other responses, from character 6: ' up', post hoc '. <search>")


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
        (["--agent", "search"], {"RFT_AGENT_TOPK": "many"}, "found RFT_AGENT_TOPK=many, wanted a whole number"),
        (["--agent", "search"], {"RETRIEVER_URL": "nowhere"}, "found RETRIEVER_URL=nowhere, wanted an address"),
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
