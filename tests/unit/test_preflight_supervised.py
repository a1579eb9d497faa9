"""Preflight of a supervised training: its micro-batches, and the resident actor's memory."""

import json

import pytest
from preflight_options import CONFIG_20B, refused, verdicts

from rft.options import command
from rft.problems import problem_row
from rft.record.digest import file_sha256
from rft.record.environment import stack_name
from rft.runs.preflight import cli, supervised
from rft.runs.preflight.lines import GO, NO_GO, WARN
from rft.runs.preflight.resident import Sizes, peak_bytes
from rft.tiny.tokenizer import build_tokenizer

SHAPE = "--max_len 4096 --train_batch_size 64 --lora_rank 32 --target_modules q_proj k_proj v_proj o_proj"
SHAPE += " --apply_chat_template"


def options(text: str, ranks: int = 1):
    """As of launch/sft_20b.sh; the model is looked for nowhere, so its actor is named here."""
    start = ["python", "-m", "rft.runs.ranks", str(ranks), command.SFT_MODULE, "--pretrain", "M", "--dataset", "D"]
    return command.parse([*start, *SHAPE.split(), *text.split()])


@pytest.fixture
def line(monkeypatch):
    """A function from options and the free bytes of a GPU to the line of the actor's memory."""

    def of(text: str, free: float):
        monkeypatch.setattr(supervised, "read_gpus", lambda: [{"free": free, "total": free}])
        (found,) = supervised.check_memory(options(f"--actor resident {text}"), CONFIG_20B)
        return found

    return of


def test_memory_counts_the_budget(line):
    """16,384 tokens are as much as four rows of 4,096, whatever else is said of rows."""
    tokens = line("--micro_train_tokens 16384 --micro_train_batch_size 64", 85e9)
    rows = line("--micro_train_batch_size 4", 85e9)
    assert (
        "(micro-batches of 16,384 tokens)" in tokens.measured and "(micro-batches of 4 x 4096 tokens)" in rows.measured
    )
    assert tokens.measured.split("(")[0] == rows.measured.split("(")[0] and tokens.verdict == GO
    trained = supervised.model.trained_parameters(options("--micro_train_tokens 16384"), CONFIG_20B)
    need = peak_bytes(CONFIG_20B, Sizes(16384, 16384), trained)
    assert f"about {need / 1e9:.1f} GB" in tokens.measured and tokens.measured.endswith("first products: kept")
    assert line("--micro_train_tokens 16384", 45e9).measured.endswith("first products: recomputed")
    short = line("--micro_train_tokens 16384", 30e9)
    assert short.verdict == NO_GO and "a smaller --micro_train_tokens" in short.repair


def test_steps_say_how_many_micro_batches_there_are_at_the_most():
    """Of rows of up to 3,000 tokens 5 fit into 16,384 at the least: 13 for 64 of them, 7 on each of two ranks."""
    steps = supervised._steps(130, 3000, options("--actor resident --micro_train_tokens 16384", ranks=2))
    assert steps.verdict == GO and "epochs of 2 steps" in steps.measured
    assert steps.measured.endswith("micro-batches of 16,384 tokens: at most 7 a rank and step")
    eager = supervised._steps(130, 3000, options("--actor eager --micro_train_tokens 16384"))
    assert eager.verdict == WARN and "--actor resident" in eager.repair
    assert supervised._steps(130, 3000, options("--actor eager")).measured.endswith("64 conversations each")


TURN = {"role": "assistant", "thinking": "one more", "content": "\\boxed{2}"}


@pytest.fixture
def write(tmp_path):
    """A function from a file's name and numbers to the file, of rows to learn or of problems."""

    def of(name: str, numbers, supervised: bool = True):
        rows = [problem_row(f"{n} + 1 = ?", str(n + 1), f"{name}-{n}", "math") for n in numbers]
        rows = [row | {"output": [TURN]} for row in rows] if supervised else rows
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    return of


def test_rows_share_nothing_with_held_out_rows_and_the_format_check(write, tmp_path):
    rows, dev, asked = write("rows.jsonl", range(9)), write("dev.jsonl", range(9, 12)), tmp_path / "asked.jsonl"
    write(asked.name, range(20, 24), supervised=False)

    def apart(also=asked, held_out=dev):
        return list(supervised.check_apart(options(f"--dataset {rows} --eval_dataset {held_out}"), str(also)))

    refused(apart(), "no manifest beside rows.jsonl", f"prepare_sft_data.py --eval-set {asked}", WARN)
    manifest = {"files": {rows.name: {"sha256": file_sha256(rows)}}}
    manifest["decontamination"] = {"eval_sets": [{"name": asked.name, "sha256": file_sha256(asked)}]}
    (tmp_path / "rows.jsonl.manifest.json").write_text(json.dumps(manifest))
    assert verdicts(apart()) == {GO} and [line.name for line in apart()] == ["overlap", "decontamination"]
    refused(apart(held_out=rows), f"{rows} is trained on and evaluated on", "name another file")
    refused(apart(held_out=write("both.jsonl", (8, 9))), "1 shared problems", "--eval-set")
    refused(apart(write("seen.jsonl", (3, 30), supervised=False)), "1 shared problems", "seen.jsonl")
    refused(apart(held_out="hub/name"), "hub/name not compared", "JSONL", WARN)
    refused(apart(tmp_path / "none.jsonl"), "none.jsonl: found no file", "EVAL_DATASET")


