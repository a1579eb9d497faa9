"""A checkpoint whose weights are not all there is refused before anything loads it: each way of being incomplete."""

import json
import time

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from rft.checkpoint_check import require_gpt_oss
from rft.shards import INDEX, SINGLE, expected_shapes, read_tensors

SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
CUT = "not a complete safetensors file"


@pytest.fixture
def sharded(checkpoint, tmp_path):
    """The tiny checkpoint in three files and an index, as the hub has gpt-oss, to be broken."""
    tensors = load_file(checkpoint / SINGLE)
    places = {name: SHARDS[i * 3 // len(tensors)] for i, name in enumerate(sorted(tensors))}
    for shard in SHARDS:
        part = {name: tensors[name] for name in tensors if places[name] == shard}
        save_file(part, tmp_path / shard, metadata={"format": "pt"})
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    for file in checkpoint.iterdir():
        if file.name != SINGLE:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_config(folder, **more):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def change_tensor(folder, shard, name, value):
    """Another value for a tensor, or none at all."""
    tensors = load_file(folder / shard) | {name: value}
    save_file({n: t for n, t in tensors.items() if t is not None}, folder / shard, metadata={"format": "pt"})


def zero_data(file):
    """All bytes behind the head zero, of the same size: a file that was allocated and never filled."""
    size = file.stat().st_size
    with file.open("r+b") as stream:
        head = 8 + int.from_bytes(stream.read(8), "little")
        stream.truncate(head)
        stream.truncate(size)


def zero_half(file):
    """The second half zero: a download into an allocated file that ended early."""
    data = file.read_bytes()
    keep = len(data) // 2
    file.write_bytes(data[:keep] + bytes(len(data) - keep))


def index_of(folder, text):
    (folder / INDEX).write_text(text)


FIRST, SECOND, LAST = SHARDS
Q = "model.layers.1.self_attn.q_proj.weight"  # of the last file
BROKEN = {
    "shard missing": (lambda f: (f / SECOND).unlink(), f"found no {SECOND}; wanted the 3 files"),
    "index missing": (lambda f: (f / INDEX).unlink(), f"found neither {SINGLE} nor {INDEX}"),
    "index torn": (lambda f: index_of(f, '{"weight_map": {"a'), "found no weight_map"),
    "index without map": (lambda f: index_of(f, "[]"), "found no weight_map"),
    "index with an empty map": (lambda f: index_of(f, '{"weight_map": {}}'), "found no weight_map"),
    "cut": (lambda f: (f / LAST).write_bytes((f / LAST).read_bytes()[:-1]), CUT),
    "longer": (lambda f: (f / LAST).write_bytes((f / LAST).read_bytes() + b"x"), CUT),
    "cut in its head": (lambda f: (f / LAST).write_bytes((f / LAST).read_bytes()[:40]), CUT),
    "empty": (lambda f: (f / LAST).write_bytes(b""), "a head of 0 bytes in 0"),
    "a page of HTML": (lambda f: (f / LAST).write_bytes(b"<!doctype html>" * 99), CUT),
    "a pointer": (lambda f: (f / LAST).write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "all zero": (lambda f: (f / LAST).write_bytes(bytes((f / LAST).stat().st_size)), CUT),
    "data all zero": (lambda f: zero_data(f / LAST), "weight matrices all zero"),
    "half zero": (lambda f: zero_half(f / LAST), "weight matrices all zero"),
    "tensor missing": (lambda f: change_tensor(f, LAST, Q, None), f"found no tensor {Q}, which {INDEX} names there"),
    "tensor of another shape": (
        lambda f: change_tensor(f, LAST, Q, torch.ones(64, 128)),
        r"q_proj.weight of shape \(64, 128\); wanted \(128, 128\)",
    ),
    "config of another model": (lambda f: change_config(f, num_hidden_layers=3), "found no tensor model.layers.2"),
    "experts not packed": (lambda f: change_config(f, quantization_config=None), "found no tensor .*gate_up_proj;"),
}


def test_a_complete_checkpoint_passes_in_one_file_and_in_several(checkpoint, sharded):
    begin = time.monotonic()
    require_gpt_oss(checkpoint)
    require_gpt_oss(sharded)
    print(f"{time.monotonic() - begin:.4f} s for both")
    assert {n: t.shape for n, t in read_tensors(checkpoint).items()} == {
        n: t.shape for n, t in read_tensors(sharded).items()
    }


@pytest.mark.parametrize("kind", BROKEN)
def test_an_incomplete_checkpoint_is_refused(kind, sharded):
    breaks, message = BROKEN[kind]
    breaks(sharded)
    with pytest.raises(ValueError, match=message) as refusal:
        require_gpt_oss(sharded)
    assert str(sharded) in str(refusal.value) and "\n" not in str(refusal.value)


def test_heads_are_refused_where_the_library_refuses_them(sharded):
    """A head is one byte of nonsense away from another file: what safetensors cannot open must not pass here."""
    file = sharded / LAST
    data, refused = file.read_bytes(), 0
    for place in range(0, 8 + int.from_bytes(data[:8], "little"), 7):
        file.write_bytes(data[:place] + b"9" + data[place + 1 :])
        try:
            with safe_open(file, "pt") as opened:
                opened.keys()
        except SafetensorError:
            refused += 1
            with pytest.raises(ValueError, match=LAST):
                read_tensors(sharded)
    assert refused > 20


def test_expected_shapes_are_those_of_transformers(checkpoint):
    from rft.tiny.checkpoint import build_model

    config = json.loads((checkpoint / "config.json").read_text())
    stored = {name: tensor.shape for name, tensor in read_tensors(checkpoint).items()}
    assert {n: s for n, s in stored.items() if not n.endswith("bias")} == expected_shapes(config)
    whole = {name: tuple(tensor.shape) for name, tensor in build_model(seed=0).state_dict().items()}
    dense = expected_shapes(config | {"quantization_config": None})
    assert {n: s for n, s in whole.items() if not n.endswith("bias")} == dense
    assert expected_shapes({"model_type": "gpt_oss"}) == {}
