"""From cached samples to numbers, comparisons and pages, without an engine."""

import argparse
import json
import random
import runpy
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from rft import overlay
from rft.evals import cache, probe, sampling
from rft.evals.compare import add_comparisons, outcome
from rft.evals.identity import model_identity
from rft.evals.models import checked
from rft.evals.page import page
from rft.evals.prompts import load_tokenizer, render
from rft.evals.run import evaluate
from rft.evals.scores import summarize, votes
from rft.evals.settings import Settings
from rft.runs.attempt.evaluations import verdict_word
from rft.runs.report.comparisons import adjusted, pairs

ROOT = Path(__file__).resolve().parents[2]


def records(counts: list[int], samples: int) -> list[dict]:
    """Problems with so many correct of `samples` samples."""
    return [
        {
            "id": f"p{place}", "index": i, "label": "7", "response": f"r{i < right}",
            "answer": "7" if i < right else "8",
            "correct": i < right, "correct_lenient": True, "has_boxed": True, "label_valid": True, "truncated": False,
            "tokens": 10 + i,
        }
        for place, right in enumerate(counts)
        for i in range(samples)
    ]  # fmt: skip


def result(model: str, counts: list[int], samples: int = 1, mode: str = "greedy_pass@1", dataset: str = "d.jsonl"):
    rows = records(counts, samples)
    return {
        "model": model, "kind": "base", "dataset": dataset, "mode": mode, "temperature": 0.0, "top_p": 1.0, "seed": 0,
        "max_tokens": 64, "reasoning_effort": "low", "system_prompt": None, "template": "t", "first_prompt": "<b>?",
        "served": None, "weights": {}, "problems": "x", "grader": "g", "tree_id": {}, **summarize(rows, mode),
        "records": rows,
    }  # fmt: skip


def test_sampling_names_every_number_by_its_mode():
    summary = summarize(records([8, 4, 1, 0], 8), "sampling_pass@8")
    values = {name: metric["value"] for name, metric in summary["metrics"].items()}
    # p1 is a tie of 4 against 4, drawn; p2 has one right vote of eight.
    assert values == {"sampling_pass@8": 0.75, "sampling_avg@8": 13 / 32, "sampling_maj@8": 1.5 / 4}
    assert summary["sampling_pass@8"] == 0.75 and summary["n"] == 4 and summary["samples_per_problem"] == 8
    assert summary["tokens"] == {"min": 10, "p25": 12, "p50": 14, "p75": 15, "p90": 17, "max": 17}


def test_one_vote_is_not_split_by_its_notation():
    rows = records([4], 8)
    for row, answer in zip(rows, ["1,000", "1000", "1{,}000", "1000.0", "7", "7", "8", None], strict=True):
        row["answer"] = answer
    assert summarize(rows, "sampling_pass@8")["metrics"]["sampling_maj@8"]["value"] == 1.0
    assert [answer for answer, _ in votes(rows)] == ["1,000"] * 4 + ["7", "7", "8", None]
    for row, answer in zip(rows[:4], ["1,000", "1001", "1002", "1003"], strict=True):
        row["answer"] = answer  # four right samples that do not agree lose to the two that do
    assert summarize(rows, "sampling_pass@8")["metrics"]["sampling_maj@8"]["value"] == 0.0


def test_pass_at_8_of_more_samples_is_unbiased():
    summary = summarize(records([1, 16], 16), "sampling_pass@8")
    assert summary["sampling_pass@8"] == pytest.approx((0.5 + 1) / 2)


def test_nondeterminism_is_measured():
    values = summarize(records([8, 4, 0], 8), "nondet_proxy_pass@8")["metrics"]
    assert values["nondet_proxy_identical@8"]["value"] == pytest.approx(2 / 3)


def test_labels_that_cannot_be_graded_are_counted_and_left_out():
    rows = records([1, 0, 1], 1)
    rows[1] |= {"label_valid": False}
    summary = summarize(rows, "greedy_pass@1")
    assert (summary["n"], summary["ungradable"], summary["greedy_pass@1"]) == (2, 1, 1.0)
    with pytest.raises(ValueError, match="no label that can be graded"):
        summarize([row | {"label_valid": False} for row in rows], "greedy_pass@1")


