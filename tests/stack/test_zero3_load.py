"""Of several ZeRO-3 ranks one loads the weights of an MXFP4 checkpoint; all train the same model."""

import json
from pathlib import Path

import pytest
import torch
from listeners import is_beyond
from ranks import run_ranks
from safetensors.torch import save_file
from transformers import GptOssForCausalLM

from rft.hooks.loopback import THIS_MACHINE
from rft.tiny.checkpoint import EXPERT_WEIGHTS, QUANTIZATION, tiny_config

pytestmark = pytest.mark.stack


def save_large(directory: Path) -> None:
    """A gpt-oss of 38 M parameters and random weights, in many layers: a single one is small against the whole."""
    config = tiny_config()
    config.update({"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 256, "num_local_experts": 16})
    config.layer_types = config.layer_types * 6
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in GptOssForCausalLM(config).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        if name.endswith(EXPERT_WEIGHTS):
            experts, inner, out = shape
            state[f"{name}_blocks"] = torch.randint(256, (experts, out, inner // 32, 16), dtype=torch.uint8)
            state[f"{name}_scales"] = torch.randint(118, 124, (experts, out, inner // 32), dtype=torch.uint8)
        else:
            state[name] = torch.randn(shape).bfloat16()
    directory.mkdir()
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config.to_dict() | {"quantization_config": QUANTIZATION}))


@pytest.fixture(scope="module")
def found(checkpoint, tmp_path_factory):
    """What each of two ranks has written: see zero3_load.py."""
    place = tmp_path_factory.mktemp("load")
    save_large(place / "large")
    run_ranks("zero3_load.py", 2, checkpoint, place / "large", place, environment=THIS_MACHINE)
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(2)]


def test_every_rank_trains_the_checkpoint_bit_for_bit(found):
    for rank in found:
        assert rank["different"] == []
        assert not rank["quantized"] and not rank["training"]
    assert found[0]["random_state"] == found[1]["random_state"]


def test_one_rank_holds_the_whole_model(found):
    """At its peak; the other holds its half and the parameter that is being cut (1.51 models without the patch)."""
    print("peak of host memory by rank over the model's weights:", [rank["peak"] / rank["weights"] for rank in found])
    assert found[0]["peak"] > found[0]["weights"]
    assert found[1]["peak"] < 0.75 * found[1]["weights"]


def test_ranks_of_one_machine_listen_on_the_loopback_only(found):
    listens = [place for rank in found for place in rank["listens"]]
    assert listens  # the store at least
    assert [place for place in listens if is_beyond(place)] == []
