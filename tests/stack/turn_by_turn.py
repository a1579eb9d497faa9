"""A conversation with vLLM's own `generate`, turn by turn, without a loop of ours."""

import asyncio

from rft.agents import tags
from rft.agents.settings import Settings as AgentSettings
from rft.evals import sampling
from rft.hooks.rollout_seeds import of_turn
from rft.retriever.client import Client


def by_hand(llm, request: sampling.Request, params: dict, settings: AgentSettings) -> str:
    """What follows the prompt, of three turns that all search."""
    tokenizer, tokens = llm.get_tokenizer(), list(request.tokens)
    for turn in range(3):
        given = sampling.params_of(request, params)
        asked = of_turn(given, given.seed, turn)
        asked.max_tokens, asked.stop, asked.include_stop_str_in_output = 12, ["</search>", "</answer>"], True
        (output,) = llm.generate([{"prompt_token_ids": tokens}], asked, use_tqdm=False)
        sampled = list(output.outputs[0].token_ids)
        tokens += sampled
        if turn < 2:
            text = tokenizer.decode(sampled, skip_special_tokens=False)
            found = asyncio.run(retrieved(settings.retriever_url, tags.parse(text).text))
            note = tags.LAST_TURN if turn == 1 else None
            tokens += tags.observation(found, note=note, after=text, limit=200, tokenizer=tokenizer).tokens
    return tokenizer.decode(tokens[len(request.tokens) :], skip_special_tokens=False)


async def retrieved(url: str, query: str):
    async with Client(url) as client:
        return (await client.retrieve([query], 2))[0]
