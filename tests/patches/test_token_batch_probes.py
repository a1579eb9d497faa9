"""Micro-batches by tokens in OpenRLHF's own experience maker and replay buffer: every sample keeps what is its own."""

import pytest
from experiences import BUDGET, LENGTHS, PROMPT, maker, rollout
from ranks import run_module


def scored(made) -> list:
    """What the experience maker makes of a rollout, with log-probabilities that name the sample."""
    return made.make_experience_batch(rollout())


def by_sample(experiences: list) -> dict[int, tuple]:
    """Of each sample by its number: tokens, group's std, log-probabilities and advantages of its actions."""
    found = {}
    for experience in experiences:
        for row, number in enumerate(experience.info["number"]):
            chosen = experience.action_mask[row].bool()
            tokens = experience.sequences[row][experience.attention_mask[row].bool()].tolist()
            std = float(experience.info["group_reward_std"][row])
            values = (experience.action_log_probs[row][chosen], experience.advantages[row][chosen])
            found[int(number)] = (tokens, std, *(value.tolist() for value in values))
    return found


def test_the_trainer_settles_a_budget_before_it_judges_sizes_in_samples(checkpoint):
    """16 samples make fewer micro-batches of 8 than there are ranks, which upstream asserts; with a budget the trainer
    goes on, to an address that Ray rejects."""
    words = "--remote_rm_url none.py --vllm_num_engines 1 --actor_num_gpus_per_node 4 --micro_rollout_batch_size 8 "
    words += "--rollout_batch_size 8 --n_samples_per_prompt 2 --train_batch_size 16 --advantage_estimator group_norm "
    words += "--lora_rank 8 --target_modules q_proj --micro_train_tokens 9000 --loss_normalization batch"
    command = ["openrlhf.cli.train_ppo_ray", "--pretrain", checkpoint, *words.split()]
    done = run_module(*command, environment={"RAY_ADDRESS": "nowhere"})
    assert done.returncode == 1 and "AssertionError" not in done.stdout, done.stdout[-3000:]
    assert "nowhere" in done.stdout.splitlines()[-1], done.stdout[-3000:]


def require_patch():
    from openrlhf.trainer.ppo_utils import experience_maker

    assert hasattr(experience_maker, "token_batches")


def test_samples_keep_their_rewards_whatever_micro_batch_they_are_in():
    require_patch()
    alone = by_sample(scored(maker(use_dynamic_batch=False)))
    packed = scored(maker())
    assert [len(experience.sequences) for experience in packed] != [1] * len(LENGTHS) and len(packed) % 2 == 0
    assert all(experience.attention_mask.sum() <= BUDGET for experience in packed)
    assert by_sample(packed) == alone
    assert sorted(alone) == list(range(len(LENGTHS))) and alone[5][0] == [15] * (PROMPT + 7)


@pytest.mark.parametrize("kind", ["ppo", "gspo"])
def test_every_optimizer_step_trains_on_its_own_samples(kind):
    """On each of two ranks: as many micro-batches, the same steps, and weights that are one mean over each step."""
    require_patch()
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    from rft.hooks import token_batches

    made = maker(policy_loss_type=kind)
    experiences = token_batches.for_training(scored(made), made.args)
    half, kept, steps = len(experiences) // 2, [], {0: [], 1: []}
    for rank in (0, 1):
        buffer = NaiveReplayBuffer(sample_batch_size=4, dynamic_batch=True)
        assert buffer.sample_batch_size == 1
        for experience in experiences[rank * half : (rank + 1) * half]:
            buffer.append(experience)
        assert len(buffer) == half == len(buffer.dynamic_loss_scale)
        step = 0
        for number in range(half):
            batch = buffer.collate_fn([buffer[number]])
            assert batch.attention_mask.sum() <= BUDGET
            kept.append(batch)
            of_step = [int(value) for value in batch.info["number"]]
            weight = len(of_step) if kind == "gspo" else int(batch.action_mask.sum())
            steps[step].append((of_step, weight, buffer.dynamic_loss_scale[number]))
            step += buffer.dynamic_optimizer_step[number]
        assert step == 2
        buffer.clear()
        assert len(buffer) == 0 == len(buffer.dynamic_optimizer_step)
    assert by_sample(kept) == by_sample(scored(maker(use_dynamic_batch=False)))
    for step, batches in steps.items():
        assert sorted(number for numbers, _, _ in batches for number in numbers) == list(range(4 * step, 4 * step + 4))
        total = sum(weight for _, weight, _ in batches)
        # DeepSpeed averages over the two ranks.
        assert [scale / 2 for _, _, scale in batches] == pytest.approx([weight / total for _, weight, _ in batches])


def test_a_rollout_of_half_a_step_is_refused():
    require_patch()
    from rft.hooks import token_batches

    made = maker(train_batch_size=6)
    with pytest.raises(ValueError, match=r"found 8 samples(.|\n)*a multiple of 6(.|\n)*--train_batch_size"):
        token_batches.for_training(scored(made), made.args)
