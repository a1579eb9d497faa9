"""Parts of the rehearsal on a random model: gpt-oss's own vocabulary, problems that preflight accepts, a reward."""

import json
import re

import pytest

from benchmarks import ROOT
from benchmarks.harmony_tokenizer import build_harmony_tokenizer
from benchmarks.rehearsal import PROBLEMS, QUESTIONS, SUPERVISED, write_problems, write_questions, write_turns
from benchmarks.reward_length_parity import reward_func
from rft.data.check import check_file, shared_faults
from rft.grading.short_answer import answers_of
from rft.hooks.sft_rows import learnable
from rft.runs.format_check import chosen
from rft.runs.preflight import harmony
from rft.runs.preflight.lines import GO

CHAT = [{"role": "user", "content": "Put the final answer within \\boxed{}.\nWhat is 12345 + 67?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return build_harmony_tokenizer()


def test_vocabulary_is_that_of_openai_harmony(tokenizer):
    encoding = harmony.load_encoding()
    texts = [
        "Hello, world! I'll be there at 12345.\n\n\\boxed{42}",
        "HTTPServer's won'T DON'T camelCase Über naïve straße ДОМ дом",
        "   spaces\t\n x=1/2\r\n//  \n\n",
        "<|start|>assistant<|channel|>final<|message|>7<|return|>",
        "日本語のテキスト 🙂 عربى ९९९९",
    ]
    for text in texts:
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert found == encoding.encode(text, allowed_special="all")
        assert tokenizer.decode(found) == text
    assert len(tokenizer) == 201088 and (tokenizer.eos_token_id, tokenizer.pad_token_id) == (200002, 199999)


def test_preflight_compares_its_token_ids(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (line,) = harmony.check_harmony(tmp_path, harmony.load_tokenizer(tmp_path), CHAT)
    assert line.verdict == GO and line.measured.endswith("token ids equal openai-harmony's")


def test_problems_are_sound_and_shared_by_no_two_files(tmp_path):
    write_problems(tmp_path)
    hashes = {}
    for name, count in PROBLEMS.items():
        faults, hashes[tmp_path / name] = check_file(tmp_path / name)
        assert not faults and len((tmp_path / name).read_text().splitlines()) == count
    assert list(shared_faults(hashes)) == []
    row = json.loads((tmp_path / "sft_rl_pool.jsonl").read_text().splitlines()[0])
    assert eval(row["input"][0]["content"].split("What is ")[1].rstrip("?")) == int(row["label"])


def test_questions_are_sound_and_each_has_its_passage(tmp_path):
    passages = [json.loads(line) for line in write_questions(tmp_path).read_text().splitlines()]
    hashes = {}
    for name, count in QUESTIONS.items():
        faults, hashes[tmp_path / name] = check_file(tmp_path / name)
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert not faults and len(rows) == count
        for row in rows:
            (answer,) = answers_of(row["label"])
            asked = row["input"][-1]["content"].removeprefix("What is ").rstrip("?")
            (text,) = [passage["text"] for passage in passages if passage["title"] == asked]
            assert text == f"{asked} is {answer}." and eval(asked) == int(answer)
    assert list(shared_faults(hashes)) == []


def test_every_file_that_a_large_launcher_reads_is_made():
    task = (ROOT / "launch/tasks/search.env").read_text()
    assert set(re.findall(r"\$SETS/(\S+?\.jsonl)", task)) == QUESTIONS.keys()
    launchers = [
        path for path in (ROOT / "launch").glob("train_grpo_*0b*.sh") if not path.stem.endswith(("_code", "_search"))
    ]
    launchers.append(ROOT / "launch" / "tasks" / "math.env")
    named = {name for path in launchers for name in re.findall(r"\$DATA_ROOT/(\S+?\.jsonl)", path.read_text())}
    assert len(launchers) == 6 and named == PROBLEMS.keys()


def test_reward_counts_the_characters_of_the_response():
    found = reward_func(["ab12", "ab123"], ["ab", "ab"], ["0", "0"])
    assert found["rewards"].tolist() == [1.0, 0.0] and found["extra_logs"]["characters"].tolist() == [2.0, 3.0]


def test_turns_can_be_learned_whole_and_are_of_many_lengths(tokenizer, tmp_path, monkeypatch):
    write_turns(tmp_path)
    write_problems(tmp_path)
    for name, count in SUPERVISED.items():
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        found = learnable(rows, tokenizer, max_len=4096)
        lengths = [len(each.ids) for each in found.conversations]
        assert found.too_long == 0 and len(lengths) == count
        assert min(lengths) < 300 and max(lengths) > 1500
    asked = tmp_path / "probe_set_1000_ood.jsonl"
    assert not list(shared_faults({path: check_file(path)[1] for path in (*map(tmp_path.joinpath, SUPERVISED), asked)}))
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    assert chosen(None, PROBLEMS[asked.name], 0)
