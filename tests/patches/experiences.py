"""A rollout of eight samples and OpenRLHF's own experience maker, as far as it needs no actor."""

import types

import torch

LENGTHS = (3, 11, 5, 2, 9, 7, 4, 8)  # action tokens; two prompts of four samples
PROMPT, BUDGET = 4, 20


def rollout(cut: tuple[int, ...] = ()) -> list:
    """One sample a length, whose tokens, reward and log-probabilities tell which one it is; those of `cut` say that
    they were cut at the length limit."""
    from openrlhf.trainer.ppo_utils.experience_maker import Experience

    made = []
    for number, length in enumerate(LENGTHS):
        tokens = torch.full((1, PROMPT + length), 10 + number)
        mask = torch.zeros(1, PROMPT + length - 1, dtype=torch.long)
        mask[:, PROMPT - 1 :] = 1
        info = {"total_length": torch.tensor([PROMPT + length]), "number": torch.tensor([float(number)])}
        info["truncated"] = torch.tensor([number in cut])
        fields = {"sequences": tokens, "attention_mask": torch.ones_like(tokens), "action_mask": mask, "info": info}
        made.append(Experience(**fields, rewards=torch.tensor([float(number**2)]), prompts=["p"], labels=["l"]))
    return made


def maker(**changes):
    """OpenRLHF's experience maker, as far as it needs no actor, and its options."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    args = types.SimpleNamespace(
        actor_num_gpus_per_node=2, actor_num_nodes=1, advantage_estimator="group_norm", ds_tensor_parallel_size=1,
        gamma=1.0, mask_truncated=False, micro_rollout_batch_size=1, micro_rollout_tokens=BUDGET,
        micro_train_tokens=BUDGET, n_samples_per_prompt=4, no_advantage_std_norm=False, overlong_buffer_len=None,
        policy_loss_type="ppo", reward_clip_range=(-10, 10), ring_attn_size=1, stop_properly_penalty_coef=None,
        train_batch_size=4, use_dynamic_batch=True,
    )  # fmt: skip
    vars(args).update(changes)
    made = object.__new__(RemoteExperienceMaker)
    made.args, made.strategy, made.advantage_estimator = (
        args,
        types.SimpleNamespace(args=args),
        args.advantage_estimator,
    )
    made.make_experience = with_log_probs
    made.kl_ctl, made.tokenizer = types.SimpleNamespace(value=0.0), types.SimpleNamespace(pad_token_id=0)
    return made


def with_log_probs(samples: list) -> list:
    """In the place of the models' passes, which need Ray: log-probabilities that name the sample, and no KL."""
    for experience in samples:
        numbers = experience.info["number"][:, None]
        experience.action_log_probs = -numbers * experience.action_mask
        experience.kl = torch.zeros_like(experience.action_log_probs)
        experience.info["kl"] = experience.kl.sum(-1)
    return samples
