"""What the benchmarks are made of, without the stack."""

import json
import sys

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import report, sync, whole_loop
from benchmarks.checkpoint import SHAPES, build_tokenizer, layer_tensors, projection_shapes, shape_config, write_prompts
from benchmarks.gpu_memory import compute_apps
from benchmarks.parity import by_position
from benchmarks.reward_token_parity import reward_func


def test_token_ids_are_words(tmp_path):
    build_tokenizer(1024, 1022, 1023).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = [5, 17, 1022, 1000]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "t5 t17 t1022 t1000"
    assert tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] == ids
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1022, 1023)
    chat = [{"role": "user", "content": "t5 t17"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == "t5 t17"


def test_prompts_have_the_length_that_was_asked_for(tmp_path):
    write_prompts(tmp_path / "p.jsonl", count=3, tokens=7, vocab_size=1024)
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    tokenizer = build_tokenizer(1024, 1022, 1023)
    assert [len(tokenizer(r["input"])["input_ids"]) for r in records] == [7, 7, 7]
    assert len({r["input"] for r in records}) == 3


@pytest.mark.parametrize(("shape", "billions"), [("20b", 20.9), ("120b", 116.8)])
def test_shapes_have_the_published_number_of_parameters(shape, billions):
    """20.91 B and 116.83 B: gpt-oss model card (arXiv 2508.10925), table 1."""
    config = shape_config(shape)
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    attention = sum(rows * columns for rows, columns in projection_shapes(config).values())
    expert = 3 * inner * hidden + 2 * inner + hidden
    layer = attention + experts * (expert + hidden + 1)
    total = config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * hidden
    assert total / 1e9 == pytest.approx(billions, abs=0.05)


def test_layer_has_the_names_and_sizes_of_the_format():
    config = shape_config("tiny")
    tensors = layer_tensors(config, 1, torch.Generator().manual_seed(0))
    experts = "model.layers.1.mlp.experts"
    assert tensors[f"{experts}.gate_up_proj_blocks"].shape == (4, 256, 4, 16)
    assert tensors[f"{experts}.down_proj_scales"].shape == (4, 128, 4)
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (64, 128)
    assert tensors["model.layers.1.self_attn.sinks"].shape == (4,)


def test_reward_separates_by_the_last_token():
    found = reward_func(["t4 t5 t6 t8", "t4 t5 t6 t9"], ["t4 t5", "t4 t5"], ["0", "0"])
    assert found["rewards"].tolist() == [1.0, 0.0]
    assert found["extra_logs"]["even_share"].tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="wanted the prompt and a response"):
        reward_func(["t4 t5"], ["t4 t5"], ["0"])


def test_memory_of_one_role_adds_up_and_hidden_processes_keep_their_pid():
    lines = ["999999999, 1200", "999999999, 300", "999999998, 7", "999999997, [N/A]"]
    assert compute_apps(lines) == {"pid 999999999": 1500, "pid 999999998": 7}


TRAINING = """
import json, os, sys, time
for step in (1, 2):
    with open(os.environ["METRICS_LOG_DIR"] + "/training_metrics.jsonl", "a") as stream:
        stream.write(json.dumps({"global_step": step}) + chr(10))
time.sleep(float(sys.argv[1]))
sys.exit(3 if sys.argv[1] == "0.1" else 0)
"""


def test_training_is_stopped_when_its_time_is_up_and_its_steps_count(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("METRICS_LOG_DIR", str(tmp_path))

    def run(seconds: str, budget: int) -> tuple[str, list[int]]:
        """By a clock that counts the steps seen."""
        (tmp_path / "training_metrics.jsonl").unlink(missing_ok=True)
        records, words = [], [sys.executable, "-c", TRAINING, seconds]
        monkeypatch.setattr(whole_loop.time, "monotonic", lambda: len(records))
        ended = whole_loop.run(words, tmp_path / "log", budget, records.append)
        return ended, [record["global_step"] for record in records]

    assert run("600", budget=2) == ("stopped at --budget-seconds", [1, 2])
    assert run("0", budget=3) == ("by itself", [1, 2])
    with pytest.raises(RuntimeError, match="ended with exit status 3"):
        run("0.1", budget=3)


def test_case_that_takes_too_long_is_ended_and_said(tmp_path):
    with pytest.raises(RuntimeError, match="exit status none within 0 s"):
        sync.run_case("tiny-dummy", tmp_path, {}, address="127.0.0.1:1", limit_seconds=0)


def test_part_that_fails_keeps_what_it_had_and_the_next_one_runs(tmp_path):
    record = {"started": "2000-01-01T00:00", "commit": None, "dirty": None, "tree_id": {}, "devices": [], "parts": {}}

    def publish():
        report.save(tmp_path, "b", record, report.markdown(("a", "b"), [(1, 2.34567)]))

    with report.part(record, "one", publish) as found:
        found["value"] = 1
        raise RuntimeError("no memory\nmore")
    with report.part(record, "two", publish) as found:
        found["value"] = 2
    stored = json.loads((tmp_path / "b.json").read_text())["parts"]
    assert (stored["one"]["value"], stored["one"]["error"]) == (1, "RuntimeError: no memory")
    assert stored["two"]["value"] == 2
    assert report.exit_code(record) == 1
    assert "- **one failed**: RuntimeError: no memory" in (tmp_path / "b.md").read_text()
    assert "| 1 | 2.346 |" in (tmp_path / "b.md").read_text()


def test_tiny_shape_fits_mxfp4_blocks():
    assert all(SHAPES[name][key] % 32 == 0 for name in SHAPES for key in ("hidden_size", "intermediate_size"))


def test_distances_are_told_apart_by_the_position_of_a_token():
    """Responses of 1,000 tokens behind a prompt of 64: the first stands at position 64, the last at 1,063."""
    engine = -torch.ones(3, 1000)
    trainer = engine.clone()
    trainer[:, 448:960] += 0.25  # positions 512 to 1,023
    found = by_position(engine, trainer, first=64)
    assert {name: d["tokens"] for name, d in found.items()} == {
        "all": 3000, "0-128": 3 * 64, "128-512": 3 * 384, "512-1024": 3 * 512, "1024-2048": 3 * 40,
    }  # fmt: skip
    assert {name: d["mean_abs"] for name, d in found.items() if name != "all"} == {
        "0-128": 0, "128-512": 0, "512-1024": 0.25, "1024-2048": 0,
    }  # fmt: skip
    assert found["all"]["mean_abs"] == pytest.approx(0.25 * 512 / 1000)
