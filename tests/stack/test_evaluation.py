"""Evaluation on a real engine: sampling, resuming, serving adapters, the probe, the merge, the commands."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from passages_server import retriever
from peft import LoraConfig, get_peft_model
from turn_by_turn import by_hand

from rft.agents import tags
from rft.agents.actions import Action
from rft.agents.settings import Settings as AgentSettings
from rft.evals import cache, conversations, probe, sampling
from rft.evals.agent import opened
from rft.evals.merge import merge_and_check
from rft.evals.models import adapter_room, checked
from rft.evals.prompts import load_tokenizer, render
from rft.evals.run import evaluate
from rft.evals.server import Server
from rft.evals.settings import Settings
from rft.grading.short_answer import label_of
from rft.overlay import tree_ids
from rft.tiny.checkpoint import load_dequantized

pytestmark = pytest.mark.stack
ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"max_tokens": 16, "max_prompt_tokens": 128}
PROBLEMS = [
    {"input": [{"role": "user", "content": f"{i} + {i + 3}"}], "label": str(2 * i + 3), "id": f"sum/{i}"}
    for i in range(10, 22)
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "sums.jsonl"
    file.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    return file


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, checkpoint):
    """Two adapters that PEFT wrote: one that changes the policy, and the zero one that training starts from."""
    places = {}
    for name, scale in (("tuned", 0.2), ("zero", 0.0)):
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        model = get_peft_model(load_dequantized(checkpoint), config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "lora_" in key:  # both halves: PEFT draws A from torch's own generator, at another place in each run
                    size = scale if "lora_B" in key else weight.shape[1] ** -0.5
                    weight.copy_(torch.randn(weight.shape, generator=generator) * size)
        places[name] = tmp_path_factory.mktemp("adapters") / name
        model.to(torch.bfloat16).save_pretrained(places[name])
        config_file = places[name] / "adapter_config.json"
        content = json.loads(config_file.read_text()) | {"base_model_name_or_path": str(checkpoint)}
        config_file.write_text(json.dumps(content))
    return places


@pytest.fixture(scope="module")
def results(checkpoint, adapters, dataset, tmp_path_factory):
    """Base and both adapters, the base twice; and the cache that this filled."""
    place = tmp_path_factory.mktemp("cache")
    models = checked([("base", checkpoint), ("tuned", adapters["tuned"]), ("zero", adapters["zero"])])
    settings = Settings(**LIMITS, cache=place, noise_floor=True)
    return evaluate(models, [dataset], settings), models, settings


def responses(result: dict) -> list[str]:
    return [record["response"] for record in result["records"]]


def test_adapters_are_served_by_the_sync_and_probed(results):
    base, again, tuned, zero = results[0]
    assert [r["model"] for r in results[0]] == ["base", "base (A/A)", "tuned", "zero"]
    assert base["served"]["method"] == "base checkpoint" and tuned["served"]["method"] == "exact LoRA"
    seen = tuned["served"]["probe"]
    assert seen["reference"] == "PEFT"
    assert seen["moved"] > 0.1 and 0.8 < seen["effect_size"] < 1.2
    assert seen["mismatch"] < 0.05 and seen["base_mismatch"] < 0.05
    assert zero["served"]["probe"]["moved"] == 0
    assert responses(zero) == responses(base) != responses(tuned)
    assert again["versus"]["baseline"] == "base" and again["versus"]["tied"] == len(PROBLEMS)
    assert base["served"]["backends"]["device"] == "cpu"
    assert base["tree_id"] == tree_ids()


def test_second_run_needs_no_engine_and_says_the_same(results, dataset, monkeypatch):
    found, models, settings = results
    monkeypatch.setattr(Server, "serve", lambda *_: pytest.fail("an engine was asked for"))
    again = evaluate(models, [dataset], settings)
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(found))


def test_killed_evaluation_draws_only_what_is_missing(results, dataset, monkeypatch):
    found, models, settings = results
    whole = {file: file.read_bytes() for file in settings.cache.iterdir()}
    drawn, keep = [], cache.append
    monkeypatch.setattr(cache, "append", lambda file, header, lines: (drawn.extend(lines), keep(file, header, lines)))
    for file, content in whole.items():
        if b'"model": "tuned"' in content.split(b"\n")[0]:
            # The header, eight samples, and the ninth cut in the middle.
            file.write_bytes(b"\n".join(content.split(b"\n")[:9]) + b"\n" + content.split(b"\n")[9][:40])
    again = evaluate(models, [dataset], settings)
    assert len(drawn) == len(PROBLEMS) - 8
    for before, after in zip(found, again, strict=True):
        assert [len(r["records"]) for r in (before, after)] == [len(PROBLEMS)] * 2
        kept = sum(a == b for a, b in zip(responses(before), responses(after), strict=True))
        assert kept >= 8  # what is drawn anew has other neighbours in its batch
        assert after["served"] == before["served"]


def test_sampling_mode_has_a_seed_a_sample_whatever_the_batch(checkpoint, dataset, monkeypatch):
    monkeypatch.setenv("RFT_BATCH_INVARIANT_CPU", "1")  # or bf16 rows round by their neighbours, how often by the CPU
    (model,) = checked([("base", checkpoint)])
    prompts = render(load_tokenizer(checkpoint), PROBLEMS[:2], None, None)
    requests = [sampling.Request(p.digest, p.tokens, i) for p in prompts for i in range(8)]
    params = sampling.parameters(0.6, 1.0, 16, 0, 0)
    server, runs = Server(160, {model.base: [p.tokens for p in prompts]}, reference=None), []
    try:
        llm, _, _ = server.serve(model)
        for order in (requests, requests[::-1]):
            samples = {}
            sampling.draw(llm, order, params, lambda s, found=samples: found.update({(s["prompt"], s["index"]): s}))
            runs.append({key: sample["response"] for key, sample in samples.items()})
    finally:
        server.close()
    assert len(set(runs[0].values())) > 8
    assert runs[0] == runs[1]


def test_full_disk_stops_with_the_samples_kept(checkpoint, dataset, tmp_path, monkeypatch, capfd):
    kept, append = [], cache.append

    def append_until_full(file, header, lines):
        if len(kept) == 5:
            raise OSError(28, "No space left on device", str(file))
        append(file, header, lines)
        kept.extend(lines)

    monkeypatch.setattr(cache, "append", append_until_full)
    out = tmp_path / "out.json"
    options = ["--model", f"base={checkpoint}", "--dataset", str(dataset), "--cache", str(tmp_path / "cache")]
    options += ["--output", str(out), "--max-tokens", "16", "--max-prompt-tokens", "128"]
    monkeypatch.setattr(sys, "argv", ["eval_posthoc.py", *options])
    assert runpy.run_path(str(ROOT / "eval" / "eval_posthoc.py"), run_name="script")["main"]() == 2
    assert "free space and run the same command again" in capfd.readouterr().err
    assert not out.exists()
    (file,) = (tmp_path / "cache").iterdir()
    assert len(cache.read_samples(file)[1]) == 5


def test_dropped_or_weakened_adapter_is_an_error(checkpoint, adapters, monkeypatch):
    """The engine gets the adapter at a third of its strength, as if some layers were lost on the way."""
    import rft.serving.engine
    from rft.hooks.saved_adapter import read_adapter

    def weakened(path):
        manifest, buffer = read_adapter(path)
        for layer in manifest["layers"]:
            layer["scaling"] /= 3
        return manifest, buffer

    monkeypatch.setattr(rft.serving.engine, "read_adapter", weakened)
    (model,) = checked([("tuned", adapters["tuned"])])
    prompts = [p.tokens for p in render(load_tokenizer(checkpoint), PROBLEMS[:4], None, None)]
    server = Server(160, {model.base: prompts}, {model.base: adapter_room([model], model.base)})
    try:
        with pytest.raises(ValueError, match="the adapter's effect in the engine is 0"):
            server.serve(model)
    finally:
        server.close()


def test_merged_model_is_the_served_adapter(checkpoint, adapters, dataset, tmp_path):
    (model,) = checked([("tuned", adapters["tuned"])])
    settings = Settings(**LIMITS, serving="merged")  # the other tests serve adapters exactly
    record = merge_and_check(model, tmp_path / "merged" / "tuned", dataset, settings)
    assert record["mismatch"] < 0.02
    (merged,) = checked([("merged", tmp_path / "merged" / "tuned")])
    assert merged.kind == "merged"
    with pytest.raises(ValueError, match=r"found .*tuned already"):
        merge_and_check(model, tmp_path / "merged" / "tuned", dataset, settings)
    with pytest.raises(ValueError, match="differs from the served adapter"):
        merge_and_check(model, tmp_path / "merged" / "other", dataset, settings, bound=-1.0)
    assert [path.name for path in (tmp_path / "merged").iterdir()] == ["tuned"]
    sequences = [(p.tokens, 1) for p in render(load_tokenizer(checkpoint), PROBLEMS[:2], None, None)]
    reference = probe.adapter_log_probs(probe.load_reference(model.base, "cpu"), model.path, sequences)
    from_disk = probe.reference_log_probs(probe.load_reference(merged.base, "cpu"), sequences)
    assert (from_disk - reference).abs().mean() < 0.02


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Settings of an agent with a retriever. The untrained model closes no tag: whatever it says is searched for."""
    monkeypatch.setenv("RFT_BATCH_INVARIANT_CPU", "1")

    def parse(text: str) -> Action:
        return Action("search", "".join(c if c.isascii() and c.isalnum() else " " for c in text).strip() or "tree")

    monkeypatch.setattr(tags, "parse", parse)
    with retriever(tmp_path, {f"Tree {i}": f"Leaf {i} of {chr(97 + i) * 2}" for i in range(26)}) as url:
        yield AgentSettings(max_turns=3, turn_tokens=12, observation_tokens=200, topk=2, retriever_url=url)


