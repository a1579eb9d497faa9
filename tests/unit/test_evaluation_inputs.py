"""What an evaluation refuses before an engine starts: modes, problems, models, adapters; each with its repair."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rft.evals import merge
from rft.evals.harness import PRESETS, require_lm_eval
from rft.evals.models import Model, adapter_digest, checked
from rft.evals.prompts import load_tokenizer, render, require_short
from rft.evals.server import Server
from rft.evals.settings import Settings
from rft.problems import read_problems
from rft.runs.manifest import describe

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = {"input": [{"role": "user", "content": "1 + 1"}], "label": "2", "id": "a"}


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, (1, 0.0)),
        ({"mode": "sampling_pass@8"}, (8, 0.6)),
        ({"mode": "sampling_pass@8", "samples": 16, "temperature": 1.0}, (16, 1.0)),
        ({"mode": "nondet_proxy_pass@8"}, (8, 0.0)),
    ],
)
def test_modes_draw_what_they_say(options, drawn):
    assert Settings(**options).drawn() == drawn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 8}, "greedy samples of one prompt are copies; wanted --samples 1, or --mode nondet_proxy_pass@8"),
        ({"mode": "sampling_pass@8", "temperature": 0.0}, "--mode nondet_proxy_pass@8"),
        ({"mode": "sampling_pass@8", "samples": 4}, "wanted --samples 8 or more"),
        ({"temperature": 0.6}, "wanted temperature 0"),
        ({"mode": "nondet_proxy_pass@8", "temperature": 0.6}, "wanted temperature 0"),
        ({"temperature": 0.6, "samples": 8}, "wanted temperature 0"),
    ],
)
def test_mode_that_is_not_what_its_name_says_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(**options).drawn()


def lines(*problems: dict) -> bytes:
    return b"".join(json.dumps(problem).encode() + b"\n" for problem in problems)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no problems in the file"),
        (b"\n  \n", "no problems in the file"),
        (lines(PROBLEM, PROBLEM), "line 2: found id 'a', as on line 1"),
        (
            lines({"problem": "1 + 1", "answer": "2", "id": "a"}),
            r"'input' is None.*fields here: problem, answer, id",
        ),
        (lines(PROBLEM | {"label": ""}), "'label' is '', wanted a string that is not empty"),
        (lines({k: v for k, v in PROBLEM.items() if k != "label"}), "'label' is None"),
        (lines(PROBLEM | {"input": []}), "'input' is"),
        (
            lines(PROBLEM, PROBLEM | {"id": "b", "input": ["hi"]}),
            "line 2: field 'input' is wrong: message 1 is 'hi'",
        ),
        (
            lines(PROBLEM | {"input": [{"content": "x"}]}),
            "'input' is wrong: message 1 is .*an object with 'role'",
        ),
        (lines(PROBLEM | {"input": [{"role": "user", "content": ["x"]}]}), "message 1 has content"),
        (lines(PROBLEM | {"input": 2}), "'input' is 2, wanted chat messages or text"),
        (lines(PROBLEM | {"input": " "}), "'input' is wrong: message 1 has content ' '"),
        (lines(PROBLEM).replace(b'"label"', b'"label": "3", "label"'), "line 1: found field 'label' twice"),
        (lines(PROBLEM) + '{"id": "Bézier"}\n'.encode("latin-1"), "line 2: found byte 0xe9 at column 10, wanted UTF-8"),
        (json.dumps(PROBLEM).encode("utf-16"), "line 1: found byte 0xff at column 1, wanted UTF-8"),
        (lines(PROBLEM) + b"[1]\n", "line 2: found .1., wanted a JSON object"),
    ],
)
def test_malformed_problems_are_named_by_line_and_field(tmp_path, content, message):
    file = tmp_path / "p.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_problems(file)


def test_text_is_one_message_of_the_user(tmp_path):
    """As OpenRLHF's `preprocess_data` makes it of text where it applies the chat template."""
    (tmp_path / "p.jsonl").write_bytes(lines(PROBLEM | {"input": "1 + 1"}))
    assert read_problems(tmp_path / "p.jsonl") == [PROBLEM]


