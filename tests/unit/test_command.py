"""One reading of a training command: every reader agrees, abbreviations are refused, old runs can still be read."""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from preflight_options import TINY

from rft import options
from rft.options import command, recorded
from rft.record import disk
from rft.record.flags import flag
from rft.runs.diagnose import written_places
from rft.runs.monitor.progress import total_steps
from rft.runs.monitor.state import run_options
from rft.runs.preflight import batches

ROOT = Path(__file__).resolve().parents[2]
START = ["python", "-m", command.MODULE]


def trainers_parser() -> argparse.ArgumentParser:
    """The trainer's parser as the patched trainer makes it: the class of the standard library, then `options.add`."""
    parser = argparse.ArgumentParser()
    for statement in command.statements(command.installed_source()):
        exec(statement, {"parser": parser, "datetime": command.datetime})
    options.add(parser)
    return parser


def as_launcher(words: list[str], **environment: str) -> subprocess.CompletedProcess:
    """What launch/pipeline.sh calls."""
    call = [sys.executable, "-m", "rft.options.command", *words]
    return subprocess.run(call, cwd=ROOT, env=os.environ | environment, capture_output=True, check=False)


def values(done: subprocess.CompletedProcess) -> dict[str, str]:
    assert done.returncode == 0, done.stderr.decode()
    fields = done.stdout.decode().split("\0")[:-1]
    return dict(zip(fields[::2], fields[1::2], strict=True))


ABBREVIATED = [
    (["--generate_max", "8192"], "--generate_max 8192", "--generate_max_len"),
    (["--generate_max=8192"], "--generate_max=8192", "--generate_max_len"),
    (["--colocate_all"], "--colocate_all", "--colocate_all_models"),
    (["--num_epiisodes", "3"], "--num_epiisodes 3", "--num_episodes"),
    (["--qqqqqqqq"], "--qqqqqqqq", None),
]