def test_conversations_are_those_of_a_loop_by_hand_however_many_run_at_once(checkpoint, searched):
    """Greedy and sampled: the same tokens turn by turn, whatever runs beside them."""
    (model,) = checked([("base", checkpoint)])
    prompts = render(load_tokenizer(checkpoint), PROBLEMS[:3], None, None)
    agent = opened(searched, [model], 640)
    server = Server(640, {model.base: [p.tokens for p in prompts]}, reference=None)
    try:
        llm, _, _ = server.serve(model)
        for temperature, samples in ((0.0, 1), (1.0, 3)):
            params = sampling.parameters(temperature, 1.0, 512, 0, 0)
            requests = [sampling.Request(p.digest, p.tokens, i) for p in prompts for i in range(samples)]
            runs = []
            for order, at_once in ((requests, 1), (requests[::-1], 64)):
                kept = []
                conversations.draw(llm, order, params, kept.append, agent=agent, at_once=at_once)
                runs.append({(one["prompt"], one["index"]): one for one in kept})
            told = [{key: one["response"] for key, one in run.items()} for run in runs]
            assert told[0] == told[1] and len(set(told[0].values())) == len(requests)
            for request in requests[::samples]:
                one = runs[1][request.prompt, request.index]
                assert by_hand(llm, request, params, searched) == one["response"]
                assert one["searches"] == 2 and len(one["turns"]) == 5
    finally:
        server.close()