@pytest.fixture
def base(tmp_path, checkpoint):
    """The tiny checkpoint under a path that a test may change."""
    folder = tmp_path / "base"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def write_adapter(folder, base, width: int = 128, name: str = "self_attn.q_proj", scale: float = 0.0):
    folder.mkdir(parents=True)
    config = {"base_model_name_or_path": str(base), "r": 4, "lora_alpha": 8, "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    prefix = f"base_model.model.model.layers.0.{name}"
    matrices = {f"{prefix}.lora_A.weight": torch.ones(4, 128), f"{prefix}.lora_B.weight": torch.full((width, 4), scale)}
    save_file({key: value.to(torch.bfloat16) for key, value in matrices.items()}, folder / "adapter_model.safetensors")
    return folder


def test_models_are_told_apart(base, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", base)
    plain, tuned = checked([("base", base), ("tuned", adapter)])
    assert (plain.kind, tuned.kind) == ("base", "adapter")
    assert plain.base == tuned.base == base.resolve()


def test_models_that_cannot_be_evaluated_are_refused_by_name(base, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", base)
    with pytest.raises(ValueError, match=r"model x: .*no such directory.*check the path"):
        checked([("x", tmp_path / "absent")])
    with pytest.raises(ValueError, match="the name 'x' twice"):
        checked([("x", base), ("x", adapter)])
    for wrong, message in (
        (write_adapter(tmp_path / "wide", base, width=256), r"q_proj.weight of shape \(256, 128\).*has \(128, 128\)"),
        (write_adapter(tmp_path / "other", base, name="self_attn.z_proj"), "has no such weight.*--base"),
        (write_adapter(tmp_path / "moved", tmp_path / "gone"), "no such directory.*--base"),
    ):
        with pytest.raises(ValueError, match=f"model x: .*{message}"):
            checked([("x", wrong)])
    assert checked([("x", tmp_path / "moved")], base)[0].base == base.resolve()


def test_a_checkpoint_with_code_of_its_own_is_refused_unless_asked_for(base, tmp_path, monkeypatch):
    monkeypatch.delenv("RFT_TRUST_REMOTE_CODE", raising=False)
    config = json.loads((base / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "theirs.Model"}}
    (base / "config.json").unlink()
    (base / "config.json").write_text(json.dumps(config))
    adapter = write_adapter(tmp_path / "adapter", base)
    for place in (base, adapter):
        with pytest.raises(
            ValueError, match=r"model x: .*config\.json: found code .*theirs\.Model.*--trust-remote-code"
        ):
            checked([("x", place)])
    command = [sys.executable, "eval/eval_posthoc.py", "--model", f"x={base}", "--dataset", "absent.jsonl"]
    for more, message in (
        ([], "found code that the checkpoint brings along"),
        (["--trust-remote-code"], "absent.jsonl"),
    ):
        done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr


def test_adapter_whose_base_was_changed_after_training_is_refused(base, tmp_path):
    run = tmp_path / "run"
    adapter = write_adapter(run / "adapter", base)
    (run / "run.json").write_text(json.dumps(describe([], [base])))
    assert checked([("tuned", adapter)])
    other = tmp_path / "other-base"
    other.mkdir()
    for file in base.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "generation_config.json").write_text("{}")
    best = write_adapter(run / "checkpoints" / "best_step4_hf", base)
    write_adapter(tmp_path / "outputs" / "adapter", base)
    (run / "linked").symlink_to(tmp_path / "outputs" / "adapter")
    for place in (adapter, best, run / "linked"):
        with pytest.raises(ValueError, match=r"is not the one that .*run/run.json records"):
            checked([("tuned", place)], other)
    assert checked([("tuned", tmp_path / "outputs" / "adapter")], other)  # of no run that is known


def test_adapter_is_its_tensors_and_scaling(base, tmp_path):
    first = write_adapter(tmp_path / "a", base)
    (first / "README.md").write_text("what lies beside does not matter")
    same, other = write_adapter(tmp_path / "b", tmp_path), write_adapter(tmp_path / "c", base, scale=0.5)
    assert adapter_digest(first) == adapter_digest(same) != adapter_digest(other)


def test_prompt_says_effort_and_system_prompt(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    plain, high, system = (
        render(tokenizer, [PROBLEM], *options)[0] for options in ((None, None), (None, "high"), ("Be brief.", None))
    )
    assert "Reasoning: high" in high.text and "Reasoning: high" not in plain.text
    assert "Be brief." in system.text and "Be brief." not in plain.text
    assert len({plain.digest, high.digest, system.digest}) == 3
    assert plain.channel == ""
    assert tokenizer.decode(plain.tokens, skip_special_tokens=False) == plain.text


def test_prompts_that_would_not_be_what_was_asked_are_refused(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    own = PROBLEM | {"input": [{"role": "system", "content": "x"}, *PROBLEM["input"]]}
    with pytest.raises(ValueError, match="problem 'a' has a system prompt of its own"):
        render(tokenizer, [own], "Be brief.", None)
    prompts = render(tokenizer, [PROBLEM], None, None)
    with pytest.raises(ValueError, match=r"problem 'a': found a prompt of \d+ tokens, wanted at most 8"):
        require_short([PROBLEM], prompts, 8)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(ValueError, match="takes no reasoning_effort"):
        render(tokenizer, [PROBLEM], None, "high")
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="found no chat template"):
        render(tokenizer, [PROBLEM], None, None)


def test_presets_are_the_common_tasks_with_their_examples():
    found = {(preset.task, preset.shots) for preset in PRESETS.values()}
    assert {("gsm8k", 8), ("gsm8k_cot", 8), ("minerva_math", 4), ("hendrycks_math", 4), ("mbpp", 3)} <= found


def test_task_whose_modules_are_not_there_is_refused_before_an_engine_starts():
    pytest.importorskip("lm_eval")
    require_lm_eval([PRESETS["gsm8k_cot_8shot"]])
    with pytest.raises(ValueError, match=r"minerva_math: found no no_such_module; .*pip.* install .*'lm-eval\[math\]'"):
        require_lm_eval([replace(PRESETS["minerva_math_4shot"], modules=("json", "no_such_module"))])


MERGE = """
import resource, sys
from argparse import Namespace
from pathlib import Path
from rft.evals import cli
from rft.evals.merge import merge_and_check
from rft.evals.models import checked
from rft.evals.settings import Settings
base, adapter, dataset, output = map(Path, sys.argv[1:])
(model,) = checked([("tuned", adapter)], base)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
settings = Settings(max_tokens=8, max_prompt_tokens=128)
sys.exit(cli.guarded("merge", lambda _: merge_and_check(model, output, dataset, settings), Namespace()))
"""


def test_disk_that_fills_while_merging_is_one_message_and_leaves_nothing(base, tmp_path):
    """A file-size limit stands for the disk, as in test_sample_cache."""
    adapter, dataset, output = write_adapter(tmp_path / "adapter", base), tmp_path / "p.jsonl", tmp_path / "out" / "m"
    dataset.write_bytes(lines(PROBLEM))
    command = [sys.executable, "-c", MERGE, *map(str, (base, adapter, dataset, output))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("merge: ")]
    assert "the merged weights cannot be written" in message and "File too large" in message
    assert "Traceback" not in done.stderr
    assert not output.parent.exists() or not list(output.parent.iterdir())


def test_merge_is_checked_on_as_many_ranks_as_the_evaluation(base, tmp_path, monkeypatch):
    seen = []

    def server(*options, **named):
        seen.append(inspect.signature(Server.__init__).bind(None, *options, **named).arguments["tensor_parallel_size"])
        raise OSError("no engine here")

    monkeypatch.setattr("rft.evals.server.Server", server)
    with pytest.raises(OSError, match="no engine here"):
        merge._compare(Model("tuned", base, "adapter", base), tmp_path, [[1]], Settings(tensor_parallel_size=2))
    assert seen == [2]
