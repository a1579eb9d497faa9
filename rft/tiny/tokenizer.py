"""A tokenizer of under 512 entries with the Harmony special tokens, built without training data or network.

Byte-level BPE without merges: a piece of text that the vocabulary has becomes one token, any other piece
falls apart into its bytes, so every text survives encode and decode. Digits are always tokens of their own.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

# Names as in o200k_harmony; what gpt-oss reserves beyond these is of no use to a vocabulary this small.
SPECIAL_TOKENS = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
    "<|endofprompt|>",
)
EOS, PAD, CALL = "<|return|>", "<|endoftext|>", "<|call|>"

# Pieces, in order of preference: \boxed{, one digit, a spaced operator, a comma or a word with what is glued to it,
# newlines, any other single character. Numbers never join anything but the space after "word: " or "a, ".
PIECES = r" ?\\boxed\{| [+\-] |[0-9]|, (?=[0-9])| ?[A-Za-z]+(?:: (?=[0-9\-])|[.,:])?|\n+| ?[^\sA-Za-z0-9]|\s"

# Every piece of these texts becomes one token.
KNOWN_TEXTS = (
    "You are ChatGPT, a large language model trained by OpenAI.\n\nReasoning: low\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.",
    "# Instructions\n\n",
    "Put the final answer within \\boxed{}.\n"
    "State the final answer to the following arithmetic problem: 12 + 34 = 56 - 78",
    "0+1=2, 3-4=5",
    "\\boxed{-1}",
    *("system", "developer", "user", "assistant", "analysis", "commentary", "final", " medium", " high"),
)

TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def _pre_tokenizer():
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def build_tokenizer(texts: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """The tokenizer, the same at every call: bytes, then the known pieces in order of appearance, then special tokens.

    A task's own `texts` add pieces to those of `KNOWN_TEXTS`.

    eos is `<|return|>`, pad is `<|endoftext|>`; `chat_template` is the Harmony template beside this file.
    """
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    for text in (*KNOWN_TEXTS, *texts):
        pieces += [piece for piece, _ in _pre_tokenizer().pre_tokenize_str(text)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    core.pre_tokenizer = _pre_tokenizer()
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return harmony_chat(core)


def harmony_chat(core: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer that has the Harmony special tokens, with their roles and the template beside this file."""
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|startoftext|>",
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=131072,
        chat_template=TEMPLATE.read_text(),
    )