@pytest.mark.parametrize(("words", "found", "meant"), ABBREVIATED)
def test_an_option_that_is_not_written_out_is_refused_by_trainer_preflight_and_launcher(words, found, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        trainers_parser().parse_args([*TINY.split(), *words])
    trainer = capsys.readouterr().err
    with pytest.raises(ValueError, match="no such option") as refused:
        command.parse([*START, *TINY.split(), *words])
    launcher = as_launcher([*START, *TINY.split(), *words])
    assert (ended.value.code, launcher.returncode) == (2, 2)
    assert trainer == launcher.stderr.decode() == f"error: {refused.value}\n" and launcher.stdout == b""
    lines = trainer.splitlines()
    assert lines[0] == "error: command: no such option" and lines[1] == f"  found:  {found}"
    assert lines[2].startswith("  wanted: ") and lines[3].startswith("  repair: ")
    assert f"did you mean {meant}?" in lines[3] if meant else "did you mean" not in lines[3]


def test_a_word_that_belongs_to_no_option_is_named():
    with pytest.raises(ValueError, match=r"found:  stray\n  wanted: .*quotes"):
        command.parse([*START, "--seed", "3", "stray"])


# Words of a command, and what each of its readers must find: the last of an option, values after = or after a blank.
AGREED = [
    (["--seed=7"], {"seed": 7}),
    (["--seed", "7", "--seed=9"], {"seed": 9}),
    (["--seed=9", "--seed", "7"], {"seed": 7}),
    (["--eval_steps", "-1"], {"eval_steps": -1}),
    (["--entropy_loss_coef", "-0.5"], {"entropy_loss_coef": -0.5}),
    (["--entropy_loss_coef=-1e-3"], {"entropy_loss_coef": -1e-3}),
    (["--target_modules", "q_proj", "k_proj", "--seed", "1"], {"target_modules": ["q_proj", "k_proj"], "seed": 1}),
    (["--target_modules", "q_proj", "--target_modules", "v_proj", "o_proj"], {"target_modules": ["v_proj", "o_proj"]}),
    (["--adam_betas", "0.9", "0.99"], {"adam_betas": [0.9, 0.99]}),
    (["--enforce_eager", "--seed", "2"], {"enforce_eager": True, "seed": 2}),
    (["--save_path=a=b"], {"save_path": "a=b"}),
    (["--save_path", "a b"], {"save_path": "a b"}),
    (["--save_path", "--a b"], {"save_path": "--a b"}),
    (["--ckpt_path="], {"ckpt_path": ""}),
]


def shown(value) -> str:
    words = value if isinstance(value, list) else [value]
    return " ".join(str(word) for word in words)


def same(text: str, value) -> bool:
    """Whether a text shows a value: numbers as numbers, a flag that is on as `on` or 1."""
    if value is True:
        return text in ("on", "1")
    return recorded.comparable(text) == recorded.comparable(shown(value))


@pytest.mark.parametrize(("words", "wanted"), AGREED)
def test_all_readers_of_a_command_agree(words, wanted):
    line = [*START, *words]
    trainer, launcher, report = trainers_parser().parse_args(words), values(as_launcher(line)), recorded.options(line)
    preflight, of_a_run = command.parse(line), command.recorded(line)
    for name, value in wanted.items():
        assert [getattr(args, name) for args in (trainer, preflight, of_a_run)] == [value] * 3
        assert same(launcher[name], value) and same(report[name], value)
    assert report.keys() == wanted.keys()


SETTLED = ("actor", "critic_pretrain", "packing_samples", "attn_implementation", "remote_rm_url")  # by `settle`


def test_what_is_not_given_has_the_trainers_default_for_all_who_need_it():
    trainer = vars(trainers_parser().parse_args([]))
    for args in (command.parse(START), command.recorded(START), command.recorded([])):
        assert {name: getattr(args, name) for name in trainer if name not in SETTLED} == {
            name: value for name, value in trainer.items() if name not in SETTLED
        }
    launcher = values(as_launcher(START))
    assert (launcher["generate_max_len"], launcher["lora_serving"]) == ("1024", "exact")
    assert (launcher["colocate_all_models"], launcher["pretrain"], launcher["adam_betas"]) == ("", "", "0.9 0.95")
    assert recorded.options(START) == {}


def test_the_launcher_counts_the_devices_that_preflight_counts():
    words = [*START, "--actor_num_gpus_per_node", "4", "--vllm_num_engines", "2", "--vllm_tensor_parallel_size=2"]
    words += ["--lora_rank", "8", "--init_kl_coef", "0.1", "--advantage_estimator", "rloo", "--remote_rm_url", "r.py"]
    for more, gpus in (
        ([], "8"),
        (["--colocate_all_models"], "4"),
        (["--separate_reference_model", "--ref_num_gpus_per_node", "3"], "11"),
    ):
        line = [*words, "--n_samples_per_prompt", "2", *more]
        assert values(as_launcher(line))["gpus"] == gpus == str(batches.gpus_wanted(command.parse(line)))


def test_what_the_trainer_refuses_is_said_to_the_launcher(tmp_path):
    done = as_launcher([*START, "--async_train"])
    assert done.returncode == 2 and b"found:  --async_train without --enable_vllm_is_correction" in done.stderr
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')
    done = as_launcher([*START, "--pretrain", str(tmp_path), "--packing_samples"])
    assert done.returncode == 2 and b"gpt-oss cannot be trained like this" in done.stderr


OLD = [*START, "--seed", "3", "--gone", "a", "-2", "--off", "--also_gone=x=y", "--ckpt_path=/c", "--stop_rules", "odd"]


def test_options_that_are_no_longer_known_are_shown_and_do_not_hide_the_others():
    with pytest.raises(ValueError, match="--gone"):
        command.parse(OLD)
    assert recorded.options(OLD) == {
        "seed": "3", "gone": "a -2", "off": "on", "also_gone": "x=y", "ckpt_path": "/c", "stop_rules": "odd"
    }  # fmt: skip
    assert command.recorded([*OLD, "--kl_estimator", "k0"]).kl_estimator == "k0"


def test_an_option_that_took_another_number_of_words_is_shown():
    line = [*START, "--seed", "1", "2", "--enforce_eager", "true", "--adam_betas", "0.9", "--save_path"]
    wanted = {"seed": "1 2", "enforce_eager": "true", "adam_betas": "0.9", "save_path": "on"}
    assert recorded.options(line) == wanted


@pytest.mark.parametrize("form", ["--ckpt_path=%s", "--ckpt_path %s"])
def test_free_space_is_judged_where_checkpoints_are_written(tmp_path, form):
    folder = tmp_path / "far"
    folder.mkdir()
    manifest = {"command": [*START, *(form % folder).split(" ")]}
    assert paths(written_places(tmp_path, manifest)) == paths(disk.places(folder, [tmp_path, tmp_path]))
    assert paths(written_places(tmp_path, manifest)) != paths(disk.places(tmp_path, [tmp_path, tmp_path]))
    assert paths(written_places(tmp_path, {})) == paths(disk.places(tmp_path, [tmp_path, tmp_path]))


def paths(found: list[dict]) -> list[str]:
    """Without the free bytes, which other programs change meanwhile."""
    return [place["path"] for place in found]


def test_the_monitor_counts_the_steps_that_are_trained(tmp_path):
    (tmp_path / "p.jsonl").write_text("{}\n" * 10)
    line = [*START, f"--prompt_data={tmp_path}/p.jsonl", "--rollout_batch_size=3", "--gone", "1"]
    assert total_steps(command.recorded(line)) == 3


# --- the copy of OpenRLHF's options, for a machine without it ---


FIRST_PIN = pytest.mark.skipif(version("openrlhf") != "0.9.3", reason="the copy has the options of 0.9.3")


@FIRST_PIN
@pytest.mark.parametrize(
    ("module", "file", "least"), [(command.MODULE, command.COPY, 100), (command.SFT_MODULE, command.SFT_COPY, 60)]
)
def test_the_copy_of_the_trainers_options_is_true(module, file, least):
    """After a change that is meant: RFT_WRITE_GOLDEN=1 python -m pytest tests/unit/test_command.py."""
    found = command.statements(command.installed_source(module))
    assert len(found) > least
    copy = "\n".join(map(without_help, found)) + "\n"
    if flag("RFT_WRITE_GOLDEN"):
        file.write_text(copy)
    assert file.read_text() == copy


def without_help(statement: str) -> str:
    call = ast.parse(statement, mode="eval").body
    call.keywords = [word for word in call.keywords if word.arg != "help"]
    return ast.unparse(call)


PLAIN = ["python", "-m", "rft.runs.ranks", "2", "openrlhf.cli.train_sft", "--pretrain", "m", "--dataset", "d"]
SUPERVISED = [*PLAIN, "--apply_chat_template"]


TOKENS = [
    "--train_batch_size",
    "20",
    "--micro_train_tokens",
]  # of which micro-batches of 8 rows would be no whole number


def test_a_supervised_budget_counts_instead_of_a_number_of_rows():
    args = command.parse([*SUPERVISED, *TOKENS, "4096", "--micro_train_batch_size", "8"])
    assert args.use_dynamic_batch and args.micro_train_batch_size == 1
    off = command.parse([*SUPERVISED, *TOKENS, "4096", "--micro_train_tokens", "0", "--train_batch_size", "32"])
    assert not off.use_dynamic_batch and off.micro_train_batch_size == 8
    assert command.parse([*SUPERVISED, *TOKENS, "4096", "--adam_offload", "--zero_stage", "3"]).use_dynamic_batch


def test_a_supervised_command_is_read_with_its_own_options():
    args = command.parse([*SUPERVISED, "--lora_rank", "8", "--train_batch_size", "32"])
    assert (args.actor_num_gpus_per_node, args.attn_implementation, args.output_key) == (2, "eager", None)
    assert command.given([*SUPERVISED, "--max_len=7"])["max_len"] == ["7"]
    with pytest.raises(ValueError, match=r"(?s)--kl_target.*train_sft --help"):
        command.parse([*SUPERVISED, "--kl_target", "1"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--train_batch_size", "20"], "no whole number of micro-batches.*20 --micro_train_batch_size 8, 2 ranks"),
        (["--dataset", ""], "--dataset: found none"),
        (["--actor", "resident"], "--actor resident cannot train this"),
        (["--actor", "resident", "--lora_rank", "8", "--target_modules", "lm_head"], "an adapter of the attention"),
        (["--init_adapter", "/nowhere", "--lora_rank", "8"], "--init_adapter: no such folder"),
        ([*TOKENS, "2047"], "found:  --micro_train_tokens 2047\n  wanted: 2048 or more .--max_len 2048.*tokens 2048"),
        ([*TOKENS, "-1"], "found:  --micro_train_tokens -1\n"),
        ([*TOKENS, "4096", "--train_batch_size", "9"], "--train_batch_size 9, 2 ranks.*repair: --train_batch_size 8"),
        ([*TOKENS, "4096", "--aux_loss_coef", "0.1"], "the experts' balance.*--aux_loss_coef 0.1.*--aux_loss_coef 0"),
        ([*TOKENS, "4096", "--adam_offload"], "loses all gradients.*--zero_stage 2 --adam_offload.*--zero_stage 3"),
    ],
)
def test_what_a_supervised_training_cannot_be_is_refused_before_it_starts(options, said):
    with pytest.raises(ValueError, match=re.compile(said, re.DOTALL)):
        command.parse([*SUPERVISED, *options])


@pytest.mark.parametrize(
    ("words", "found", "repair"),
    [
        (PLAIN, "no --apply_chat_template", "add --apply_chat_template"),
        ([*SUPERVISED, "--pretrain_mode"], "--pretrain_mode", "leave --pretrain_mode out"),
    ],
)
def test_a_supervised_training_makes_its_masks_of_the_chat_template(words, found, repair):
    with pytest.raises(ValueError, match=f"found:  {found}\n.*\n  repair: {repair}$"):
        command.parse([*words, "--train_batch_size", "32"])


READ = """
import importlib.util, json, sys
from rft.options import command, recorded
assert importlib.util.find_spec("openrlhf") is None
line = json.loads(sys.argv[1])
print(json.dumps([vars(command.parse(line)), recorded.options(line)]))
"""


@FIRST_PIN
def test_a_machine_without_openrlhf_reads_the_same():
    line = [*START, "--seed=7", "--target_modules", "q_proj", "v_proj", "--lora_rank", "8", "--wandb_run_name", "x"]
    here = [vars(command.parse(line)), recorded.options(line)]
    call = [sys.executable, "-S", "-c", READ, json.dumps(line)]  # -S: no installed package
    there = subprocess.run(call, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert json.loads(there.stdout) == json.loads(json.dumps(here))


@FIRST_PIN
@pytest.mark.parametrize("cut", [None, "", "if __name__ == '__main__':\n    parser.add_argument('--seed', ty"])
def test_half_an_installation_is_read_from_the_copy(tmp_path, cut):
    package = tmp_path / "openrlhf"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").touch()
    if cut is not None:
        (package / "cli/train_ppo_ray.py").write_text(cut)
    found = values(as_launcher([*START, *TINY.split()], PYTHONPATH=str(tmp_path)))
    assert found == values(as_launcher([*START, *TINY.split()]))


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_of_a_launcher_names_the_page(word):
    done = as_launcher([*START, word])
    assert done.returncode == 2 and b"docs/running.md" in done.stderr


@pytest.mark.parametrize("options", [["--lora_rank", "abc"], ["--load_checkpoint=1"], ["--rollout_batch_size", "0"]])
def test_a_command_that_cannot_be_read_has_no_length(options):
    assert total_steps(run_options({"command": [*START, *options]})) is None
    assert total_steps(run_options({"command": None})) is None


def test_readers_of_runs_find_what_a_supervised_run_has_and_grpo_s_defaults_for_the_rest(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n" * 100)
    line = [*SUPERVISED, "--dataset", str(rows), "--train_batch_size", "16", "--max_epochs", "2", "--gone", "1"]
    found = command.recorded(line)
    assert (command.gpus_wanted(found), found.eval_n_samples_per_prompt, found.prompt_data) == (2, 4, None)
    assert total_steps(found) == 12
    rows.unlink()
    assert total_steps(found) is None