def test_models_are_compared_problem_by_problem_with_one_correction():
    generator = random.Random(0)
    base = [generator.randint(0, 1) for _ in range(200)]
    better = [1 if i < 30 else x for i, x in enumerate(base)]
    results = add_comparisons(
        [
            result("base", base), result("base (A/A)", base), result("tuned", better), result("same", base),
            result("base", base, dataset="e.jsonl"), result("tuned", better, dataset="e.jsonl"),
        ]
    )  # fmt: skip
    by = {(r["model"], r["dataset"]): r.get("versus") for r in results}
    won = sum(better) - sum(base)
    tuned = by["tuned", "d.jsonl"]
    assert (tuned["won"], tuned["lost"], tuned["mcnemar_p"]) == (won, 0, pytest.approx(2 * 0.5**won))
    assert tuned["difference"] == pytest.approx(won / 200)
    assert tuned["p_holm"] == pytest.approx(3 * tuned["p_value"])  # three comparisons; the A/A run is not one
    assert by["base (A/A)", "d.jsonl"]["p_holm"] is None and by["base (A/A)", "d.jsonl"]["p_value"] == 1.0
    assert by["same", "d.jsonl"]["interval95"] == [0.0, 0.0]
    assert by["base", "d.jsonl"] is None
    assert tuned["flips"]["won"] == [f"p{i}" for i in range(30) if not base[i]]


def test_mcnemar_is_not_computed_from_several_samples():
    results = add_comparisons([result(n, [8, 0], 8, "sampling_pass@8") for n in ("a", "b")])
    assert results[1]["versus"]["mcnemar_p"] is None
    # What is compared is the share of correct samples, and is called so.
    assert results[1]["versus"]["metric"] == "sampling_avg@8"


def sampled(model: str, counts: list[int]) -> dict:
    """An evaluation of 200 problems, 8 samples each; after `counts`, four of eight are right."""
    return result(model, [*counts, *[4] * (200 - len(counts))], 8, "sampling_pass@8")


@pytest.mark.parametrize(
    ("counts", "significant", "interval_has_0", "shown", "word"),
    [
        ([5] * 28 + [0], True, True, "unclear", "inconclusive"),  # the last one had 8 before
        ([5] * 60 + [8], True, False, "better", "positive"),
        ([3] * 60 + [8], True, False, "worse", "negative"),
        ([5] * 2 + [8], False, True, "unclear", "inconclusive"),
    ],
)
def test_report_and_research_log_say_the_same_of_a_comparison(counts, significant, interval_has_0, shown, word):
    before = sampled("before", [4] * (len(counts) - 1) + [8])
    after = sampled("after", counts)
    versus = add_comparisons([before, after])[1]["versus"]
    low, high = versus["interval95"]
    assert (versus["p_holm"] < 0.05, low <= 0 <= high) == (significant, interval_has_0)
    (reported,) = adjusted(pairs([before], [after], "before", "after"))
    assert outcome(versus) == reported["outcome"] == shown and verdict_word([versus]) == word
    assert {"unclear": "cannot be told apart"}.get(shown, f"after is {shown} than before") in reported["sentence"]


def test_runs_that_differ_in_more_than_the_model_are_not_compared():
    others = {"max_tokens": 128, "system_prompt": "x", "grader": "h", "top_p": 0.9}
    for field, value in others.items():
        with pytest.raises(ValueError, match=f"found {field} .*evaluate them in one command"):
            add_comparisons([result("a", [1]), result("b", [1]) | {field: value}])
    with pytest.raises(ValueError, match="found samples_per_problem 8 and 16"):
        add_comparisons([result(f"of {n}", [n], n, "sampling_pass@8") for n in (8, 16)])
    with pytest.raises(ValueError, match="found different problems"):
        add_comparisons([result("a", [1]), result("b", [1, 1])])
    with pytest.raises(ValueError, match="found no model 'c'"):
        add_comparisons([result("a", [1])], baseline="c")


def test_prompts_of_one_template_must_be_the_same():
    plain, dated = result("a", [1, 1]), result("b", [1, 1])
    for one in (plain, dated):
        for record in one["records"]:
            record["prompt"] = record["id"]
    dated["records"][1]["prompt"] = "p1 of another day"
    with pytest.raises(ValueError, match="found different prompts from one template for 1 of 2 problems"):
        add_comparisons([plain, dated])
    assert add_comparisons([plain, dated | {"template": "of another base"}])[1]["versus"]["tied"] == 2


