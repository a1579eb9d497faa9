"""Questions about trees, and an engine that says to each what a script has, for evaluations of an agent."""

import threading
from pathlib import Path
from types import SimpleNamespace

from scripted_agent import request_output

from rft.evals import sampling
from rft.evals.prompts import load_tokenizer, render
from rft.grading.short_answer import label_of

LIMITS = {"max_turns": 4, "turn_tokens": 64, "observation_tokens": 400}
GREEDY = sampling.parameters(0.0, 1.0, 200, 0, 0)
# What the policy says to a question, turn by turn.
SAYS = {
    "alder?": ["I look. <search>alder leaf</search>", "So <answer>The Alder.</answer>"],
    "birch?": ["<answer>birch</answer>"],
    "oak?": ["Hm.", "<search>oak</search>", "<answer>pine</answer>"],
    "yew?": ["Hm.", "Hm.", "Hm.", "Hm."],
}
PROBLEMS = [
    {"input": [{"role": "user", "content": question}], "label": label_of([question[:-1], "x"]), "id": question}
    for question in SAYS
]


class Engine:
    """Stands for vLLM's engine: a few requests a step, the last ones first, each as `SAYS` has it."""

    def __init__(self, tokenizer):
        self.tokenizer, self.waiting, self.aborted, self.steps, self.threads = tokenizer, {}, [], 0, set()

    def add_request(self, name, prompt, params, lora_request=None):
        self.threads.add(threading.current_thread())
        self.waiting[name] = prompt["prompt_token_ids"], params

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def abort_request(self, names):
        self.aborted += names
        for name in names:
            self.waiting.pop(name, None)  # as vLLM: one that has ended is no error

    def step(self):
        self.threads.add(threading.current_thread())
        self.steps += 1
        return [self._output(name, *self.waiting.pop(name)) for name in list(self.waiting)[-3:]]

    def _output(self, name, tokens, params):
        text = self.tokenizer.decode(tokens, skip_special_tokens=False)
        turn = text.count("</information>") + text.count("That turn is not valid")
        said = next(says for question, says in SAYS.items() if f"<|message|>{question}<|end|>" in text)[turn]
        output = request_output(self.tokenizer(said, add_special_tokens=False)["input_ids"], "stop", turn, params)
        output.request_id = name
        return output


def untimed(sample: dict) -> dict:
    turns = [{key: value for key, value in turn.items() if key != "seconds"} for turn in sample["turns"]]
    timed = ("turn_seconds", "search_latencies", "search_seconds")
    return {key: value for key, value in sample.items() if key not in timed} | {"turns": turns}


def engine_of(checkpoint: Path) -> SimpleNamespace:
    """What an evaluation needs of a `vllm.LLM`, with the checkpoint's tokenizer."""
    tokenizer = load_tokenizer(checkpoint)
    return SimpleNamespace(llm_engine=Engine(tokenizer), get_tokenizer=lambda: tokenizer)


def requests_of(llm, samples: int = 1) -> list[sampling.Request]:
    prompts = render(llm.get_tokenizer(), PROBLEMS, None, None)
    return [sampling.Request(prompt.digest, prompt.tokens, i) for prompt in prompts for i in range(samples)]
