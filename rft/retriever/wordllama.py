"""Static word vectors from the wheel `wordllama` (MIT, 32,000 x 256): a second for 10,000 passages, without torch.

Its own loader looks for the tokenizer in a folder that the wheel names otherwise, so the two files are read here.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from rft.record.digest import file_sha256

NAME = "wordllama"
FILES = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"
TOKENS = 512  # of a text; what comes later is not read


class WordLlama:
    """Mean of the vectors of a text's tokens, of length 1."""

    batch = 4096  # texts at once

    def __init__(self):
        spec = find_spec(NAME)  # found, not imported: its import wants more than its data
        if spec is None:
            raise ValueError(f"found no package {NAME}; wanted it installed; run: make setup")
        folder = Path(spec.submodule_search_locations[0])
        weights, tokenizer = (folder / each for each in FILES)
        (self._vectors,) = load_file(weights).values()
        self._vectors = self._vectors.astype(np.float32)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(TOKENS)
        self._tokenizer.no_padding()
        self.name, self.dimension = NAME, self._vectors.shape[1]
        digests = [file_sha256(each) for each in (weights, tokenizer)]
        self.identity = {"name": NAME, "files": digests, "tokens": TOKENS}

    def passages(self, texts: list[str]) -> np.ndarray:
        """`(len(texts), dimension)`, float32."""
        readable = [text.encode("utf-8", "replace").decode() for text in texts]  # lone surrogates are no UTF-8
        encoded = self._tokenizer.encode_batch_fast(readable, add_special_tokens=False)
        found = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, each in zip(found, encoded, strict=True):
            if each.ids:
                row[:] = self._vectors[each.ids].mean(axis=0)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return np.divide(found, lengths, out=found, where=lengths > 0)

    def queries(self, texts: list[str]) -> np.ndarray:
        """As for passages."""
        return self.passages(texts)
