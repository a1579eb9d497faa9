"""The tiny search task: disjoint people, labels from texts, passages of one layout, only the model's words learned."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from rft.agents import tags
from rft.grading.short_answer import answers_of, is_exact
from rft.retriever.engine import Options, open_engine
from rft.tiny import supervised
from rft.tiny.checkpoint import build_model, tiny_config
from rft.tiny.search import (
    KINDS,
    OBSERVATION,
    SIZES,
    STYLES,
    TEXTS,
    TOOLS,
    corpus,
    fact_of,
    make_splits,
    read_split,
    worked_turns,
)
from rft.tiny.task import write_splits
from rft.tiny.tokenizer import build_tokenizer

ROOT = Path(__file__).parents[2]
SMALL = {"warm": 60, "train": 40, "heldout": 30}
TOKENIZER = build_tokenizer(TEXTS)


@pytest.fixture(scope="module")
def splits():
    return make_splits()


def question(problem: dict) -> str:
    return problem["input"][-1]["content"]


def test_default_sets_share_no_person(splits):
    assert {name: len(problems) for name, problems in splits.items()} == SIZES
    names = {fact_of(question(problem)).name for problems in splits.values() for problem in problems}
    assert len(names) == sum(SIZES.values())


def test_the_label_is_in_the_person_s_passage_and_nowhere_in_the_question(splits):
    for problem in (problem for problems in splits.values() for problem in problems):
        (answer,) = answers_of(problem["label"])
        assert fact_of(question(problem)).passage.text.endswith(f" {answer}")
        assert not is_exact(answer, question(problem).rstrip("?").split())


def test_every_answer_is_as_likely_as_another(splits):
    """So that a guess is right for one question in 16."""
    counts = {}
    for problem in (problem for problems in splits.values() for problem in problems):
        counts[problem["label"]] = counts.get(problem["label"], 0) + 1
    assert len(counts) == sum(len(kind.answers) for kind in KINDS) == 48
    assert max(counts.values()) < 2.5 * sum(SIZES.values()) / 48


def test_the_corpus_holds_train_and_heldout_in_the_form_of_wiki_18(splits):
    asked = splits["train"] + splits["heldout"]
    rows = corpus(asked)
    assert len({row["id"] for row in rows}) == len(asked) == 512
    for row, problem in zip(rows, asked, strict=True):
        fact = fact_of(question(problem))
        assert row == {"id": fact.passage.id, "contents": f'"{fact.name}"\n{fact.passage.text}'}


def test_the_retriever_finds_each_person_first(splits, tmp_path):
    """By the whole name; by the given name alone it finds one of many."""
    facts = [fact_of(question(problem)) for problem in splits["train"] + splits["heldout"]]
    write_splits({"corpus": corpus(splits["train"] + splits["heldout"])}, tmp_path)
    engine = open_engine(Options(tmp_path / "corpus.jsonl", "bm25", index_dir=tmp_path / "index"), lambda *_: None)
    found = engine.search([fact.name for fact in facts], 1)
    assert [hits[0].document["id"] for hits in found] == [fact.passage.id for fact in facts]
    found = engine.search([fact.given for fact in facts], 1)
    assert {hits[0].document["title"].split()[0] for hits in found} == {fact.given for fact in facts}
    assert sum(hits[0].document["id"] == fact.passage.id for hits, fact in zip(found, facts, strict=True)) <= 40


def test_styles_do_what_they_say(splits):
    right = dict.fromkeys(STYLES, 0)
    for problem in splits["warm"]:
        fact = fact_of(question(problem))
        for style in STYLES:
            *before, last = worked_turns(problem, style)
            action = tags.parse(last)
            assert action.kind == "answer"
            right[style] += is_exact(action.text, answers_of(problem["label"]))
            if not before:
                assert style == "careless" and fact.kind.answers is TOOLS
                continue
            query = tags.parse(before[0])
            assert query.kind == "search" and query.text in (fact.name, fact.given)
            assert query.text == fact.name or style == "careless"
            assert before[1].title.startswith(query.text) and before[1].text.endswith(f" {action.text}")
    assert right["careful"] == SIZES["warm"]
    assert 0.3 < right["careless"] / SIZES["warm"] < 0.45


def test_prompts_and_passages_have_one_layout(splits):
    turns = [supervised.conversation(TOKENIZER, p, s, "search") for p in splits["warm"] for s in STYLES]
    assert len({len(prompt) for prompt, _, _ in turns}) == 1
    observed = [[t for t, own in zip(ids, learned, strict=True) if not own] for _, ids, learned in turns]
    assert {len(ids) for ids in observed} == {0, 22}
    for (_, ids, _), seen in zip(turns, observed, strict=True):
        assert not seen or ids[-5] == seen[-6]  # the answer, before </answer>, and in front of </information>
    assert len(TOKENIZER) < 512


def test_what_is_observed_is_what_the_agent_writes(splits):
    for problem in splits["warm"][:20]:
        _, ids, learned = supervised.conversation(TOKENIZER, problem, "careful", "search")
        search, passage, answer = worked_turns(problem, "careful")
        written = tags.observation([passage], note=None, after=search, limit=OBSERVATION, tokenizer=TOKENIZER).tokens
        first, end = learned.index(False), len(learned) - learned[::-1].index(False)
        assert ids[first:end] == written and all(learned[:first]) and all(learned[end:])
        assert not any(learned[first:end])
        assert TOKENIZER.decode(ids[:first]) == search and TOKENIZER.decode(ids[end:]) == answer


def test_notes_of_the_agent_fit_an_observation():
    wrong = tags.parse("nothing").text
    note = f"{tags.invalid(wrong)} {tags.LAST_TURN}"
    assert tags.observation(None, note=note, after="nothing", limit=OBSERVATION, tokenizer=TOKENIZER).tokens


def test_the_loss_is_of_the_model_s_tokens_alone(splits):
    batch = [supervised.conversation(TOKENIZER, p, s, "search") for p in splits["warm"][:3] for s in STYLES]
    model = build_model(0, config=tiny_config(TEXTS))
    losses = []
    for prompt, ids, learned in batch:
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        losses.append(F.cross_entropy(logits, torch.tensor(ids), reduction="none")[torch.tensor(learned)])
    found = supervised.answer_loss(model, batch, 30, TOKENIZER.pad_token_id)
    assert found.item() == pytest.approx(torch.cat(losses).mean().item(), 1e-4)


def test_deterministic_by_seed():
    assert make_splits(7, SMALL) == make_splits(7, SMALL)
    assert make_splits(7, SMALL) != make_splits(8, SMALL)


def test_files_round_trip_through_the_command(tmp_path):
    command = [sys.executable, "data/prepare_arithmetic.py", "--task", "search", "--seed", "3", "--out", str(tmp_path)]
    sizes = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
    subprocess.run([*command, *sizes], cwd=ROOT, check=True, capture_output=True)
    wanted = make_splits(3, SMALL)
    assert {name: read_split(tmp_path / f"{name}.jsonl") for name in SMALL} == wanted
    rows = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert rows == corpus(wanted["train"] + wanted["heldout"])


@pytest.mark.parametrize("sizes", [{"warm": 4000}, {"warm": 0}, {"warm": 5, "train": -1}])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="at most 1600"):
        make_splits(sizes=sizes)


@pytest.mark.parametrize("text", ["Who lives?", "Where does Balo Kordun sell?", "Where does Nobody Kordun live?"])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match="wanted 'Where does"):
        fact_of(text)


def test_bad_files_get_one_clear_message(tmp_path):
    path, repair = tmp_path / "warm.jsonl", r"prepare_arithmetic\.py --task search"
    with pytest.raises(ValueError, match=f"found no file.*{repair}"):
        read_split(path)
    first, second = make_splits(3, SMALL)["warm"][:2]
    for problem, message in (
        (first | {"label": second["label"]}, f"line 1: found label .*{repair}"),
        (first | {"input": [{"role": "user", "content": "hello"}]}, f"line 1: found 'hello'.*{repair}"),
    ):
        write_splits({"warm": [problem]}, tmp_path)
        with pytest.raises(ValueError, match=message):
            read_split(path)
