"""docs/own_task.md: its commands do what it says when they are pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("chapter", "said"),
    [
        ("## 7. Programs", "runs/own/programs.jsonl: 2 problems, their solutions pass at isolation level "),
        ("## 8. Questions", "asked: 100.0% of 2 questions have an answer that the corpus holds"),
    ],
)
def test_the_page_can_be_followed(tmp_path, chapter, said):
    page = (ROOT / "docs" / "own_task.md").read_text().partition(chapter)[2]
    commands = re.search(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    commands = re.sub(r"^\.venv/bin/python ", f"{sys.executable} ", commands, flags=re.MULTILINE)
    commands = commands.replace(" data/prepare", f" {ROOT}/data/prepare")
    run = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-euc", commands], check=False, **run)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
