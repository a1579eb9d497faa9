"""How to evaluate: the options that every command of eval/ shares."""

from dataclasses import dataclass
from pathlib import Path

from rft.agents.settings import Settings as AgentSettings
from rft.evals.scores import MODES


@dataclass(frozen=True)
class Settings:
    """How to evaluate; see `eval/eval_posthoc.py --help` for each."""

    mode: str = "greedy_pass@1"
    samples: int | None = None  # a problem; None: the mode's own
    temperature: float | None = None  # None: the mode's own
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 4096
    max_prompt_tokens: int = 1024
    system_prompt: str | None = None
    reasoning_effort: str | None = None
    cache: Path | None = None
    serving: str = "exact"  # of adapters: exact, merged, or native (vLLM's own LoRA)
    head_dtype: str = "float32"  # of the engine's logits, or model
    lora_rank: int = 0  # least room for adapters in an engine that serves them exactly
    reference: str | None = "cpu"
    tensor_parallel_size: int = 1
    noise_floor: bool = False  # evaluate the first model a second time
    agent: AgentSettings | None = None  # samples are conversations of a search agent

    @property
    def max_length(self) -> int:
        """Tokens of prompt and completion together; of a conversation with its observations."""
        return self.max_prompt_tokens + self.max_tokens

    def drawn(self) -> tuple[int, float]:
        """(samples a problem, temperature). Raises ValueError for a mode that is not what its name says."""
        mode = MODES[self.mode]
        samples = mode["n"] if self.samples is None else self.samples
        temperature = mode["temperature"] if self.temperature is None else self.temperature
        k = int(self.mode.split("@")[1])
        greedy, found = self.mode.startswith(("greedy", "nondet")), f"--samples {samples} --temperature {temperature:g}"
        if temperature == 0 and samples > 1 and not self.mode.startswith("nondet"):
            raise ValueError(
                f"found {found} in mode {self.mode}; greedy samples of one prompt are copies; wanted --samples 1, or "
                "--mode nondet_proxy_pass@8 to measure how much they differ"
            )
        if greedy != (temperature == 0):
            raise ValueError(
                f"found {found} in mode {self.mode}; wanted temperature {'0' if greedy else 'above 0'}; use the mode "
                "of these options"
            )
        if samples < k or (k == 1 and samples != 1):
            raise ValueError(f"found {found} in mode {self.mode}; wanted --samples {k if k == 1 else f'{k} or more'}")
        return samples, temperature
