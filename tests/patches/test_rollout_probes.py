"""Probes of how rollouts are gathered: what dynamic filtering leaves when the data ends."""

import json
import types

import pytest


class Reply:
    """Stands for an object reference: one group of an engine, of two samples, right as `label` says."""

    def __init__(self, prompt: str, label: str):
        fields = {"prompt": prompt, "label": label, "observation_tokens": [1, 2, 3], "action_ranges": [(1, 3)]}
        fields |= {"rollout_log_probs": None, "truncated": False, "extra_logs": {}}
        self.group = [fields | {"reward": reward, "scores": reward} for reward in map(float, label.split())]


@pytest.fixture
def generator(tmp_path, monkeypatch):
    """A function from labels, one a prompt, to a generator of rollouts of four prompts under dynamic filtering."""
    from openrlhf.trainer.ppo_trainer import prepare_datasets
    from openrlhf.trainer.ppo_utils.experience_maker import SamplesGenerator
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    monkeypatch.setattr("ray.get", lambda refs: refs.group if isinstance(refs, Reply) else refs)
    monkeypatch.setattr("ray.wait", lambda refs, **options: (refs[:1], refs[1:]))
    monkeypatch.setattr("ray.cancel", lambda ref: None)

    def make(*labels: str):
        lines = [json.dumps({"input": f"{n}", "label": label}) + "\n" for n, label in enumerate(labels)]
        (tmp_path / "prompts.jsonl").write_text("".join(lines))
        args = types.SimpleNamespace(
            prompt_data=str(tmp_path / "prompts.jsonl"), prompt_data_probs=None, prompt_split="train", seed=0,
            max_samples=99, input_key="input", label_key="label", input_template=None, apply_chat_template=False,
            eval_dataset=None, n_samples_per_prompt=2, train_batch_size=8, num_episodes=1, max_epochs=1,
            param_dtype="bf16", prompt_order="file", rollout_batch_size=4, dynamic_filtering=True,
            dynamic_filtering_reward_range=(0, 1), vllm_enable_sleep=False, rollout_seeds="request", reward_timeout=9,
        )  # fmt: skip
        strategy = DeepspeedStrategy(seed=0, args=args)
        loader, *_ = prepare_datasets(strategy, None)
        engine = types.SimpleNamespace(
            get_num_unfinished_requests=types.SimpleNamespace(remote=lambda: 0),
            generate_responses=types.SimpleNamespace(remote=lambda **call: Reply(call["prompt"], call["label"])),
        )
        return SamplesGenerator(strategy, loader, None, None, [engine])

    return make


def test_groups_that_passed_the_filter_are_kept_when_the_data_ends(generator):
    """Prompts 4 to 9 make up the second rollout, and only 5 and 8 of them pass."""
    made = generator(*["0 1"] * 4, "0 0", "1 0", "1 1", "0 0", "1 0", "1.5 0.5")
    samples, rate, consumed, exhausted = made.generate_samples(global_step=0)
    assert ([s.prompts[0] for s in samples[::2]], rate, consumed, exhausted) == (list("0123"), 100, 4, False)
    samples, rate, consumed, exhausted = made.generate_samples(global_step=1)
    kept = [sample.prompts[0] for sample in samples[::2]]
    assert {"5", "8"} <= set(kept), "what has passed is trained on"
    # In its full size, in the order of the prompts, filled up with what has no variance.
    assert kept == ["4", "5", "6", "8"]
    assert [s.rewards.item() for s in samples] == [0, 0, 1, 0, 1, 1, 1, 0]
    assert (consumed, exhausted) == (6, False) and rate == pytest.approx(100 * 2 / 6)
    end_of_data = made.prompts_dataloader.state_dict()
    assert made.generate_samples(global_step=2) == ([], None, 0, True)
    assert len(made.generate_samples(global_step=2)[0]) == 8, "the next episode"

    # A run resumed behind that rollout is at the end of the data as well, not at its beginning.
    resumed = generator(*["0 1"] * 4, "0 0", "1 0", "1 1", "0 0", "1 0", "1.5 0.5")
    resumed.prompts_dataloader.load_state_dict(end_of_data)
    assert resumed.generate_samples(global_step=2) == ([], None, 0, True)


def test_no_rollout_is_made_of_rejected_groups_alone(generator):
    made = generator(*["1 1"] * 6)
    samples, rate, consumed, exhausted = made.generate_samples(global_step=0)
    assert (samples, rate, consumed, exhausted) == ([], 0, 6, True)


def test_fewer_prompts_than_a_rollout_are_left_out_as_ever(generator):
    made = generator(*["0 1"] * 6)
    assert len(made.generate_samples(global_step=0)[0]) == 8
    assert made.generate_samples(global_step=1) == ([], None, 0, True)
