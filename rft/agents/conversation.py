"""A conversation of several turns, token in and token out: nothing that was sampled is ever tokenised again."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import msgspec

from rft.agents.actions import Observation
from rft.agents.settings import WHOLE, Settings
from rft.hooks.rollout_seeds import of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import RequestOutput, SamplingParams
    from vllm.outputs import CompletionOutput

    from rft.retriever.client import Passage

# Turns that are invalid in every way, and every way to end one.
INVALID_TURNS = ("", "</search>", "</answer>", "<search></search>", "<search><|end|></search>", "<|end|>", "<|return|>")
INVALID_TURNS += ("<|call|>", "<|message|>{<|call|>", " to=functions.search<|message|>{<|call|>", "<|channel|>")
FINISHED = ("stop", "length")  # what an engine says of a turn that it ended by itself; others were aborted


class Engine(Protocol):
    """What samples a turn: OpenRLHF's `LLMRayActor`, or an evaluation's engine."""

    async def generate(self, token_ids: list[int], sampling_params: "SamplingParams") -> "RequestOutput": ...


Search = Callable[[str], Awaitable[list["Passage"]]]


class ConversationError(RuntimeError):
    """A turn could not be sampled, read or answered; the text names the turn, its `__cause__` is the reason."""


@dataclass
class Turn:
    """One turn of the policy, and what the environment wrote after it.

    Args:
        kind: of the action: `search`, `answer` or `invalid`. A last turn that searches is not answered.
        tokens: the sampled ids.
        observation_tokens: ids that followed; empty after the last turn.
        query: what was searched for, or None.
        seconds: of sampling.
        search_seconds: of the search; None where none took place.
        finish: `stop`, or `length` where its limit ended the turn.
        information_cut: whether passages were cut to fit the observation.
    """

    kind: str
    tokens: list[int]
    observation_tokens: list[int] = field(default_factory=list)
    query: str | None = None
    seconds: float = 0.0
    search_seconds: float | None = None
    finish: str = "stop"
    information_cut: bool = False


@dataclass
class Conversation:
    """What was sampled and what was not.

    Args:
        tokens: ids of the prompt, the turns and the observations.
        action_ranges: [first, end) of each turn's sampled ids in `tokens`; the others were not sampled.
        log_probs: of each token, as the engine sampled it, 0.0 where it did not; None where it gives none.
        truncated: whether it ended without an answer for want of tokens.
        turns: in order.
        answer: what the last turn answers, or None.
        told_to_answer: whether the last turn was told that it is the last.
    """

    tokens: list[int]
    action_ranges: list[tuple[int, int]] = field(default_factory=list)
    log_probs: list[float] | None = None
    truncated: bool = False
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    told_to_answer: bool = False


async def converse(
    prompt_tokens: list[int],
    params: "SamplingParams",
    *,
    max_length: int,
    tokenizer: "PreTrainedTokenizerBase",
    engine: Engine,
    search: Search,
    protocol: ModuleType,
    settings: Settings,
) -> Conversation:
    """Sample turn after turn until one answers, or the turns or the tokens are used up.

    A turn may search only while the room holds that turn, an observation and one more turn, each as long as it may be;
    so an observation always fits, and a last turn that was told to answer has all its tokens. Only a first turn that
    is the last one already may have fewer. The label is not among the arguments, so nothing can tell it to the policy.

    Args:
        prompt_tokens: ids of the prompt.
        params: of the sample: temperature, seed, `max_tokens` and `min_tokens` of a turn, log-probabilities. Not
            changed.
        max_length: tokens that all of it may have, the prompt's included.
        tokenizer: encodes observations, and decodes what was sampled.
        engine: samples a turn.
        search: passages for a query; what it raises ends the conversation.
        protocol: `rft.agents.tags` or `rft.agents.harmony`.
        settings: limits of turns and observations.

    Raises:
        ValueError: the prompt leaves no room for a token.
        ConversationError: a turn failed: by the engine, the search or the protocol.
    """
    if len(prompt_tokens) >= max_length:
        raise ValueError(
            f"the prompt leaves no room to answer\n  found:  {len(prompt_tokens)} tokens of {max_length}\n"
            "  wanted: a shorter prompt, or a larger --prompt_max_len or --generate_max_len"
        )
    turn_tokens = min(settings.turn_tokens, params.max_tokens or settings.turn_tokens)
    to_search = 2 * turn_tokens + settings.observation_tokens

    def is_last(turn: int, length: int) -> bool:
        return turn + 1 >= settings.max_turns or max_length - length < to_search

    zeros = None if params.logprobs is None else [0.0] * len(prompt_tokens)
    talk = Conversation(list(prompt_tokens), log_probs=zeros)
    last = is_last(0, len(talk.tokens))
    while True:
        turn = len(talk.turns)
        asked = turn_params(params, turn, min(turn_tokens, max_length - len(talk.tokens)), protocol.stops(last))
        with _named(turn, "sampling"):
            began = time.perf_counter()
            output = checked(await engine.generate(list(talk.tokens), asked), asked)
            seconds = time.perf_counter() - began
            log_probs = [] if zeros is None else sampled_log_probs(output)
        sampled = list(output.token_ids)
        with _named(turn, "reading the action"):
            text = tokenizer.decode(sampled, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            action = protocol.parse(text)
        talk.action_ranges.append((len(talk.tokens), len(talk.tokens) + len(sampled)))
        _append(talk, sampled, log_probs)
        done = Turn(action.kind, sampled, seconds=seconds, finish=output.finish_reason)
        talk.turns.append(done)
        if last or action.kind == "answer":
            talk.answer = action.text if action.kind == "answer" else None
            for_want_of_tokens = done.finish == "length" or len(talk.turns) < settings.max_turns
            talk.truncated = talk.answer is None and for_want_of_tokens
            return talk

        passages = None
        if action.kind == "search":
            with _named(turn, "searching"):
                began = time.perf_counter()
                passages = await search(action.text)
                done.query, done.search_seconds = action.text, time.perf_counter() - began
        with _named(turn, "writing the observation"):
            wrong = action.text if action.kind == "invalid" else None
            write = partial(_observation, protocol, passages, wrong, text, settings.observation_tokens, tokenizer)
            last = is_last(turn + 1, 0)
            written = write(last)
            if not last and is_last(turn + 1, len(talk.tokens) + len(written.tokens)):
                last, written = True, write(True)  # only now is it known that the next turn must be the last
        done.observation_tokens, done.information_cut = list(written.tokens), written.cut
        talk.told_to_answer = last
        _append(talk, done.observation_tokens, [0.0] * len(done.observation_tokens))


def turn_params(params: "SamplingParams", turn: int, max_tokens: int, stops: dict) -> "SamplingParams":
    """What one turn is sampled with: a copy with its own seed (`rft.hooks.rollout_seeds.of_turn`), limit and stops.

    Args:
        params: the sample's; its own stops stay.
        turn: turns of the sample before this one.
        max_tokens: the turn's limit; `min_tokens` is at most that.
        stops: fields of SamplingParams, as a protocol gives them.
    """
    lists = {name: [*(getattr(params, name) or []), *stops.get(name, ())] for name in ("stop", "stop_token_ids")}
    return msgspec.structs.replace(
        of_turn(params, params.seed, turn),
        max_tokens=max_tokens,
        min_tokens=min(params.min_tokens, max_tokens),
        **stops | lists,
    )


def checked(output: "RequestOutput | None", asked: "SamplingParams") -> "CompletionOutput":
    """The one completion of a turn.

    Raises:
        ValueError: none, several, an empty one, one beyond its limit, or one that the engine has not finished itself.
    """
    outputs = output.outputs if output is not None else []
    if len(outputs) != 1:
        raise ValueError(f"the engine returned {len(outputs)} completions; wanted 1")
    found = outputs[0]
    if found.finish_reason not in FINISHED:
        raise ValueError(f"the engine ended the turn with {found.finish_reason!r}; wanted {' or '.join(FINISHED)}")
    if not 1 <= len(found.token_ids) <= asked.max_tokens:
        raise ValueError(f"the engine returned {len(found.token_ids)} tokens; wanted 1 to {asked.max_tokens}")
    return found


def sampled_log_probs(output: "CompletionOutput") -> list[float]:
    """The log-probability of each sampled token, in order.

    Raises:
        ValueError: as many as tokens were not returned, or one lacks its token's.
    """
    found = output.logprobs or []
    if len(found) != len(output.token_ids):
        raise ValueError(f"the engine returned {len(found)} log-probabilities for {len(output.token_ids)} tokens")
    missing = [i for i, token in enumerate(output.token_ids) if token not in found[i]]
    if missing:
        raise ValueError(f"the engine returned no log-probability of the token that it sampled at {missing[0]}")
    return [found[i][token].logprob for i, token in enumerate(output.token_ids)]


def _append(talk: Conversation, tokens: list[int], log_probs: list[float]) -> None:
    talk.tokens += tokens
    if talk.log_probs is not None:
        talk.log_probs += log_probs


def _observation(
    protocol: ModuleType,
    passages: "list[Passage] | None",
    wrong: str | None,
    after: str,
    limit: int,
    tokenizer: "PreTrainedTokenizerBase",
    last: bool,
) -> Observation:
    """What the protocol writes after a turn: passages or what was wrong, and whether the next turn is the last."""
    notes = [protocol.invalid(wrong)] if wrong is not None else []
    notes += [protocol.LAST_TURN] if last else []
    note = " ".join(notes) or None
    found = protocol.observation(passages, note=note, after=after, limit=limit, tokenizer=tokenizer)
    if len(found.tokens) > limit:
        raise ValueError(f"the protocol wrote {len(found.tokens)} tokens; wanted {limit} at most")
    return found


def require_room_for_sentences(settings: Settings, protocol: ModuleType, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Refuse a limit of observations that a sentence to the model alone exceeds: with the first invalid turn the run
    would end.

    Raises:
        ValueError: the limit is smaller with this tokenizer.
    """
    actions = [protocol.parse(turn) for turn in INVALID_TURNS]
    notes = {f"{protocol.invalid(found.text)} {protocol.LAST_TURN}" for found in actions if found.kind == "invalid"}
    write = partial(protocol.observation, limit=WHOLE["observation_tokens"].high, tokenizer=tokenizer)
    least = max(len(write(None, note=note, after=turn).tokens) for note in notes for turn in INVALID_TURNS)
    if settings.observation_tokens < least:
        name = WHOLE["observation_tokens"].variable
        raise ValueError(
            f"found {name}={settings.observation_tokens}, wanted {least} or more: so many tokens "
            f"the {settings.protocol} protocol says to a turn that is not valid"
        )


@contextmanager
def _named(turn: int, what: str) -> Iterator[None]:
    """Names the turn, counted from 1, in what goes wrong inside."""
    try:
        yield
    except Exception as error:
        raise ConversationError(f"turn {turn + 1}, {what}: {type(error).__name__}: {error}") from error
