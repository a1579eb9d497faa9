"""gpt-oss's own vocabulary, o200k_harmony, as a transformers tokenizer: built offline, without the checkpoint.

The merges come from bpe-openai's table of o200k_base; special tokens and their ids are openai-harmony's (its registry,
`HARMONY_GPT_OSS`). The chat template is the tiny model's, which renders as openai-harmony does.
"""

import tempfile
from functools import cache

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from rft.runs.preflight.harmony import unpack_vocabulary
from rft.tiny.tokenizer import harmony_chat

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


@cache
def build_harmony_tokenizer() -> PreTrainedTokenizerFast:
    """201,088 token ids as gpt-oss has them; eos `<|return|>`, pad `<|endoftext|>`. Takes some ten seconds, once.

    Raises:
        ModuleNotFoundError: no bpe-openai.
    """
    special = [NAMED.get(i, f"<|reserved_{i}|>") for i in range(FIRST_SPECIAL, VOCABULARY)]
    with tempfile.TemporaryDirectory() as folder:
        merges = str(unpack_vocabulary(folder))
        converter = TikTokenConverter(merges, pattern=PIECES)
        converter.additional_special_tokens = converter.extra_special_tokens = special  # transformers 4, 5
        return harmony_chat(converter.converted())
