"""The search agent of an evaluation: what it may do and what it searches, known before an engine starts."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rft.agents.settings import Settings
from rft.hooks.saved_adapter import is_adapter
from rft.record.adapters import manifest_of
from rft.retriever import RetrieverError
from rft.retriever.client import REPAIR, Client

if TYPE_CHECKING:
    from rft.evals.models import Model

AGENTS = ("search",)  # of --agent
PATIENCE = 3.0  # seconds for a retriever that should be up; launchers have waited for theirs
DECIDES = ("corpus", "index", "encoder")  # what of a retriever's health decides a passage


@dataclass(frozen=True)
class Agent:
    """A search agent and its retriever.

    Args:
        settings: of a conversation, see `rft.agents.settings`.
        retriever: what the server says of itself: `corpus` (sha256), `corpus_name`, `passages`, `index`, `encoder`.
        max_length: tokens that a conversation may have, the prompt's included.
    """

    settings: Settings
    retriever: dict
    max_length: int

    def identity(self) -> dict:
        """What decides a conversation besides model, prompt and sampling parameters, but the code."""
        retriever = {name: self.retriever[name] for name in DECIDES}
        return {"name": "search", **self.settings.identity(), "max_length": self.max_length, "retriever": retriever}


def opened(settings: Settings, models: list["Model"], max_length: int) -> Agent:
    """The agent, with the retriever that answers at the settings' address.

    Raises:
        RetrieverError: none answers, or one that has not read its corpus yet or does not say which it has.
        ValueError: a model was trained with another corpus.
    """
    agent = Agent(settings, retriever_at(settings.retriever_url), max_length)
    for model in models:
        require_corpus(model, agent.retriever["corpus"])
    return agent


def retriever_at(url: str) -> dict:
    """What the retriever at an address holds. Raises RetrieverError as `opened`."""

    async def asked() -> dict:
        async with Client(url, patience=PATIENCE) as client:
            return await held(client)

    return asyncio.run(asked())


async def held(client: Client) -> dict:
    """What the retriever of a client holds: its health without what changes. Raises RetrieverError as `opened`."""
    health = await client.health()
    if not isinstance(health, dict) or health.get("status") != "ok" or not {*DECIDES} <= health.keys():
        raise RetrieverError(
            f"{client.url}/health: found {str(health)[:200]}; wanted status ok and {', '.join(DECIDES)}: "
            f"wait until it is up, or {REPAIR}"
        )
    return {name: value for name, value in health.items() if name not in ("status", "uptime")}


def require_same(agent: Agent, found: dict) -> None:
    """Raise RetrieverError where another retriever answers than before the engine started, which takes minutes.

    Args:
        agent: with the former.
        found: what the latter holds.
    """
    before, now = ({name: side[name] for name in DECIDES} for side in (agent.retriever, found))
    if before != now:
        raise RetrieverError(
            f"{agent.settings.retriever_url}: found a retriever of {now}, wanted that of the beginning, {before}; run "
            "the same command again: each has its own samples"
        )


def require_corpus(model: "Model", corpus: str) -> None:
    """Raise ValueError where the run that trained an adapter searched another corpus: its number would be another's."""
    run = manifest_of(model.path) if is_adapter(model.path) else None
    trained = (json.loads(run.read_text()).get("retriever") or {}).get("corpus") if run else None
    if trained not in (None, corpus):
        raise ValueError(
            f"model {model.name}: found a retriever of the corpus {corpus[:12]}, {run} records {trained[:12]}; wanted "
            "the corpus of the training; start the retriever with that one, or set RETRIEVER_URL"
        )


def require_room(path: Path, shortest: int, agent: Agent, max_tokens: int) -> None:
    """Raise ValueError where no conversation of a dataset could search: not even behind its shortest prompt is room.

    Args:
        path: of the dataset.
        shortest: tokens of its shortest prompt.
        agent: with the limits.
        max_tokens: of --max-tokens.
    """
    settings = agent.settings
    fixed = shortest + settings.observation_tokens - agent.max_length
    if settings.max_turns > 1 and fixed + 2 * min(settings.turn_tokens, max_tokens) > 0:
        raise ValueError(
            f"{path}: found room for {agent.max_length} tokens (--max-prompt-tokens and --max-tokens together), in "
            f"which nothing can be searched; wanted room for a prompt of {shortest}, two turns of "
            f"{settings.turn_tokens} and an observation of {settings.observation_tokens}; pass --max-tokens "
            f"{max_tokens + fixed + 2 * settings.turn_tokens}, or lower RFT_AGENT_TURN_TOKENS"
        )
