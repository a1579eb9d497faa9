"""`--init_adapter`: a folder that fits is taken as it is, any other is refused with a repair, before Ray starts."""

import json
import re
import shlex
import shutil

import pytest

from rft.options.command import parse
from rft.options.init_adapter import sampled
from rft.record.adapters import chain_of, told
from rft.runs.preflight.lines import GO
from rft.runs.preflight.model import check_lora

PACKED = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}, "num_local_experts": 8}
LAYERS = {f"model.layers.{i}.self_attn.{part}": (8, 4) for i in (0, 1) for part in ("q_proj", "v_proj")}  # out, in
SHAPE = "--lora_rank 2 --lora_alpha 4 --target_modules q_proj v_proj"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["v_proj", "q_proj"]}


def write_tensors(file, shapes: dict[str, tuple[int, ...]], filling: bytes = b"\1") -> None:
    """A safetensors file of bf16, by hand: its format is a head of JSON and the bytes."""
    head, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end := end + size]}
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + filling * end)


def write_base(folder, filling: bytes = b"\1"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(PACKED))
    write_tensors(folder / "model.safetensors", {f"{name}.weight": shape for name, shape in LAYERS.items()}, filling)
    return folder


def write_adapter(folder, base, rank: int = 2, layers=LAYERS, **config):
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | {"base_model_name_or_path": str(base)} | config))
    shapes = {}
    for name, (out, width) in layers.items():
        shapes[f"base_model.model.{name}.lora_A.weight"] = (rank, width)
        shapes[f"base_model.model.{name}.lora_B.weight"] = (out, rank)
    write_tensors(folder / "adapter_model.safetensors", shapes)
    return folder


@pytest.fixture
def base(tmp_path):
    return write_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path, base):
    return write_adapter(tmp_path / "run" / "adapter", base)


def read(base, adapter, words: str = SHAPE):
    start = ["-m", "openrlhf.cli.train_ppo_ray", "--pretrain", str(base), "--remote_rm_url", "r.py"]
    return parse([*start, "--init_adapter", str(adapter), *shlex.split(words)])


def refused(base, adapter, words: str = SHAPE) -> dict[str, str]:
    """What, found, wanted and repair of the one message."""
    with pytest.raises(ValueError, match=r"^--init_adapter: .*\n  found:  .*\n  wanted: .*\n  repair: ") as error:
        read(base, adapter, words)
    what, *rest = str(error.value).splitlines()
    said = zip(("found", "wanted", "repair"), rest, strict=True)
    return {"what": what} | {key: line.split(None, 1)[1] for key, line in said}


def test_an_adapter_that_fits_is_taken(base, adapter, monkeypatch):
    monkeypatch.chdir(adapter.parent)
    assert read(base, "adapter").init_adapter == str(adapter)
    assert read(base, adapter, SHAPE.replace("q_proj v_proj", "v_proj q_proj"))


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("--lora_rank 4", "--lora_rank 4"),
        ("--lora_alpha 32", "--lora_alpha 32"),
        ("--target_modules q_proj", "--target_modules q_proj"),
        ("--lora_rank 4 --lora_alpha 8", "--lora_rank 4 --lora_alpha 8"),
    ],
)
def test_another_shape_is_refused_with_the_options_that_fit(base, adapter, wrong, found):
    said = refused(base, adapter, f"{SHAPE} {wrong}")
    assert said["found"] == found
    assert read(base, adapter, f"{SHAPE} {wrong} {said['repair']}")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("--async_train --enable_vllm_is_correction", "samples before the first sync"),
        ("--separate_reference_model --actor eager --init_kl_coef 0.1", "the reference is base plus this adapter"),
        ("--lora_rank 0 --actor eager --target_modules q_proj", "full training has no adapter"),
    ],
)
def test_options_that_know_no_adapter_at_the_start_are_refused(base, adapter, more, what):
    assert what in refused(base, adapter, f"{SHAPE} {more}")["what"]


