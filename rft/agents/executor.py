"""The search agent behind OpenRLHF 0.9.3's `--agent_func_path`: conversations with a retriever, and their reward."""

import importlib
import json
import traceback
from typing import TYPE_CHECKING

from openrlhf.utils.agent import AgentExecutorBase

from rft.agents.conversation import Conversation, converse, require_room_for_sentences
from rft.agents.settings import Settings
from rft.grading.short_answer import answers_of, is_exact
from rft.hooks.rewards import position
from rft.retriever.client import Client, Passage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import SamplingParams

    from rft.agents.conversation import Engine

EXCLUDED_SCORE = -1.0  # outside of 0 to 1, so that dynamic filtering drops the group whatever its range


class AgentError(RuntimeError):
    """A conversation failed; the text names the sample, the turn and the cause. It ends the run, it is never a 0."""


class SearchExecutor(AgentExecutorBase):
    """Conversations of one engine actor, all of them over one client of the retriever.

    Args:
        settings: those of the environment by default (`rft.agents.settings`).

    Raises:
        ValueError: a variable of the environment is out of its range.
    """

    def __init__(self, settings: Settings | None = None):
        self.settings = settings or Settings.from_environment()
        self.protocol = importlib.import_module(f"rft.agents.{self.settings.protocol}")
        self._client = Client(self.settings.retriever_url)
        self._has_room = False  # for sentences to the model, which only its tokenizer can tell

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: "SamplingParams",
        max_length: int,
        hf_tokenizer: "PreTrainedTokenizerBase",
        llm_engine: "Engine",
    ) -> dict:
        """One sample, as OpenRLHF takes it: tokens, ranges of actions, log-probabilities, reward and `extra_logs`.

        The reward, and the score, is 1.0 for an answer that equals one of the label's, else 0.0. A label that cannot
        be read is excluded: its score is -1, as `rewards/reward_func_em.py` does it.

        Args:
            prompt: rendered by the chat template.
            label: see `rft.grading.short_answer`.
            sampling_params: the sample's own, see `rft.hooks.rollout_seeds.assign`.
            max_length: tokens of prompt, turns and observations.

        Raises:
            AgentError: the conversation failed.
        """
        try:
            if not self._has_room:
                require_room_for_sentences(self.settings, self.protocol, hf_tokenizer)
                self._has_room = True
            talk = await converse(
                hf_tokenizer(prompt, add_special_tokens=False)["input_ids"],
                sampling_params,
                max_length=max_length,
                tokenizer=hf_tokenizer,
                engine=llm_engine,
                search=self._search,
                protocol=self.protocol,
                settings=self.settings,
            )
        except Exception as error:
            where = f"the {self.settings.protocol} agent's conversation failed\n  {position(sampling_params)}"
            text = "".join(traceback.format_exception(error)).rstrip()
            # Only the text crosses to the trainer's process, which may lack the classes of the causes.
            raise AgentError(f"{where}, {error}\n{text}") from None
        correct, label_valid = graded(talk.answer, label)
        return {
            "prompt": prompt,
            "label": label,
            "reward": float(correct),
            "scores": float(correct) if label_valid else EXCLUDED_SCORE,
            "observation_tokens": talk.tokens,
            "action_ranges": talk.action_ranges,
            "rollout_log_probs": talk.log_probs,
            "truncated": talk.truncated,
            "extra_logs": logs(talk) | {"correctness": float(correct), "label_invalid": float(not label_valid)},
        }

    async def close(self) -> None:
        """Ends the connections of the running event loop; an actor keeps them as long as it lives."""
        await self._client.close()

    async def _search(self, query: str) -> list[Passage]:
        return (await self._client.retrieve([query], self.settings.topk))[0]


def graded(answer: str | None, label: object) -> tuple[bool, bool]:
    """Whether an answer is right, and whether its label can be read."""
    try:
        answers = answers_of(label)
    except (ValueError, TypeError):  # no such text, or no text at all
        return False, False
    return answer is not None and is_exact(answer, answers), True


def logs(talk: Conversation) -> dict[str, float | str]:
    """What metrics and sample files get of a conversation: the same names for every one, numbers and texts."""
    searches = [turn.search_seconds for turn in talk.turns if turn.search_seconds is not None]
    return {
        "turns": float(len(talk.turns)),
        "searches": float(len(searches)),
        "invalid_actions": float(sum(turn.kind == "invalid" for turn in talk.turns)),
        "observation_tokens": float(sum(len(turn.observation_tokens) for turn in talk.turns)),
        "action_tokens": float(sum(len(turn.tokens) for turn in talk.turns)),
        "search_seconds": sum(searches, 0.0),
        "answered": float(talk.answer is not None),
        "forced_answer": float(talk.told_to_answer),
        "information_cut": float(sum(turn.information_cut for turn in talk.turns)),
        "answer": talk.answer or "",
        "turn_seconds": json.dumps([round(turn.seconds, 4) for turn in talk.turns]),
        "search_latencies": json.dumps([round(seconds, 4) for seconds in searches]),
    }
