"""A run's directory is one W&B run, however often it is resumed."""

import uuid

from rft.hooks.run_files import run_dir
from rft.record.files import replace_text
from rft.record.names import WANDB_FILE


def wandb_run() -> dict[str, str]:
    """Arguments for `wandb.init`: the id that the run's directory keeps, made at its first start, and `resume`.

    Empty where no directory is known: W&B then makes an id of its own.
    """
    place = run_dir()
    if place is None:
        return {}
    file = place / WANDB_FILE
    if not file.is_file():
        replace_text(file, uuid.uuid4().hex[:8] + "\n")
    return {"id": file.read_text(encoding="utf-8").strip(), "resume": "allow"}
