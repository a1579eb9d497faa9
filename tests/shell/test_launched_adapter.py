"""A launch from an adapter: what is measured before training is that adapter, and a misuse ends it in seconds."""

import json

import numpy as np
import pytest
from launching import ROOT, launch
from safetensors.numpy import save_file

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path):
    """An adapter of one layer, of the shape that `RECIPE=a26` trains at 20b."""
    config = {"peft_type": "LORA", "r": 32, "lora_alpha": 64, "target_modules": MODULES}
    folder = tmp_path / "sft" / "adapter"
    folder.mkdir(parents=True)
    base = {"base_model_name_or_path": str(tmp_path / "gpt-oss-20b")}
    (folder / "adapter_config.json").write_text(json.dumps(config | base))
    matrices = {"lora_A": np.ones((32, 8), np.float32), "lora_B": np.ones((8, 32), np.float32)}
    tensors = {f"{LAYER}.{name}.weight": values for name, values in matrices.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def dry_run(place, *options):
    model = str(place / "gpt-oss-20b")
    return launch(ROOT / "launch/train_grpo_20b.sh", place, *options, DRY_RUN="1", CLUSTER="1xh200", MODEL=model)


def test_the_evaluation_before_is_of_the_adapter(adapter, tmp_path):
    new, started = dry_run(tmp_path), dry_run(tmp_path, "--init_adapter", str(adapter))
    assert new.returncode == started.returncode == 0, started.stderr
    assert f"--model before={tmp_path}/gpt-oss-20b " in new.stdout and "init_adapter" not in new.stdout
    assert f"--model before={adapter} " in started.stdout
    assert f"--init_adapter {adapter}" in started.stdout


def test_another_rank_ends_the_launch_with_the_option_that_fits(adapter, tmp_path):
    done = dry_run(tmp_path, "--init_adapter", str(adapter), "--lora_rank", "16")
    assert done.returncode != 0 and done.stdout.count("train_ppo_ray") == 0
    assert done.stderr.count("error: ") == 1 and "  found:  --lora_rank 16\n" in done.stderr
    assert "  repair: --lora_rank 32\n" in done.stderr
