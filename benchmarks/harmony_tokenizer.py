"""gpt-oss's own vocabulary, o200k_harmony, as a transformers tokenizer: built offline, without the checkpoint.

The merges come from bpe-openai's table of o200k_base; special tokens and their ids are openai-harmony's (its registry,
`HARMONY_GPT_OSS`). The chat template is the tiny model's, which renders as openai-harmony does.
"""

import gzip
import tempfile
from importlib.util import find_spec
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from rft.tiny.tokenizer import TEMPLATE

FIRST_SPECIAL, VOCABULARY = 199998, 201088
NAMED = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}
# o200k's pieces of text (tiktoken's `o200k_base`): words by case with a contraction, three digits, signs, white space.
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PIECES = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def build_harmony_tokenizer() -> PreTrainedTokenizerFast:
    """201,088 token ids as gpt-oss has them; eos `<|return|>`, pad `<|endoftext|>`. Takes some ten seconds.

    Raises:
        ModuleNotFoundError: no bpe-openai.
    """
    found = find_spec("bpe_openai")
    if found is None:
        raise ModuleNotFoundError("no bpe-openai, which holds the vocabulary; uv pip install bpe-openai")
    packed = Path(found.submodule_search_locations[0], "data", "o200k_base.tiktoken.gz")
    special = [NAMED.get(i, f"<|reserved_{i}|>") for i in range(FIRST_SPECIAL, VOCABULARY)]
    with tempfile.TemporaryDirectory() as folder:
        ranks = Path(folder, "o200k_base.tiktoken")
        ranks.write_bytes(gzip.decompress(packed.read_bytes()))
        core = TikTokenConverter(str(ranks), pattern=PIECES, additional_special_tokens=special).converted()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=NAMED[199998],
        eos_token=NAMED[200002],
        pad_token=NAMED[199999],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=131072,
        chat_template=TEMPLATE.read_text(),
    )