@pytest.fixture
def judge(write, tmp_path, monkeypatch):
    """A function from options, and what stands in the file of 9 rows behind them, to the lines of the rows."""
    build_tokenizer().save_pretrained(tmp_path / "model")
    rows = write("rows.jsonl", range(9))

    def of(text: str = "", more: str = "") -> list:
        rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:9]) + more)
        start = f"--pretrain {tmp_path / 'model'} --dataset {rows} --output_key output"
        return list(supervised.check_rows(options(f"{start} --train_batch_size 1 --micro_train_batch_size 1 {text}")))

    return of


def test_rows_are_counted_as_the_trainer_counts_them(judge, write, tmp_path):
    def counted(*given) -> list[str]:
        return [line.measured.split(",")[0] for line in judge(*given)]

    assert counted() == ["9 conversations", "2 epochs of 9 steps"]
    assert counted("--max_samples 5") == ["5 conversations", "2 epochs of 5 steps"]
    more = write("more.jsonl", range(20, 23))
    both = f"--dataset {tmp_path}/rows.jsonl,{more}"
    assert counted(f"{both} --max_samples 11 --eval_dataset {more}") == [
        "11 conversations", "2 epochs of 11 steps", "3 conversations"
    ]  # fmt: skip
    refused(judge(f"{both} --dataset_probs 0.5,0.5"), "not counted", "leave --dataset_probs out", WARN)
    refused(judge("--dataset hub/name"), "hub/name is no JSONL file", "--dataset FILE.jsonl", WARN)
    lines_in_it = problem_row("1\u20282", "3", "u", "math") | {"output": [TURN]}
    assert counted("", json.dumps(lines_in_it, ensure_ascii=False) + "\n")[0] == "10 conversations"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("3\n", "rows.jsonl, line 10: found 3, wanted a JSON object"),
        ("\n{}\n", "rows.jsonl, line 10: found a blank line"),
        ("{}\n", "rows.jsonl: row 10: found no field 'input'"),
        ('{"a": \n', "rows.jsonl, line 10: not JSON"),
    ],
)
def test_a_bad_row_is_one_line_with_its_place(judge, more, said):
    refused(judge("", more), said, "make the file again")


def test_prompts_are_measured_with_date_and_effort(judge, tmp_path, monkeypatch):
    """Both change their length, with a template that writes the month, and a letter for each of the effort's."""
    longest, template = {}, tmp_path / "model/chat_template.jinja"
    shown = "+ strftime_now('%B') + 'x' * (reasoning_effort | length) +"
    template.write_text(template.read_text().replace("+ reasoning_effort +", shown))
    for date, effort in (("2025-08-05", "high"), ("2025-08-05", "low"), ("2025-05-05", "high"), ("2025-05-05", "low")):
        monkeypatch.setenv("CHAT_DATE", date)
        measured = judge(f"--reasoning_effort {effort}")[0].measured
        longest[date, effort] = int(measured.split("the longest ")[1].split()[0])
    most, *others = longest.values()
    assert others == [most - 1, most - 3, most - 4], longest
    monkeypatch.setenv("CHAT_DATE", "soon")
    refused(judge(), "found CHAT_DATE=soon", "")


def test_a_run_without_a_checkpoint_is_a_warning(judge, write):
    dev = write("dev.jsonl", range(9, 12))
    # Two epochs of 9 steps; the held-out loss comes behind the last one anyway.
    assert verdicts(judge(f"--eval_dataset {dev} --eval_steps 19 --save_steps 18")) == verdicts(judge()) == {GO}
    refused(judge("--save_steps 20"), "--save_steps 20: no checkpoint in 18 steps", "--save_steps 4", WARN)


def test_the_command_looks_at_intervals_and_at_what_is_also_evaluated(write, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("RFT_STACK", stack_name())
    rows, asked = write("rows.jsonl", range(9)), write("asked.jsonl", (3, 30), supervised=False)
    words = f"--pretrain {checkpoint} --dataset {rows} --output_key output --apply_chat_template --max_len 160"
    words += " --train_batch_size 1 --micro_train_batch_size 1 --lora_rank 8 --target_modules q_proj --save_steps 0"
    given = ["python", "-m", "rft.runs.ranks", "1", command.SFT_MODULE, *words.split()]
    status = cli.main(["--json", "--run-dir", str(tmp_path), "--also-evaluated", str(asked), "--", *given])
    checks = json.loads((tmp_path / "preflight.json").read_text())["checks"]
    said = [(line["name"], line["verdict"], line["measured"]) for line in checks]
    assert ("steps", NO_GO, "--save_steps 0: the trainer divides by it") in said
    found = {line["name"]: line for line in checks}
    assert found["rows"]["verdict"] == GO, found
    assert status == 1 and found["overlap"]["measured"].startswith(f"1 shared problems; {asked}, line 1"), found
