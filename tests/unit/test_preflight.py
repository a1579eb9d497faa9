"""The preflight page as a launcher calls it, and its checks of data and chat template."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_options import TINY, options, refused, verdicts

from rft.data.row_files import input_identity
from rft.options import command
from rft.problems import read_problems
from rft.record.digest import file_sha256
from rft.record.environment import stack_name
from rft.runs import inputs
from rft.runs.preflight import cli, data, decontamination, harmony
from rft.runs.preflight.lines import GO, NO_GO, WARN

ROOT = Path(__file__).resolve().parents[2]


def problem(text: str, label: str = "4") -> dict:
    return {"input": [{"role": "user", "content": text}], "label": label, "id": text, "datasource": "sums"}


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(tmp_path, checkpoint, monkeypatch):
    """Run directory and command of a tiny run: 64 training problems, 8 others for evaluation."""
    for name in ("RAY_ADDRESS", "RFT_RAY_LOGS", "MASTER_PORT", "METRICS_LOG_DIR", "SAMPLES_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RFT_STACK", stack_name())
    train = write(tmp_path / "train.jsonl", [problem(f"{n} + 1 = ?", str(n + 1)) for n in range(64)])
    heldout = write(tmp_path / "heldout.jsonl", [problem(f"{n} + 2 = ?", str(n + 2)) for n in range(8)])
    directory = tmp_path / "run"
    directory.mkdir()
    words = f"{TINY} --remote_rm_url {ROOT}/rewards/reward_func_em.py"
    words += f" --pretrain {checkpoint} --prompt_data {train} --apply_chat_template --eval_dataset {heldout}"
    words += f" --eval_steps 1 --save_path {directory}/adapter --ckpt_path {directory}/checkpoints --num_episodes 4"
    return directory, [sys.executable, "-m", command.MODULE, *words.split()]


def page(run, *more: str) -> dict:
    """The document of a preflight of this run with more options at its end."""
    directory, words = run
    status = cli.main(["--json", "--run-dir", str(directory), "--", *words, *more])
    document = json.loads((directory / "preflight.json").read_text())
    assert status == (0 if document["go"] else 1)
    return document


def test_a_good_run_is_go(run, capsys):
    document = page(run)
    assert document["go"], document
    assert document == json.loads(capsys.readouterr().out)
    names = [check["name"] for check in document["checks"]]
    for name in (
        "patches", "Ray nodes", "versions", "model", "reward", "data", "overlap", "decontamination", "batches", "steps",
        "learning rate", "attention", "LoRA", "Harmony template", "lengths", "devices", "GPU memory", "host memory",
        "disk", "ports", "Ray", "Hugging Face", "W&B", "git",
    ):  # fmt: skip
        assert name in names
    assert {check["verdict"] for check in document["checks"]} <= {GO, WARN}
    assert all(check["measured"] for check in document["checks"])
    assert all(check["repair"] for check in document["checks"] if check["verdict"] != GO)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        (["--train_batch_size", "100"], "batches"),
        (["--eval_steps", "0"], "steps"),
        (["--num_episodes", "4000", "--lr_warmup_ratio", "0.5"], "learning rate"),
        (["--gradient_checkpointing"], "attention"),
        (["--pretrain", "nowhere"], "model"),
        (["--remote_rm_url", "nowhere.py"], "reward"),
        (["--prompt_data", "nowhere.jsonl"], "data"),
        (["--vllm_num_engines", "0"], "devices"),
        (["--generate_max_len", "200000"], "lengths"),
    ],
)
def test_one_fault_is_no_go_and_named(run, more, name):
    document = page(run, *more)
    bad = [check for check in document["checks"] if check["verdict"] == NO_GO]
    assert not document["go"] and [check["name"] for check in bad] == [name], bad
    assert bad[0]["repair"]


def test_too_few_prompts_for_a_rollout(run):
    document = page(run, "--rollout_batch_size", "128", "--train_batch_size", "1024")
    bad = [check["name"] for check in document["checks"] if check["verdict"] == NO_GO]
    assert bad == ["steps", "learning rate"]


def test_bad_use_exits_2_and_writes_nothing(run, capsys):
    directory, words = run
    for arguments in (
        ["--run-dir", str(directory), "--", "echo", "hello"],
        ["--run-dir", str(directory), "--", *words, "--no_such_option"],
        ["--run-dir", str(directory), "--", *words, "--generate_max", "8192"],
        ["--run-dir", str(directory)],
    ):
        assert cli.main(arguments) == 2
        assert capsys.readouterr().err.startswith("error: command: ")
    for arguments in (["--", *words], ["--unknown", "--run-dir", str(directory), "--", *words]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
    assert list(directory.iterdir()) == []


def test_a_checkpoint_with_code_of_its_own_needs_the_option(run, tmp_path, capsys):
    directory, words = run
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": [null, "theirs.Tokenizer"]}}')
    for option in ("--pretrain", "--reward_pretrain"):
        assert cli.main(["--run-dir", str(directory), "--", *words, option, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path}/tokenizer_config.json: found code" in said
        assert "theirs.Tokenizer in auto_map" in said and "pass --trust_remote_code" in said
    assert command.parse([*words, "--pretrain", str(tmp_path), "--trust_remote_code"]).trust_remote_code


def test_the_command_prints_one_line_a_check_and_imports_no_torch(run):
    directory, words = run
    script = "import sys; from rft.runs.preflight import cli; code = cli.main(sys.argv[1:]); "
    script += "sys.exit(99 if {'torch', 'ray', 'transformers', 'vllm'} & set(sys.modules) else code)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, "--run-dir", str(directory), "--", *words],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("patches", "learning rate", "git"):
        assert sum(line.split(" go ")[0].split(" warn ")[0].strip() == name for line in done.stdout.splitlines()) == 1
    assert done.stdout.splitlines()[-1].startswith("go (")


def test_no_run_directory_is_made(run, tmp_path):
    assert cli.main(["--run-dir", str(tmp_path / "new"), "--", *run[1]]) == 0
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_that_cannot_be_read(run, checkpoint, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for file in checkpoint.iterdir():
        (model / file.name).symlink_to(file)
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.json").write_text("{")
    bad = [check for check in page(run, "--pretrain", str(model))["checks"] if check["verdict"] == NO_GO]
    assert [check["name"] for check in bad] == ["tokenizer"] and "tokenizer.json: " in bad[0]["measured"]


# --- data ---


def read(train: Path, heldout: Path | None, more: str = "") -> data.Prompts:
    evaluation = f" --eval_dataset {heldout}" if heldout else ""
    return data.read_prompts(options(f"--apply_chat_template --prompt_data {train}{evaluation} {more}"))


@pytest.fixture
def files(run, tmp_path):
    return tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"


def test_counts(files):
    found = read(*files)
    assert (found.count, found.eval_count) == (64, 8) and len(found.longest) == data.LONGEST
    found = read(*files, "--max_samples 5")
    assert (found.count, found.eval_count) == (5, 8), "--max_samples cuts the training prompts alone"
    assert read(f"{files[0]},{files[1]}", None).count == 72
    assert read(f"{files[0]},{files[1]}", None, "--prompt_data_probs 0.5,0.5").count is None
    assert read("hub/name", None).count is None


@pytest.mark.parametrize(
    ("line", "measured"),
    [
        ("{", "line 2: not JSON"),
        ('{"input": "2 + 2", "label": 4}', "line 2: field 'label': found 4"),
        ('{"input": "", "label": "4"}', "line 2: field 'input'"),
        ('{"problem": "2 + 2", "label": "4"}', "field 'input' is missing"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, measured):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"input": "1 + 1", "label": "2"}\n' + line + "\n")
    found = read(path, None).lines
    assert any(measured in each.measured and each.verdict == NO_GO for each in found)
    assert all(".venv/bin/python -m rft.data check" in each.repair for each in found) and not read(path, None).longest


def test_other_keys_are_checked_as_the_trainer_reads_them(tmp_path):
    path = write(tmp_path / "other.jsonl", [{"question": "1 + 1", "answer": "2"}])
    keys = "--input_key question --label_key answer"
    assert read(path, None, keys).lines[0].verdict == GO
    refused(read(path, path, keys).lines, "not compared: fields other than", "rename them", WARN)
    refused(read(path, None, "--input_key text --label_key answer").lines, "field 'text' is None", "--input_key")


def test_missing_and_foreign_files(tmp_path, files):
    refused(read(tmp_path / "none.jsonl", None).lines, "found no file", ".venv/bin/python -m rft.data check")
    refused(read("hub/name", None).lines, "hub/name is no JSONL file", "--prompt_data", WARN)
    nothing = options("--apply_chat_template")
    nothing.prompt_data = None
    refused(data.read_prompts(nothing).lines, "no training prompts", "--prompt_data")


def test_overlap(files, tmp_path):
    train, heldout = files
    assert any(line.name == "overlap" and line.verdict == GO for line in read(*files).lines)
    write(heldout, [problem("3 +  1 = ?")])  # typography does not hide it
    refused(read(*files).lines, "1 shared problems", f"--eval-set {heldout}")
    refused(read(train, None).lines, "no evaluation set", "--eval_dataset", WARN)
    (tmp_path / "again").symlink_to(tmp_path)
    for same in (train, tmp_path / "again/train.jsonl"):
        refused(read(train, same).lines, f"{same} is trained on and evaluated on", "name another file")


def test_what_cannot_be_read_is_never_said_to_share_nothing(files):
    """Neither `no problem in both` nor `against all sets` where a training or an evaluation set is no JSONL file."""
    train, heldout = files
    for training, evaluation in (("hub/name", heldout), (train, "hub/name"), (f"{train},hub/name", heldout)):
        found = read(training, evaluation).lines
        refused(found, "hub/name not compared: no JSONL file", "name JSONL files", WARN)
        assert not [line for line in found if line.verdict == GO and line.name in ("overlap", "decontamination")]
    write(heldout, [problem("3 + 1 = ?")])
    refused(read(f"{train},hub/name", heldout).lines, "1 shared problems", f"--eval-set {heldout}")


def test_text_and_chat_messages_are_taken_as_the_trainer_takes_them(tmp_path):
    """By preflight, by the launcher's check of the command, and by the evaluations before and after."""
    text = write(tmp_path / "text.jsonl", [{"input": "1 + 1", "label": "2", "id": "a"}])
    chat = write(tmp_path / "chat.jsonl", [problem("1 + 1", "2")])
    for path, templated, fits in ((text, True, True), (chat, True, True), (text, False, True), (chat, False, False)):
        args = options(f"--prompt_data {path}{' --apply_chat_template' * templated}")
        found = data.read_prompts(args).lines[0]
        assert (found.verdict == GO) == fits, (path.name, templated)
        if fits:
            inputs.check_prompts(path, "input", "label", templated)
            assert read_problems(path)
        else:
            refused([found], "wanted text; --apply_chat_template makes text", "--input_key")
            with pytest.raises(ValueError, match=r"wanted text; --apply_chat_template"):
                inputs.check_prompts(path, "input", "label", templated)
    assert data.read_prompts(options(f"--prompt_data {text}"), str(chat)).lines[0].verdict == GO  # evaluated outside