def test_small_sets_say_what_they_cannot_show():
    small, large = add_comparisons([result("a", [1] * 18), result("a", [1] * 200, dataset="e.jsonl")])
    assert small["note"].startswith("18 problems: one is 5.6 points, and a gain below 40 points is missed")
    assert large["note"] is None
    assert "no gain at all is significant" in add_comparisons([result("a", [1] * 5)])[0]["note"]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.fetched, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        loads = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")
        self.fetched += [v for k, v in attributes if k in loads and not (v or "").startswith("#")]

    def handle_data(self, data):
        self.text += data


def test_page_holds_everything_and_fetches_nothing():
    results = [result("base", [0, 1, 1]), result("tuned", [1, 1, 0])]
    evil = "<script src='http://x.example/a.js'></script><img src=http://x.example/b.png>$\\frac{1}{2}$"
    results[1]["records"][0]["response"] = evil
    text = page(add_comparisons(results))
    parsed = Page(text)
    assert parsed.fetched == []
    assert not {"script", "img", "link", "iframe", "object", "image"} & set(parsed.tags)
    assert "url(" not in text.replace("url(#", "") and "@import" not in text and "<!DOCTYPE svg" not in text
    assert "default-src 'none'" in text
    assert parsed.tags.count("svg") == 2
    assert evil in parsed.text and "greedy_pass@1 on d.jsonl, n=3" in parsed.text
    assert "won" in parsed.text and "lost" in parsed.text and "p0: 0 of" in parsed.text
    assert text == page(add_comparisons(results))


def tensors(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.0, 0.4, 2.0])
def test_probe_refuses_an_adapter_that_is_dropped_or_scaled_otherwise(scale):
    base, effect, noise = tensors(-1, -2, -3, -4), tensors(0.5, -0.4, 0.3, 0.2), tensors(0.004, -0.003, 0.002, -0.001)
    reference = base + noise, base + noise + effect
    record = probe.require_served(base, base + effect, True, reference)
    assert record["effect_size"] == pytest.approx(1) and record["mismatch"] < 0.005
    with pytest.raises(ValueError, match=r"^probe: .*bash apply_patches.sh"):
        probe.require_served(base, base + scale * effect, None, reference)


def test_probe_without_reference_still_wants_another_model_than_the_base():
    base = tensors(-1, -2)
    assert probe.require_served(base, base + 0.1, True, None)["reference"] == "not run"
    for changed in (True, None):
        with pytest.raises(ValueError, match="probe: "):
            probe.require_served(base, base, changed, None)
    assert probe.require_served(base, base, False, None)["moved"] == 0  # a zero adapter, and its receipts say so


def test_probe_refuses_an_engine_that_is_another_base():
    base = tensors(-1, -2)
    with pytest.raises(ValueError, match="on the base model"):
        probe.require_served(base, base + 0.1, True, (base + 0.5, base + 0.6))


def test_probe_allows_a_flip_of_experts_and_refuses_an_effect_of_another_shape():
    """An effect of the right size may still be on other tokens; a few tokens may take another expert."""
    base, effect = torch.zeros(10, dtype=torch.float64), tensors(*[0.6, -0.6] * 5)
    flip, other = torch.zeros_like(base), tensors(*[0.4, 0.4] * 5)
    flip[3] = flip[4] = 0.5
    assert probe.require_served(base, base + effect + flip, True, (base, base + effect))["mismatch"] > probe.AGREEMENT
    with pytest.raises(ValueError, match=r"engine and PEFT model differ by 0\.114 nats a token, wanted at most 0\.050"):
        probe.require_served(base, base + 0.81 * effect, True, (base, base + effect))  # weakened, no flips
    with pytest.raises(ValueError, match=r"engine and PEFT model differ by 0\.400 nats a token, wanted at most 0\.120"):
        probe.require_served(base, base + effect + other, True, (base, base + effect))


