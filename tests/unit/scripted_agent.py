"""An engine that says what a script says, in vLLM's own output objects, and conversations with it."""

import asyncio
import types

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from vllm import RequestOutput, SamplingParams
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput

from rft.agents import harmony, tags
from rft.agents.conversation import Conversation, converse
from rft.agents.settings import Settings
from rft.retriever.client import Passage
from rft.tiny.tokenizer import SPECIAL_TOKENS, harmony_chat

# Pieces that a large vocabulary has too: a tag's end together with what follows it.
MERGES = [(">", "Ċ"), (">Ċ", "Ċ"), ("s", "e"), ("se", "a"), ("sea", "r"), ("sear", "c"), ("searc", "h")]
FOUND = [
    Passage("7", "Alder", "The alder's leaf has teeth.", 0.9),
    Passage("8", "Birch", "The birch is white.", 0.5),
]


def tokenizer():
    """Bytes, a few merges, Harmony's special tokens."""
    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary += ["".join(pair) for pair in MERGES]
    core = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(vocabulary)}, merges=MERGES))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL_TOKENS))
    return harmony_chat(core)


TOKENIZER = tokenizer()


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def log_prob(turn: int, place: int) -> float:
    """Another one for each token that the engine samples."""
    return -0.5 - turn - place / 1024


class Scripted:
    """Says one entry of the script a turn: a text, ids, an output as it is, or an exception that it raises.

    A turn ends where its limit is, or at the first token with which the text holds a stop, as vLLM ends it.
    """

    def __init__(self, script: list):
        self.script, self.asked = script, []

    async def generate(self, token_ids: list[int], sampling_params: SamplingParams):
        turn = len(self.asked)
        self.asked.append((token_ids, sampling_params))
        said = self.script[turn]
        if isinstance(said, Exception):
            raise said
        if isinstance(said, RequestOutput) or said is None:
            return said
        tokens, finish = cut(ids(said) if isinstance(said, str) else list(said), sampling_params)
        # What vLLM gives as text lacks the stop and what its token holds beyond it; the loop must not need it.
        return request_output(tokens, finish, turn, sampling_params, text="not what was sampled")


def cut(tokens: list[int], params: SamplingParams) -> tuple[list[int], str]:
    for end in range(1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[:end], skip_special_tokens=False)
        if end > params.min_tokens and any(stop in text for stop in params.stop):
            return tokens[:end], "stop"
        if end == params.max_tokens:
            return tokens[:end], "length"
    return tokens, "stop"


def request_output(tokens: list[int], finish: str | None, turn: int, params: SamplingParams, text="", **changes):
    log_probs = None
    if params.logprobs is not None:
        # An engine may return likelier tokens beside the sampled one.
        log_probs = [{t: Logprob(log_prob(turn, i)), t + 1: Logprob(-0.1)} for i, t in enumerate(tokens)]
    fields = {"cumulative_logprob": None, "logprobs": log_probs, "finish_reason": finish} | changes
    return RequestOutput("1", None, None, None, [CompletionOutput(0, text, tokens, **fields)], True)


def params(**changes) -> SamplingParams:
    """As OpenRLHF makes them, with the seed of a sample."""
    return SamplingParams(
        **{"max_tokens": 400, "min_tokens": 1, "logprobs": 0, "seed": 77, "skip_special_tokens": False} | changes
    )


def talk(
    script: list, settings: Settings, found=FOUND, max_length=4000, prompt="<|start|>user<|message|>?<|end|>", **changes
) -> tuple[Conversation, types.SimpleNamespace]:
    """A conversation, and what engine and search were asked.

    Args:
        found: passages for every query, a function of the query, or an exception that the search raises.
        changes: of the sampling parameters.
    """
    engine, queries = Scripted(script), []

    async def search(query: str) -> list[Passage]:
        queries.append(query)
        if isinstance(found, Exception):
            raise found
        return found(query) if callable(found) else found

    asked = types.SimpleNamespace(calls=engine.asked, queries=queries)
    done = asyncio.run(
        converse(
            ids(prompt) if isinstance(prompt, str) else prompt,
            params(**changes),
            max_length=max_length,
            tokenizer=TOKENIZER,
            engine=engine,
            search=search,
            protocol={"tags": tags, "harmony": harmony}[settings.protocol],
            settings=settings,
        )
    )
    return done, asked
