"""What the trainer's main makes of its options before it trains, as far as checks depend on it."""

from argparse import Namespace

from rft.options import batches, init_adapter
from rft.options.actor import choose, read_config
from rft.options.loss import needs_own_model


def settle(args: Namespace) -> Namespace:
    """Set what openrlhf/cli/train_ppo_ray.py sets after parsing, and the counts that are made of several options.

    Returns:
        `args`, changed; new are `actors` (GPUs of the actor), `engines` and `own_reference` (whether a second model is
        loaded).
    """
    if args.agent_func_path:
        args.remote_rm_url = "agent"
    if args.advantage_estimator != "gae":
        args.critic_pretrain = None
    elif args.critic_pretrain is None:
        args.critic_pretrain = args.pretrain if args.remote_rm_url else args.reward_pretrain
    if args.ring_attn_size > 1:
        args.packing_samples = True
    batches.settle(args)
    if args.packing_samples and "flash_attention" not in args.attn_implementation:
        args.attn_implementation = "flash_attention_2"
    init_adapter.settle(args)
    choose(args, read_config(args.pretrain))
    if not args.colocate_all_models:
        args.vllm_enable_sleep = False
    if args.async_train and args.stop_rules == "default":
        args.stop_rules = "off"  # ours: rft.options.refusals.require_stoppable
    args.actors = args.actor_num_nodes * args.actor_num_gpus_per_node
    args.engines = args.vllm_num_engines or 0
    args.own_reference = args.init_kl_coef > 0 and needs_own_model(args)
    return args
