"""Checksums of an engine's weights: every byte and place counts, and what a kernel keeps instead of a parameter."""

import types

import pytest
import torch

from rft.hooks import weight_digest


class Config:
    """What triton_kernels keeps scales in."""

    def __init__(self, scale: torch.Tensor):
        self.weight_scale = types.SimpleNamespace(storage=types.SimpleNamespace(data=scale))


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w2_weight = types.SimpleNamespace(storage=types.SimpleNamespace(data=torch.arange(6, dtype=torch.uint8)))
        self.quant_method = types.SimpleNamespace(w2_precision_config=Config(torch.arange(5, dtype=torch.uint8)))
        self.calls = 3


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(Config, "__module__", "triton_kernels.matmul_ogs")
    made = torch.nn.Sequential(torch.nn.Linear(3, 2), Experts())
    made[0].register_buffer("lora_a", torch.zeros(2, 3))
    return made


def digest(model: torch.nn.Module) -> dict[str, int]:
    return weight_digest.of_worker(types.SimpleNamespace(model_runner=types.SimpleNamespace(get_model=lambda: model)))


def test_all_that_is_computed_with_is_looked_at_and_no_adapter(model):
    before = digest(model)
    assert set(before) == {
        "0.weight",
        "0.bias",
        "1.Experts.w2_weight",
        "1.SimpleNamespace.w2_precision_config.weight_scale",
    }
    model[0].lora_a.fill_(1)
    assert weight_digest.changed([before], [digest(model)]) == []
    model[1].w2_weight.storage.data[5] = 0
    model[1].quant_method.w2_precision_config.weight_scale.storage.data[0] = 9
    assert weight_digest.changed([before], [digest(model)]) == sorted(set(before) - {"0.weight", "0.bias"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_every_place_counts(dtype, monkeypatch):
    monkeypatch.setattr(weight_digest, "CHUNK", 4)
    values = torch.arange(1, 12).to(dtype)
    seen = {weight_digest.checksum(values)}
    for i in range(len(values)):
        other = values.clone()
        other[i] += 1
        seen |= {weight_digest.checksum(other), weight_digest.checksum(values.roll(i + 1))}
    assert len(seen) == 22 and weight_digest.checksum(values[:0]) == 0


def test_it_reads_what_lies_there_whatever_its_strides():
    values = torch.arange(24.0).view(2, 3, 4)
    whole = weight_digest.checksum(values)
    assert weight_digest.checksum(values.permute(2, 0, 1)) == whole
    assert weight_digest.checksum(values[:, :2]) != whole
