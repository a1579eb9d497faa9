"""Probes of OpenRLHF's loggers: a resumed run goes on where it was logged before."""

import types


def test_a_resumed_run_is_the_same_run_in_wandb(tmp_path, monkeypatch):
    """Offline, where W&B asks nobody: the second start has the first one's id, name and group."""
    from openrlhf.utils.logging_utils import WandbLogger

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("RFT_RUN_DIR", str(tmp_path))
    args = types.SimpleNamespace(
        use_wandb="true", wandb_org=None, wandb_project="p", wandb_group="train_x", wandb_run_name="train_x/1"
    )
    seen = []
    for _ in range(2):
        logger = WandbLogger(args)
        seen.append((logger.handle.run.id, logger.handle.run.name, logger.handle.run.group))
        logger.close()
    assert seen[0] == seen[1]
    assert seen[0] == ((tmp_path / "wandb_id").read_text().strip(), "train_x/1", "train_x")
