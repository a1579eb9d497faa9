"""Draw conversations of a search agent from a running engine: the loop of the training, over an engine of this process.

The modules are `rft.agents`'; only what samples a turn is another.
"""

import asyncio
import importlib
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

from rft.agents.conversation import Conversation, ConversationError, converse
from rft.agents.executor import logs
from rft.evals.agent import Agent, held, require_same
from rft.evals.sampling import Request, ordered, params_of, progress_of
from rft.evals.stepping import SteppedEngine
from rft.hooks.samples import turns_of_sample
from rft.record.conversation import segments
from rft.retriever import RetrieverError
from rft.retriever.client import Client, Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import LLM
    from vllm.lora.request import LoRARequest

AT_ONCE = 256  # conversations; as many as an engine's batch holds, and a killed evaluation loses so many


def draw(
    llm: "LLM",
    requests: list[Request],
    sampling: dict,
    keep: Callable[[dict], None],
    lora_request: "LoRARequest | None" = None,
    *,
    agent: Agent,
    at_once: int = AT_ONCE,
) -> None:
    """Draw a conversation for every request; `keep` gets each when it has ended, in the thread of the caller.

    Which of them run at once decides nothing but what the engine batches: seeds are those of `rft.evals.sampling.draw`,
    and of each turn (`rft.hooks.rollout_seeds.of_turn`).

    Args:
        llm, requests, sampling, lora_request: as of `rft.evals.sampling.draw`.
        keep: called with what `sample` returns.
        agent: protocol, limits and retriever.
        at_once: conversations that run at a time.

    Raises:
        RetrieverError: the retriever gives no passages; what was drawn before is kept.
        ConversationError: a turn failed otherwise.
    """
    engine = SteppedEngine(llm, lora_request)
    # Its own: the engine decodes with the other in another thread, and a fast tokenizer is for one at a time.
    tokenizer = deepcopy(llm.get_tokenizer())
    with progress_of(len(requests), "conversations") as advance:

        def done(found: dict) -> None:
            keep(found)
            advance()

        engine.run(_all(engine, tokenizer, ordered(requests, sampling), sampling, agent, at_once, done))


async def _all(
    engine: SteppedEngine,
    tokenizer: "PreTrainedTokenizerBase",
    requests: list[Request],
    sampling: dict,
    agent: Agent,
    at_once: int,
    done: Callable[[dict], None],
) -> None:
    room = asyncio.Semaphore(at_once)
    async with Client(agent.settings.retriever_url) as client:
        require_same(agent, await held(client))

        async def search(query: str) -> list[Passage]:
            return (await client.retrieve([query], agent.settings.topk))[0]

        talk_to = partial(
            converse,
            max_length=agent.max_length,
            tokenizer=tokenizer,
            engine=engine,
            search=search,
            protocol=importlib.import_module(f"rft.agents.{agent.settings.protocol}"),
            settings=agent.settings,
        )

        async def one(request: Request) -> None:
            async with room:
                try:
                    talk = await talk_to(request.tokens, params_of(request, sampling))
                except ConversationError as error:
                    raise _told(error, request) from error
            engine.call(partial(done, sample(request, talk, tokenizer)))

        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(one(request))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None


def _told(error: ConversationError, request: Request) -> Exception:
    """The error of a conversation with the name of its sample; a retriever's is the user's to mend."""
    kind = RetrieverError if isinstance(error.__cause__, RetrieverError) else ConversationError
    return kind(f"prompt {request.prompt}, sample {request.index}, {error}")


def sample(request: Request, talk: Conversation, tokenizer: "PreTrainedTokenizerBase") -> dict:
    """A conversation as caches and records hold it.

    Returns:
        `prompt`, `index`; `response`, all behind the prompt (special tokens kept); `tokens`, how many were sampled;
        `finish`, `length` where it ended without an answer for want of tokens; `answer` or None; `turns` as samples of
        a training have them; and the numbers and texts of `rft.agents.executor.logs`.
    """
    sampled = [0] * len(talk.tokens)
    for first, end in talk.action_ranges:
        sampled[first:end] = [1] * (end - first)
    seconds = [round(turn.seconds, 4) for turn in talk.turns]
    return {
        "prompt": request.prompt,
        "index": request.index,
        "response": tokenizer.decode(talk.tokens[len(request.tokens) :], skip_special_tokens=False),
        "tokens": sum(sampled),
        "finish": "length" if talk.truncated else "stop",
    } | logs(talk) | {
        "answer": talk.answer,
        "turns": turns_of_sample(talk.tokens, segments(sampled), tokenizer, seconds),
    }  # fmt: skip