BROKEN_MANIFESTS = {
    "torn": '{"files": {"train.jso',
    "a list": "[]",
    "empty": "",
    "without files": "{}",
    "files are a list": '{"files": ["train.jsonl"]}',
    "entry without a hash": '{"files": {"train.jsonl": {"rows": 64}}}',
    "sets without hashes": '{"files": {"train.jsonl": {"sha256": "0"}}, "decontamination": {"eval_sets": ["x"]}}',
    "not text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("kind", BROKEN_MANIFESTS)
@pytest.mark.parametrize("name", [decontamination.MANIFEST, "train.jsonl.manifest.json"])
def test_a_broken_manifest_is_one_line(files, tmp_path, kind, name):
    content = BROKEN_MANIFESTS[kind]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(read(*files).lines, str(tmp_path / name), "data/prepare_sft_data.py --eval-set")


def test_decontamination(files, tmp_path):
    train, heldout = files
    refused(read(*files).lines, "no manifest beside train.jsonl", f"--eval-set {heldout}", WARN)
    manifest = {
        "files": {"train.jsonl": {"rows": 64, "sha256": file_sha256(train)}},
        "decontamination": {"eval_sets": [input_identity(heldout)]},
    }
    place = tmp_path / decontamination.MANIFEST
    place.write_text(json.dumps(manifest))
    assert verdicts(read(*files).lines) == {GO}
    other = write(tmp_path / "other.jsonl", [problem("9 + 9 = ?", "18")])
    refused(read(train, f"{heldout},{other}").lines, "not decontaminated against other.jsonl", "--eval-set", WARN)
    place.write_text(json.dumps(manifest | {"files": {}}))
    refused(read(*files).lines, "no manifest beside train.jsonl", "--eval-set", WARN)  # the manifest of other files
    place.write_text(json.dumps(manifest | {"files": {"train.jsonl": {"sha256": "0"}}}))
    refused(read(*files).lines, "is not the file that sft_manifest.json describes", "make the file again")


def test_sets_that_only_the_before_after_verdict_reads_are_looked_at(run, files, tmp_path):
    train, _ = files
    posthoc = write(tmp_path / "posthoc.jsonl", [problem("7 + 1 = ?", "8"), problem("70 + 9 = ?", "79")])
    directory, words = run
    given = ["--run-dir", str(directory), "--also-evaluated", str(posthoc), "--", *words]
    assert cli.main(given) == 1
    found = {line["name"]: line for line in json.loads((directory / "preflight.json").read_text())["checks"]}
    assert found["data"]["measured"] == "64 training prompts, 8 for evaluation in the loop, 2 outside it"
    assert found["overlap"]["verdict"] == NO_GO and "posthoc.jsonl" in found["overlap"]["measured"]
    assert page(run)["go"]
    two = data.read_prompts(options(f"--apply_chat_template --prompt_data {train}"), f"{posthoc},{tmp_path}/none.jsonl")
    refused(two.lines, "none.jsonl: found no file", ".venv/bin/python -m rft.data check")
    assert two.eval_count == 0


def test_a_part_of_a_clean_set_is_clean_where_the_whole_lies_beside_it(files, tmp_path):
    train, whole = files
    manifest = {
        "files": {"train.jsonl": {"rows": 64, "sha256": file_sha256(train)}},
        "decontamination": {"eval_sets": [input_identity(whole)]},
    }
    (tmp_path / decontamination.MANIFEST).write_text(json.dumps(manifest))
    rows = [json.loads(line) for line in whole.read_text().splitlines()]
    part = write(tmp_path / "part.jsonl", rows[2:5])
    assert verdicts(read(train, part).lines) == {GO}
    write(part, [*rows[2:5], problem("90 + 9 = ?", "99")])
    refused(read(train, part).lines, "not decontaminated against part.jsonl", f"--eval-set {part}", WARN)
    write(part, rows[2:5])
    write(whole, [*rows, problem("90 + 9 = ?", "99")])  # no longer the set that the manifest names
    refused(read(train, part).lines, "not decontaminated against part.jsonl", f"--eval-set {part}", WARN)


def test_a_curriculum_is_as_clean_as_its_parts(files, tmp_path):
    train, heldout = files
    curriculum = write(tmp_path / "easy.jsonl", [problem("1 + 1 = ?", "2")])
    document = {"files": {"easy.jsonl": {"sha256": file_sha256(curriculum)}}, "parts": [input_identity(train)]}
    (tmp_path / "easy.jsonl.manifest.json").write_text(json.dumps(document))
    refused(read(curriculum, heldout).lines, "not decontaminated against heldout.jsonl", "--eval-set", WARN)
    source = {
        "files": {"train.jsonl": {"sha256": file_sha256(train)}},
        "decontamination": {"eval_sets": [input_identity(heldout)]},
    }
    (tmp_path / decontamination.MANIFEST).write_text(json.dumps(source))
    assert verdicts(read(curriculum, heldout).lines) == {GO}


# --- the chat template ---

DATED = """{{- "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\n" -}}
{{- "Knowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: medium\\n\\n" -}}
{{- "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>" -}}
{%- for message in messages -%}
    {%- if message.role == "system" -%}
        {{- "<|start|>developer<|message|># Instructions\\n\\n" + message.content + "BLANK<|end|>" -}}
    {%- elif message.role == "user" -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" -}}
    {%- else -%}
        {{- raise_exception("no role " + message.role) -}}
    {%- endif -%}
{%- endfor -%}
{{- "<|start|>assistant" -}}
"""
USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
def dated(tmp_path, checkpoint):
    """A folder with a template of the published model's form, and a tokenizer."""

    def make(text: str) -> Path:
        (tmp_path / "chat_template.jinja").write_text(text)
        return tmp_path

    return make, harmony.load_tokenizer(checkpoint)


def test_template_equals_harmony(checkpoint, dated):
    make, tokenizer = dated
    assert verdicts(harmony.check_harmony(checkpoint, tokenizer, [SYSTEM, USER])) == {GO}
    plain = make(DATED.replace("BLANK", ""))
    assert verdicts(harmony.check_harmony(plain, tokenizer, [USER])) == {GO}
    assert verdicts(harmony.check_harmony(plain, tokenizer, [SYSTEM, USER])) == {GO}


def test_render_equals_transformers(checkpoint):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for chat in ([USER], [SYSTEM, USER], [USER, {"role": "assistant", "content": "4"}, USER]):
        wanted = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert harmony.render(checkpoint, chat) == wanted
        length = harmony.longest_prompt(checkpoint, harmony.load_tokenizer(checkpoint), [chat, [USER]], True)
        assert length == len(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    text = harmony.longest_prompt(checkpoint, harmony.load_tokenizer(checkpoint), ["2 + 2", "2"], False)
    assert text == len(tokenizer("2 + 2", add_special_tokens=False)["input_ids"])


def test_templates_that_differ(dated, monkeypatch):
    make, tokenizer = dated
    repair = "chat_template.jinja that came with the checkpoint"
    spaces = make(DATED.replace("BLANK", "\\n\\n"))
    refused(harmony.check_harmony(spaces, tokenizer, [SYSTEM, USER]), "differs from character", repair, WARN)
    wrong = make(DATED.replace("<|start|>user", "<|start|>human"))
    refused(harmony.check_harmony(wrong, tokenizer, [USER]), "differs from character 262 on: 'human<|mess", repair)
    broken = make("{% for %}")
    refused(harmony.check_harmony(broken, tokenizer, [USER]), "does not render", repair)
    refused(harmony.check_harmony(make(DATED), tokenizer, [{"role": "poet", "content": "x"}]), "no role poet", repair)
    monkeypatch.setattr(harmony, "START", tokenizer.token_to_id("<|start|>"))  # as if its ids were gpt-oss's
    same = make(DATED.replace("BLANK", ""))
    refused(harmony.check_harmony(same, tokenizer, [USER]), "differs from token id 0 on", repair)


def test_what_cannot_be_compared_is_a_warning(checkpoint, dated, tmp_path, monkeypatch):
    _, tokenizer = dated
    refused(harmony.check_harmony(checkpoint, tokenizer, None), "plain text", "--apply_chat_template", WARN)
    refused(harmony.check_harmony(tmp_path, tokenizer, [USER]), "has no chat_template.jinja", "came with", NO_GO)
    here = harmony.find_spec
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
    for missing, measured in (("bpe_openai", "o200k vocabulary"), ("openai_harmony", "no openai-harmony")):
        monkeypatch.setattr(harmony, "find_spec", lambda name, gone=missing: None if name == gone else here(name))
        refused(harmony.check_harmony(checkpoint, tokenizer, [USER]), measured, "uv pip install", WARN)


def test_a_template_inside_the_tokenizer_config_is_found(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    assert harmony.render(tmp_path, [USER]) == USER["content"]