def test_adapter_below_the_noise_is_not_judged_by_its_size():
    base, noise = tensors(-1, -2, -3), tensors(0.02, -0.02, 0.02)
    record = probe.require_served(base, base + 0.001, True, (base + noise, base + noise - 0.001))
    assert record["effect_size"] is None


SERVED = {"method": "base checkpoint", "backends": {"device": "cpu", "attention": "A"}}
PROBLEMS = [{"input": [{"role": "user", "content": f"{i} + 1"}], "label": str(i + 1), "id": f"p{i}"} for i in range(4)]


@pytest.fixture
def filled(tmp_path, checkpoint):
    """A dataset and a cache that holds every greedy sample of the tiny checkpoint for it; problem 0 is wrong."""
    dataset, settings = tmp_path / "sums.jsonl", Settings(max_tokens=8, max_prompt_tokens=128, cache=tmp_path / "cache")
    dataset.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    (model,) = checked([("base", checkpoint)])
    stream = model_identity(model, settings, overlay.tree_ids()) | {
        "room": {},
        "sampling": sampling.parameters(0.0, 1.0, 8, 0, 0),
    }
    file = cache.stream_file(settings.cache, stream)
    for i, prompt in enumerate(render(load_tokenizer(checkpoint), PROBLEMS, None, None)):
        response = f"<|channel|>final<|message|>\\boxed{{{i + (i > 0)}}}<|return|>"
        one = {"prompt": prompt.digest, "index": 0, "response": response, "tokens": 5, "finish": "stop"}
        cache.append(file, stream | {"model": "base", "served": SERVED}, [one])
    return model, dataset, settings


def test_cached_samples_are_graded_without_an_engine(filled):
    model, dataset, settings = filled
    (found,) = evaluate([model], [dataset], settings)
    assert (found["greedy_pass@1"], found["n"], found["served"]) == (0.75, 4, SERVED)
    assert [record["correct"] for record in found["records"]] == [False, True, True, True]
    assert found["note"].startswith("4 problems")
    assert "vllm" not in sys.modules or not any(name.startswith("vllm.v1.engine.core") for name in sys.modules)


@pytest.fixture
def engine(monkeypatch):
    """Stands for the engine behind the cache: kernels as told, each sample right; counts what is drawn."""
    asked = []

    class Server:
        backends = SERVED["backends"]

        def __init__(self, *options) -> None: ...

        def serve(self, model):
            return None, None, {"method": "base checkpoint", "backends": Server.backends}

        def close(self) -> None: ...

    def draw(llm, requests, identity, keep, lora_request=None) -> None:
        asked.extend(requests)
        for request in requests:
            one = {"prompt": request.prompt, "index": request.index, "response": "", "tokens": 1, "finish": "stop"}
            keep(one)

    monkeypatch.setattr("rft.evals.server.Server", Server)
    monkeypatch.setattr(sampling, "draw", draw)
    return Server, asked


def test_one_model_under_two_names_is_sampled_once(filled, engine, tmp_path):
    model, dataset, settings = filled
    fresh = replace(settings, cache=tmp_path / "fresh")
    both = evaluate([model._replace(name="a"), model._replace(name="b")], [dataset], fresh)
    assert len(engine[1]) == 4 and [r["model"] for r in both] == ["a", "b"]
    (file,) = fresh.cache.glob("*.jsonl")
    assert len(file.read_text().splitlines()) == 1 + 4
    assert both[0]["served"] == both[1]["served"] == SERVED


def test_samples_of_other_kernels_are_not_put_together(filled, engine):
    model, dataset, settings = filled
    (file,) = settings.cache.glob("*.jsonl")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    kept = file.read_text()
    engine[0].backends = {"device": "cpu", "attention": "B"}
    with pytest.raises(ValueError, match=r"found samples from the kernels .*'A'}, the engine has .*'B'}.*--cache"):
        evaluate([model], [dataset], settings)
    assert file.read_text() == kept and not engine[1]
    engine[0].backends = SERVED["backends"]
    assert evaluate([model], [dataset], settings)[0]["n"] == 4 and len(engine[1]) == 1


