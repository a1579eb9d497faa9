"""An encoder from a folder of sentence-transformers, such as e5: its pooling, and the prefixes that it wants.

Imports torch: only where such a folder is used.
"""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from rft.record.digest import tree_digest

CONFIG = "config_sentence_transformers.json"
QUERY, PASSAGE = ("query",), ("passage", "document", "corpus")  # names of prompts in a folder's config
E5 = "query: ", "passage: "  # https://huggingface.co/intfloat/e5-base-v2, "FAQ"
E5_SIZES = re.compile(r"(?:^|[-_])e5[-_](?:small|base|large)(?!.*instruct)")


class Transformer:
    """Vectors of length 1, made on all GPUs there are, else on the CPU.

    Args:
        folder: of sentence-transformers.
        query_prefix, passage_prefix: before each text; None takes the folder's own prompts, else those of e5 for an e5.

    Raises:
        ValueError: no such folder; or it is an e5 of another kind, which needs prefixes, and has none.
    """

    batch = 256

    def __init__(self, folder: Path, query_prefix: str | None = None, passage_prefix: str | None = None):
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise ValueError(
                f"found no model in {folder}; wanted a folder of sentence-transformers, or wordllama; correct --encoder"
            )
        prompts = _prompts(folder)
        query = query_prefix if query_prefix is not None else _first(prompts, QUERY)
        passage = passage_prefix if passage_prefix is not None else _first(prompts, PASSAGE)
        if query is None and passage is None:
            query, passage = _of_e5(folder)
        self.query_prefix, self.passage_prefix = query or "", passage or ""
        os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
        import torch
        from sentence_transformers import SentenceTransformer

        devices = [f"cuda:{n}" for n in range(torch.cuda.device_count())] or ["cpu"]
        half = {"dtype": torch.float16} if devices[0] != "cpu" else {}
        self._models = [SentenceTransformer(str(folder), device=each, model_kwargs=half) for each in devices]
        self.name, self.dimension = folder.resolve().name, self._models[0].get_embedding_dimension()
        self.identity = {
            "name": self.name,
            "digest": tree_digest(folder),
            "prefixes": [self.query_prefix, self.passage_prefix],
        }

    def passages(self, texts: list[str]) -> np.ndarray:
        """`(len(texts), dimension)`, float32; each GPU takes its part."""
        share = -(-len(texts) // len(self._models))
        parts = [texts[start : start + share] for start in range(0, len(texts), share)]
        with ThreadPoolExecutor(len(parts)) as pool:
            made = pool.map(lambda model, part: _encoded(model, self.passage_prefix, part), self._models, parts)
            return np.concatenate(list(made))

    def queries(self, texts: list[str]) -> np.ndarray:
        """As for passages, on the first GPU."""
        return _encoded(self._models[0], self.query_prefix, texts)


def _encoded(model, prefix: str, texts: list[str]) -> np.ndarray:
    readable = [(prefix + text).encode("utf-8", "replace").decode() for text in texts]
    # prompt="": a folder may name a default prompt, which would come on top of ours.
    found = model.encode(
        readable, prompt="", batch_size=64, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
    )
    return np.ascontiguousarray(found, dtype=np.float32)


def _prompts(folder: Path) -> dict:
    file = folder / CONFIG
    if not file.is_file():
        return {}
    return json.loads(file.read_text(encoding="utf-8")).get("prompts") or {}


def _of_e5(folder: Path) -> tuple[str | None, str | None]:
    """The prefixes of an e5, known by the path's names: in the hub's cache it stands two folders above the files."""
    names = [name.lower() for name in (*folder.absolute().parts[-3:], *folder.resolve().parts[-3:])]
    if any(E5_SIZES.search(name) for name in names):
        return E5
    if any("e5" in re.split("[-_]", name) for name in names):
        raise ValueError(
            f"found no prefixes for {folder}; an e5 was trained with some; wanted those of its model card: "
            "--query-prefix TEXT --passage-prefix TEXT"
        )
    return None, None


def _first(prompts: dict, names: tuple[str, ...]) -> str | None:
    """The first that is not empty: sentence-transformers writes empty ones where nobody chose any."""
    return next((prompts[name] for name in names if prompts.get(name)), None)
