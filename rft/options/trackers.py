"""What a run is called in W&B and TensorBoard: as its directory, so that it is found and a resume goes on in it."""

import os
from argparse import Namespace
from datetime import datetime
from pathlib import Path


def settle(args: Namespace) -> None:
    """Set `wandb_run_name`, which is TensorBoard's folder too, and `wandb_group` where they are not given.

    With a run directory (RFT_RUN_DIR) `<launcher>/<name of the directory>` and `<launcher>`: RFT_LAUNCHER, else the
    folder that the directory is in. Without one upstream's name, the time of day, and no group.
    """
    place = os.environ.get("RFT_RUN_DIR")
    if not place:
        args.wandb_run_name = args.wandb_run_name or f"ppo_{datetime.now():%m%dT%H:%M}"
        return
    run = Path(place).absolute()
    launcher = os.environ.get("RFT_LAUNCHER") or run.parent.name
    args.wandb_run_name = args.wandb_run_name or f"{launcher}/{run.name}"
    args.wandb_group = args.wandb_group or launcher