def test_variables_that_choose_kernels_are_part_of_the_stream(filled, monkeypatch):
    model, _, settings = filled
    engines = []
    for name, value in (
        ("VLLM_LOGGING_LEVEL", "DEBUG"),
        ("VLLM_API_KEY", "secret"),
        ("RFT_BATCH_INVARIANT_CPU", "1"),
        ("VLLM_MXFP4_USE_MARLIN", "1"),
    ):
        engines.append(model_identity(model, settings, {})["engine"])
        monkeypatch.setenv(name, value)
    engines.append(model_identity(model, settings, {})["engine"])
    assert engines[0] == engines[1] == engines[2] != engines[3] != engines[4]
    assert "secret" not in json.dumps(engines)


def test_grading_again_takes_the_label_and_grader_of_today(filled):
    model, dataset, settings = filled
    dataset.write_text(dataset.read_text().replace('"label": "1"', '"label": "0"'))
    assert evaluate([model], [dataset], settings)[0]["greedy_pass@1"] == 1.0


@pytest.fixture
def command(monkeypatch, capsys):
    """A script of eval/ in this process: exit status, standard output and standard error."""

    def run(script: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *options])
        capsys.readouterr()
        status = runpy.run_path(str(ROOT / "eval" / f"{script}.py"), run_name="script")["main"]()
        return status, *capsys.readouterr()

    return run


def test_command_writes_table_json_and_page_from_the_cache(filled, tmp_path, command):
    model, dataset, settings = filled
    out, html = tmp_path / "new" / "out.json", tmp_path / "out.html"
    options = ("--max-tokens", "8", "--max-prompt-tokens", "128", "--cache", str(settings.cache))
    options += ("--output", str(out), "--html", str(html))
    status, shown, errors = command(
        "eval_posthoc", "--model", f"base={model.path}", "--dataset", str(dataset), *options
    )
    assert status == 0, errors
    assert "greedy_pass@1" in shown and "sums.jsonl" in shown and "4 problems" in shown
    (written,) = json.loads(out.read_text())
    assert written["greedy_pass@1"] == 0.75 and written["template"] and "Reasoning: low" in written["first_prompt"]
    assert Page(html.read_text()).fetched == []


def test_sweep_refuses_to_confirm_a_choice_by_what_chose_it(filled, tmp_path, command):
    model, dataset, _ = filled
    renamed, other = tmp_path / "renamed.jsonl", tmp_path / "other.jsonl"
    renamed.write_text("".join(dataset.read_text().splitlines(keepends=True)[1:]))
    other.write_text(json.dumps(PROBLEMS[0] | {"input": [{"role": "user", "content": "9 + 1"}]}) + "\n")
    fine = ("--baseline", f"base={model.path}", "--model", f"same={model.path}", "--probe", str(dataset))
    greedy = ("--mode", "greedy_pass@1")
    for again, shared in ((dataset, 4), (renamed, 3)):
        status, shown, errors = command(
            "eval_model_sweep", *fine, *greedy, "--dataset", str(other), "--dataset", str(again)
        )
        assert status == 2 and not shown and len(errors.splitlines()) == 1
        assert f"{again}: found {shared} problems of the probe" in errors and "--mode sampling_pass@8" in errors
    options = argparse.Namespace(probe=dataset, dataset=[other])
    refuse = runpy.run_path(str(ROOT / "eval" / "eval_model_sweep.py"), run_name="script")["require_new_samples"]
    refuse(options, Settings(), Settings())
    refuse(argparse.Namespace(probe=dataset, dataset=[dataset]), Settings(mode="sampling_pass@8"), Settings())


def test_command_refuses_with_one_message_and_leaves_the_old_output(filled, tmp_path, command):
    model, dataset, _ = filled
    out = tmp_path / "out.json"
    out.write_text("[]")
    fine = ("--model", f"base={model.path}", "--dataset", str(dataset), "--output", str(out))
    for options, message in (
        (("--samples", "8"), "greedy samples of one prompt are copies"),
        (("--model", f"other={tmp_path / 'absent'}"), "no such directory"),
        (("--dataset", str(tmp_path / "absent.jsonl")), "found no file"),
        (("--merge", "bf16"), "--merge-output"),
    ):
        status, _, errors = command("eval_posthoc", *fine, *options)
        assert status == 2
        assert errors.startswith("eval_posthoc: ") and len(errors.splitlines()) == 1
        assert message in errors
        assert out.read_text() == "[]"
