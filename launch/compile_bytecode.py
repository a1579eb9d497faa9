"""Compile the installed modules that a run imports, and skip the two thirds that nobody imports.

    .venv/bin/python launch/compile_bytecode.py .venv

A process without bytecode compiles what it imports, and a run starts a dozen processes. Python writes the bytecode of
anything skipped here at its first import, so a wrong guess costs milliseconds. Measured on the CPU stack: 36 s of CPU
time for 12,900 files (the imports of a run need 7,100 of them), 71 s for all 27,300 with `uv pip install
--compile-bytecode`; both spread over all cores.
"""

import os
import re
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from py_compile import PyCompileError, compile

SKIPPED_FOLDERS = {"tests", "test", "testing", "examples", "lexers"}
SKIPPED = re.compile(
    r"""
    (anthropic|coreweave_evaluations|cryptography|cv2|dns|fastapi_cloud_cli|fontTools|gguf|markdown_it|mcp
        |opencensus|optimum|pip|pyarrow|pyasn1_modules|pylatexenc|sentry_sdk|supervisor|tensorboard
        |torchaudio|torchgen|torchmetrics|virtualenv|websockets|werkzeug)/
    | numba/cuda/ | numpy/distutils/ | openai/(resources|types/beta)/ | sympy/(combinatorics|parsing|physics|stats)/
    | ray/(autoscaler|dashboard|data|llm|rllib|serve|train|tune)/
    | transformers/models/(?!auto/|gpt_oss/)[^/]+/
    | vllm/entrypoints/
    | vllm/model_executor/models/(?!__init__|adapters|config|gpt_oss|interfaces|module_mapping|registry|utils)
    """,
    re.VERBOSE,
)


def wanted_files(site: Path) -> list[str]:
    """Source files under ``site`` that are not skipped and whose bytecode is missing or stale, largest first."""
    sizes = {}
    for folder, subfolders, files in os.walk(site):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS and name != "__pycache__"]
        relative = os.path.relpath(folder, site) + "/"
        for name in files:
            if name.endswith(".py") and not SKIPPED.match(relative + name):
                path = os.path.join(folder, name)
                info = os.stat(path)
                if not is_fresh(path, info):
                    sizes[path] = info.st_size
    return sorted(sizes, key=sizes.__getitem__, reverse=True)


def is_fresh(path: str, info: os.stat_result) -> bool:
    """Whether the bytecode names this interpreter and the source's time and size (PEP 552 header, 16 bytes)."""
    try:
        with open(cache_from_source(path), "rb") as file:
            header = file.read(16)
    except FileNotFoundError:
        return False
    stamp = int(info.st_mtime) & 0xFFFFFFFF
    size = info.st_size & 0xFFFFFFFF
    return header == MAGIC_NUMBER + bytes(4) + stamp.to_bytes(4, "little") + size.to_bytes(4, "little")


def compile_one(path: str) -> None:
    with suppress(PyCompileError):  # packages ship templates and Python 2 files that nobody imports
        compile(path, doraise=True)


def main(venv: str) -> None:
    site = next(Path(venv).glob("lib/python*/site-packages"))
    files = wanted_files(site)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(compile_one, files, chunksize=64):
            pass
    print(f"compiled {len(files)} modules")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # SyntaxWarning of other people's modules
    main(sys.argv[1])
