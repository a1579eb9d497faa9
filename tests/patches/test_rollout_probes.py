"""Probes of how rollouts are gathered: the order of the prompts, their seeds, and what dynamic filtering leaves."""

import json
import types

import pytest
import torch
from layouts import samples_generator


class Engine:
    """The handle of a rollout engine that keeps the calls it gets."""

    def __init__(self):
        self.calls = []
        self.get_num_unfinished_requests = types.SimpleNamespace(remote=lambda: 0)
        self.generate_responses = types.SimpleNamespace(remote=lambda **call: self.calls.append(call))


def test_each_prompt_takes_its_own_seeds_along(monkeypatch):

    engine, generator = Engine(), object.__new__(samples_generator())
    generator.args = types.SimpleNamespace(
        enable_vllm_is_correction=False, n_samples_per_prompt=8, rollout_seeds="request", seed=7, reward_timeout=60
    )
    generator.vllm_engines, generator.tokenizer = [engine], None
    monkeypatch.setattr("ray.get", list)
    generator._dispatch_prompts_to_vllm(["a", "b", "a"], ["1", "2", "3"], first_index=5, global_step=2)
    wanted = {"reward_timeout": 60, "seed": 7, "step": 2}
    assert [call.get("place") for call in engine.calls] == [
        wanted | {"prompt_index": n, "occurrence": seen} for n, seen in ((5, 0), (6, 0), (7, 1))
    ]


@pytest.fixture
def prompts_in_order(tmp_path, monkeypatch):
    """A function from seed and --prompt_order to the order in which 40 prompts, numbered in their file, are trained."""
    from openrlhf.trainer.ppo_trainer import prepare_datasets
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)  # the driver is no rank
    lines = [json.dumps({"input": f"prompt {n}", "label": str(n)}) for n in range(40)]
    (tmp_path / "prompts.jsonl").write_text("".join(line + "\n" for line in lines))

    def order(seed: int, prompt_order: str) -> list[int]:
        args = types.SimpleNamespace(
            prompt_data=str(tmp_path / "prompts.jsonl"), prompt_data_probs=None, prompt_split="train", seed=seed,
            max_samples=40, input_key="input", label_key="label", input_template=None, apply_chat_template=False,
            eval_dataset=None, n_samples_per_prompt=1, train_batch_size=1, num_episodes=1, max_epochs=1,
            param_dtype="bf16", prompt_order=prompt_order, dataloader_num_workers=0,
        )  # fmt: skip
        torch.seed()  # whatever happened before must not matter
        loader, *_ = prepare_datasets(DeepspeedStrategy(seed=seed, args=args), tokenizer=None)
        return [int(label) for _, _, (label,) in loader]

    with torch.random.fork_rng(devices=[]):
        yield order


def test_prompts_are_shuffled_by_the_seed(prompts_in_order):
    orders = [prompts_in_order(seed, "shuffled") for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(40))


def test_prompts_keep_the_order_of_their_file(prompts_in_order):
    assert prompts_in_order(3, "file") == list(range(40))


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
            dataloader_num_workers=0, dynamic_filtering_reward_range=(0, 1), vllm_enable_sleep=False,
            rollout_seeds="request", reward_timeout=9,
        )  # fmt: skip
        strategy = DeepspeedStrategy(seed=0, args=args)
        loader, *_ = prepare_datasets(strategy, None)
        engine = types.SimpleNamespace(
            get_num_unfinished_requests=types.SimpleNamespace(remote=lambda: 0),
            generate_responses=types.SimpleNamespace(remote=lambda **call: Reply(call["prompt"], call["label"])),
        )
        return samples_generator()(strategy, loader, None, None, [engine])

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