def test_an_agent_is_evaluated_with_adapters_and_kept(checkpoint, adapters, dataset, searched, tmp_path, monkeypatch):
    questions = tmp_path / "questions.jsonl"
    rows = [problem | {"label": label_of([problem["label"]])} for problem in PROBLEMS]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = checked([("base", checkpoint), ("tuned", adapters["tuned"])])
    settings = Settings(max_tokens=512, max_prompt_tokens=128, cache=tmp_path / "cache", agent=searched, reference=None)
    found = evaluate(models, [questions], settings)
    base, tuned = found
    assert base["conversations"]["searches"] == tuned["conversations"]["searches"] == 2
    assert responses(base) != responses(tuned) and tuned["served"]["method"] == "exact LoRA"
    assert tuned["versus"]["tied"] == len(PROBLEMS) and base["no_answer"] == 1.0
    monkeypatch.setattr(Server, "serve", lambda *_: pytest.fail("an engine was asked for"))
    assert json.loads(json.dumps(evaluate(models, [questions], settings))) == json.loads(json.dumps(found))


LOCAL_TASK = """
task: local_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["<|end|>"], max_gen_toks: 12}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


def test_lm_eval_task_runs_on_the_served_adapter(checkpoint, adapters, tmp_path, monkeypatch, capfd):
    """Questions whose answer is what the adapter itself says: right for the adapter, wrong for the base."""
    pytest.importorskip("lm_eval")
    (model,) = checked([("tuned", adapters["tuned"])])
    questions, tokenizer = ["1+2=", "7+8=", "3+3="], load_tokenizer(checkpoint)
    probes, room = [tokenizer(q)["input_ids"] for q in questions], adapter_room([model], model.base)
    server = Server(512, {model.base: probes}, {model.base: room}, reference=None)
    try:
        llm, _, _ = server.serve(model)
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=12, stop=["<|end|>"])
        tokens = [{"prompt_token_ids": tokenizer(q, add_special_tokens=False)["input_ids"]} for q in questions]
        answers = [output.outputs[0].text for output in llm.generate(tokens, greedy, use_tqdm=False)]
    finally:
        server.close()
    data = tmp_path / "sums.jsonl"
    rows = [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "local_sums.yaml").write_text(LOCAL_TASK.format(data=data))
    out = tmp_path / "out.json"
    options = ["--model", f"base={checkpoint}", "--model", f"tuned={adapters['tuned']}", "--task", "local_sums:0"]
    options += ["--include", str(tmp_path / "tasks"), "--max-model-len", "512", "--output", str(out)]
    monkeypatch.setattr(sys, "argv", ["eval_lm_eval.py", *options])
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    assert runpy.run_path(str(ROOT / "eval" / "eval_lm_eval.py"), run_name="script")["main"]() == 0
    base, tuned = json.loads(out.read_text())
    assert tuned["results"]["local_sums"]["exact_match,none"] == 1.0
    assert base["results"]["local_sums"]["exact_match,none"] < 1.0
    assert tuned["served"]["probe"]["moved"] > 0 and "local_sums" in capfd.readouterr().out
