"""The reward file, loaded the way OpenRLHF loads it."""

import importlib.util
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.hooks import rewards
from rft.hooks.numeric_logs import numeric_only

torch = pytest.importorskip("torch")

REWARD_FILE = Path(__file__).resolve().parents[2] / "rewards" / "reward_func_em.py"
PROMPT = r"<|start|>user<|message|>6*7? Answer in \boxed{}, as in \boxed{42}.<|end|><|start|>assistant"
RIGHT = r"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>\boxed{42}<|return|>"
LOGS = {
    "correctness",
    "correctness_lenient",
    "lenient_disagreement",
    "has_answer",
    "has_boxed",
    "parse_method",
    "boxed_in_final",
    "truncated_response",
    "label_invalid",
}


def load():
    """As openrlhf/utils/agent.py does: by file location, outside of any package."""
    spec = importlib.util.spec_from_file_location("reward_func", REWARD_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reward_func


reward_func = load()


def call(response, label="42", prompt=PROMPT):
    return reward_func([prompt + response], [prompt], [label])


def test_right_and_wrong():
    assert call(RIGHT)["rewards"].tolist() == [1.0]
    assert call(RIGHT.replace("42", "41"))["rewards"].tolist() == [0.0]


def test_a_batch_keeps_its_order():
    responses = [RIGHT, "<|channel|>final<|message|>so 42<|return|>", "<|channel|>analysis<|message|>42"]
    out = reward_func([PROMPT + r for r in responses], [PROMPT] * 3, ["42"] * 3, extra="ignored")
    assert out["rewards"].tolist() == out["scores"].tolist() == [1.0, 1.0, 0.0]
    assert out["extra_logs"]["parse_method"].tolist() == [2.0, 1.0, 0.0]
    assert out["extra_logs"]["has_boxed"].tolist() == [1.0, 0.0, 0.0]
    assert out["extra_logs"]["truncated_response"].tolist() == [0.0, 0.0, 1.0]


def test_the_prompt_is_never_graded():
    assert call("")["rewards"].item() == 0.0
    assert call("<|channel|>final<|message|>no idea<|return|>")["extra_logs"]["has_answer"].item() == 0.0
    cut = PROMPT[20:] + "<|channel|>final<|message|>no idea<|return|>"
    assert reward_func([cut], [PROMPT], ["42"])["rewards"].item() == 0.0


@pytest.mark.parametrize(
    ("prompt", "response", "reward"),
    [
        (PROMPT, r"\boxed{42}<|return|>", 0.0),  # a header must come first
        (PROMPT, r"analysis \boxed{42}", 0.0),
        (PROMPT, r"analysishmassistantfinal\boxed{42}", 1.0),
        ("<|im_start|>assistant\n", r"\boxed{42}<|im_end|>", 1.0),
        ("<|im_start|>assistant\n<think>\n", r"\boxed{42}<|im_end|>", 0.0),
        ("<|im_start|>assistant\n<think>\n", r"\boxed{41}</think>\boxed{42}<|im_end|>", 1.0),
    ],
)
def test_what_the_prompt_leaves_open_decides_what_is_an_answer(prompt, response, reward):
    assert call(response, prompt=prompt)["rewards"].item() == reward


def test_a_query_without_its_prompt_is_an_error():
    with pytest.raises(ValueError, match="does not begin with its prompt"):
        reward_func([r"\boxed{42}"], ["a prompt of some length"], ["42"])


@pytest.mark.parametrize("label", [None, "", r"\frac{1}{2", "notfound", math.nan])
def test_a_label_that_cannot_be_parsed_is_counted_and_excluded(label):
    responses = [RIGHT, RIGHT.replace("42", "41"), ""]
    out = reward_func([PROMPT + r for r in responses], [PROMPT] * 3, [label] * 3)
    assert out["extra_logs"]["label_invalid"].tolist() == [1.0] * 3
    given = out["rewards"]
    assert (given - given.mean()).tolist() == [0.0] * 3  # no advantage, whatever was said
    low, high = 0.0, 1.0  # the narrowest and the widest range that --dynamic_filtering_reward_range makes sense with
    assert not low < out["scores"].mean() < high and not low - 0.5 < out["scores"].mean() < high + 0.5


def test_the_hook_of_the_trainer_takes_every_result():
    """`rft.hooks.rewards.merge` stops the run on anything but one finite number."""
    for label in ("42", "41", None):
        found = rewards.merge([call(RIGHT, label)], "file", "sample")
        assert found["reward"] == float(label == "42")
        assert found["scores"] == (-1.0 if label is None else found["reward"])
        assert set(numeric_only(found["extra_logs"])) == LOGS


def test_the_lenient_profile_is_logged_and_never_the_reward():
    out = call(RIGHT.replace("42", r"42\text{ cm}"))
    assert out["rewards"].item() == out["scores"].item() == 0.0
    assert out["extra_logs"]["correctness_lenient"].item() == out["extra_logs"]["lenient_disagreement"].item() == 1.0
    assert call(RIGHT)["extra_logs"]["lenient_disagreement"].item() == 0.0


@pytest.mark.parametrize("label", [42, 42.0, "42", " 42 "])
def test_numeric_labels(label):
    assert call(RIGHT, label)["rewards"].item() == 1.0


def test_openrlhf_can_turn_every_value_into_a_tensor():
    """What agent.py and experience_maker.py of 0.9.3 do with the result of one call."""
    info = call(RIGHT)
    assert torch.tensor([info["rewards"]]).shape == (1,)
    assert torch.tensor([info["scores"] or info["rewards"]]).shape == (1,)
    for value in info["extra_logs"].values():
        assert torch.tensor([value.flatten()[0].item()]).shape == (1,)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_everything_is_finite_and_of_one_length(responses):
    n = len(responses)
    out = reward_func([PROMPT + r for r in responses], [PROMPT] * n, ["42"] * n)
    assert set(out["extra_logs"]) == LOGS
    for values in (out["rewards"], out["scores"], *out["extra_logs"].values()):
        assert values.shape == (n,) and values.dtype == torch.float32
        assert all(math.isfinite(v) for v in values.tolist())
    assert set(out["rewards"].tolist()) <= {0.0, 1.0}


@given(st.text(), st.text(alphabet="0123456789{}\\boxed<|>channelfimsg ", max_size=80))
def test_a_prompt_full_of_answers_changes_nothing(prompt, response):
    """Reward and logs are those of the response alone, whatever the prompt says."""
    prompt += r"<|channel|>final<|message|>\boxed{42}<|end|><|start|>assistant"
    out, alone = call(response, prompt=prompt), call(response, prompt="<|start|>assistant")
    for name, value in out["extra_logs"].items():
        assert value.tolist() == alone["extra_logs"][name].tolist(), name
