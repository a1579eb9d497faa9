"""Tasks of lm-evaluation-harness (lm_eval, an optional extra) on our own engine: adapters are served and probed.

The presets are the tasks and flags behind the baselines: greedy, seed 42, contexts of 4,096 tokens, no chat template.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rft.overlay.installer import pip_install

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.lora.request import LoRARequest

SEED = 42
MAX_MODEL_LEN = 4096
MAX_GEN_TOKENS = 256  # lm_eval's own default, for tasks that set none


@dataclass(frozen=True)
class Preset:
    """One task with its number of examples, and the published scores of Qwen3-1.7B-Base, in percent, by metric."""

    task: str
    shots: int | None  # None: the task's own
    baseline: dict[str, float]
    runs_code: bool = False
    modules: tuple[str, ...] = ()  # that the task imports beside lm_eval's own


# Scores: lm_eval with vLLM, temperature 0, seed 42; they place a result, and are of another model than gpt-oss.
PRESETS = {
    "gsm8k_0shot": Preset("gsm8k", 0, {"exact_match,flexible-extract": 14.71, "exact_match,strict-match": 0.0}),
    "gsm8k_4shot": Preset("gsm8k", 4, {"exact_match,flexible-extract": 67.48, "exact_match,strict-match": 59.14}),
    "gsm8k_8shot": Preset("gsm8k", 8, {"exact_match,flexible-extract": 69.60, "exact_match,strict-match": 68.92}),
    "gsm8k_cot_8shot": Preset("gsm8k_cot", 8, {}),  # for instruction-tuned models
    "math_4shot": Preset("hendrycks_math", 4, {"exact_match,none": 17.68}),
    "minerva_math_4shot": Preset("minerva_math", 4, {}, modules=("sympy", "math_verify", "antlr4")),
    "ifeval_0shot": Preset(
        "ifeval", None, {"prompt_level_strict_acc,none": 22.00, "inst_level_strict_acc,none": 33.81}
    ),
    "mbpp_3shot": Preset("mbpp", 3, {"pass_at_1,none": 55.8}, runs_code=True),
    "humaneval_0shot": Preset("humaneval", 0, {"pass@1,create_test": 48.78}, runs_code=True),
}


def require_lm_eval(presets: Iterable[Preset] = ()) -> None:
    """Raise ValueError where the optional extra, or what a preset's task needs of it, is not installed."""
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        raise ValueError(f"found no lm_eval; {pip_install()} lm-eval") from None
    for preset in presets:
        if missing := [module for module in preset.modules if not find_spec(module)]:
            raise ValueError(f"task {preset.task}: found no {', '.join(missing)}; {pip_install()} 'lm-eval[math]'")


def served_model(llm: "LLM", lora_request: "LoRARequest | None", chat: bool):
    """An `lm_eval` model over a running engine; generative tasks only.

    Args:
        llm: a `vllm.LLM` that serves the model, base or adapter.
        lora_request: vLLM's, where the adapter is served natively.
        chat: prompts come through the chat template, and only the final Harmony message is an answer.
    """
    from lm_eval.api.model import LM
    from vllm import SamplingParams

    from rft.grading import final_message, open_channel
    from rft.hooks.chat_date import dated

    tokenizer, limit = llm.get_tokenizer(), llm.llm_engine.model_config.max_model_len

    class Served(LM):
        tokenizer_name = tokenizer.name_or_path

        def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
            prompts, params = [], []
            for request in requests:
                context, options = request.args
                tokens = tokenizer(context, add_special_tokens=False)["input_ids"]
                length = options.get("max_gen_toks", MAX_GEN_TOKENS)
                if len(tokens) + length > limit:
                    raise ValueError(
                        f"task {request.task_name}: found a prompt of {len(tokens)} tokens with {length} to generate, "
                        f"wanted {limit} in all; pass --max-model-len {len(tokens) + length}"
                    )
                stop = options.get("until", [])
                prompts.append({"prompt_token_ids": tokens})
                params.append(
                    SamplingParams(
                        temperature=options.get("temperature", 0.0),
                        top_p=options.get("top_p", 1.0),
                        max_tokens=length,
                        # In a chat the analysis may hold what ends an answer; the cut is made afterwards.
                        stop=None if chat else [stop] if isinstance(stop, str) else stop,
                        skip_special_tokens=not chat,
                        seed=SEED,
                    )
                )
            outputs = llm.generate(prompts, params, lora_request=lora_request, use_tqdm=not disable_tqdm)
            texts = []
            for request, output in zip(requests, outputs, strict=True):
                text = output.outputs[0].text
                if chat:
                    text = final_message(text, open_channel(request.args[0]))[0] or ""
                    until = request.args[1].get("until", [])
                    for stop in [until] if isinstance(until, str) else until:
                        text = text.split(stop)[0]
                texts.append(text)
            return texts

        def loglikelihood(self, requests):
            raise ValueError(
                "found a task that asks for log-likelihoods; wanted one that generates; use lm_eval itself"
            )

        loglikelihood_rolling = loglikelihood

        def apply_chat_template(self, chat_history, add_generation_prompt: bool = True) -> str:
            return tokenizer.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=add_generation_prompt, **dated()
            )

        def chat_template(self, chat_template=False) -> str:
            return tokenizer.chat_template if chat_template else ""

    return Served()


def run_task(
    llm: "LLM", lora_request: "LoRARequest | None", task: str, shots: int | None, chat: bool, **options: object
) -> dict:
    """Results of one task by lm_eval: for it, or for each of its subtasks, metric name to value.

    Args:
        options: further arguments of `lm_eval.simple_evaluate`, such as `limit` and `task_manager`.

    Raises:
        ValueError: lm_eval knows no such task, or the task does not generate.
    """
    from lm_eval import simple_evaluate

    found = simple_evaluate(
        served_model(llm, lora_request, chat),
        tasks=[task],
        num_fewshot=shots,
        apply_chat_template=chat,
        gen_kwargs={"temperature": 0.0},
        random_seed=SEED,
        numpy_random_seed=SEED,
        torch_random_seed=SEED,
        fewshot_random_seed=SEED,
        log_samples=False,
        **options,
    )
    return {
        name: {metric: value for metric, value in metrics.items() if isinstance(value, float)}
        for name, metrics in found["results"].items()
    }