def test_folders_that_hold_no_adapter_are_refused(base, adapter, tmp_path):
    assert refused(base, tmp_path / "none")["what"] == "--init_adapter: no such folder"
    said = refused(base, base)
    assert said["what"] == "--init_adapter: a merged model is no adapter" and f"--pretrain {base}" in said["repair"]
    assert refused(base, adapter.parent)["repair"] == f"--init_adapter {adapter}"
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    said = refused(base, adapter)
    assert "tensors are missing" in said["what"] and said["found"] == f"adapter_model.bin in {adapter}"


@pytest.mark.parametrize("wrong", [{"use_dora": True}, {"peft_type": "IA3"}, {"modules_to_save": ["lm_head"]}])
def test_adapters_that_are_no_plain_lora_are_refused(base, tmp_path, wrong):
    said = refused(base, write_adapter(tmp_path / "odd", base, **wrong))
    assert said["what"] == "--init_adapter: another kind of adapter" and said["wanted"] == "plain LoRA"


def test_tensors_that_are_cut_short_or_of_another_rank_are_refused(base, adapter, tmp_path):
    assert "not whole" in refused(base, write_adapter(tmp_path / "rank", base, rank=3))["what"]
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "cannot be read" in refused(base, adapter)["what"]
    (adapter / "adapter_config.json").write_text("{")
    assert "configuration cannot be read" in refused(base, adapter)["what"]


def test_the_base_is_the_adapters_own_wherever_it_lies(base, adapter, tmp_path):
    """The same weights at another place are taken; others are not, nor another shape, nor a base that is gone."""
    moved, other = tmp_path / "elsewhere" / "base", write_base(tmp_path / "other", b"\2")
    shutil.copytree(base, moved)
    assert sampled(moved) == sampled(base) != sampled(other)
    assert read(moved, adapter)
    said = refused(other, adapter)
    assert said["what"] == "--init_adapter: it was trained on another base" and said["wanted"] == str(base)
    wide = write_adapter(tmp_path / "wide", base, layers=dict.fromkeys(LAYERS, (16, 4)))
    assert re.search(r"q_proj\.weight of shape \(8, 4\)", refused(base, wide)["found"])
    shutil.rmtree(base)
    assert read(moved, adapter)  # of the same name
    assert refused(other, adapter)
    other.rename(tmp_path / "base")
    digest = {"inputs": {str(base): "0" * 64}}  # what its run has recorded decides then
    (adapter.parent / "run.json").write_text(json.dumps(digest))
    assert refused(moved, adapter)


def test_a_chain_names_every_link(base, adapter, tmp_path):
    command = ["python", "-m", "openrlhf.cli.train_sft", "--pretrain", str(base)]
    (adapter.parent / "run.json").write_text(json.dumps({"command": command}))
    first = chain_of(adapter)
    assert [(link["trained_by"], link["run"]) for link in first] == [("openrlhf.cli.train_sft", str(adapter.parent))]
    second = write_adapter(tmp_path / "second" / "adapter", base)
    (second.parent / "run.json").write_text(json.dumps({"command": command, "chain": first}))
    chain = chain_of(second)
    assert [link["adapter"] for link in chain] == [str(adapter), str(second)]
    names = ["/".join(link.parent.parts[-2:]) for link in (adapter, second)]
    digests = [link["sha256"][:12] for link in chain]
    assert told(chain) == f"base → {names[0]} (sha256 {digests[0]}) → {names[1]} (sha256 {digests[1]})"
    assert told([]) == "" and chain_of(write_adapter(tmp_path / "alone", base))[0]["run"] is None


def test_preflight_shows_the_chain(base, adapter):
    lines = check_lora(read(base, adapter, f"{SHAPE} --init_kl_coef 0.01"))
    assert [line.name for line in lines] == ["LoRA", "init adapter"] and {line.verdict for line in lines} == {GO}
    assert lines[1].measured == f"{told(chain_of(adapter))}; the KL term refers to it"
