"""What the tests of the preflight share: options of two launches, gpt-oss's sizes, how a line of the page is judged."""

from argparse import Namespace

from rft.options import command
from rft.runs.preflight.lines import NO_GO

TINY = (
    "--pretrain M --attn_implementation eager --lora_rank 8 --target_modules q_proj k_proj v_proj o_proj "
    "--prompt_max_len 96 --generate_max_len 64 --actor_num_gpus_per_node 1 --vllm_num_engines 1 --zero_stage 3 "
    "--prompt_data P.jsonl --label_key label --remote_rm_url R.py --advantage_estimator group_norm --init_kl_coef 0 "
    "--rollout_batch_size 32 --n_samples_per_prompt 8 --micro_rollout_batch_size 64 --train_batch_size 256 "
    "--micro_train_batch_size 64 --actor_learning_rate 3e-3"
)

CONFIG_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24,
    "vocab_size": 201088, "max_position_embeddings": 131072, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
CONFIG_120B = CONFIG_20B | {"num_local_experts": 128, "num_hidden_layers": 36}
EIGHT_GPUS = (
    "--actor_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 2 --vllm_gpu_memory_utilization 0.85 "
    "--lora_rank 32 --prompt_max_len 1024 --generate_max_len 4096 --rollout_batch_size 16 --train_batch_size 16 "
    "--micro_train_batch_size 1 --micro_rollout_batch_size 1"
)


def options(text: str = "") -> Namespace:
    """The tiny launcher's options, then these."""
    return command.parse(["python", "-m", command.MODULE, *TINY.split(), *text.split()])


BASE = options()


def changed(**values) -> Namespace:
    """The tiny launcher's options with these values, without parsing anything: for hundreds of examples."""
    return Namespace(**vars(BASE) | values)


def verdicts(found: list) -> set[str]:
    return {line.verdict for line in found}


def refused(found: list, measured: str, repair: str, verdict: str = NO_GO) -> None:
    """One line says `measured` with this verdict, and its repair names `repair`."""
    lines = [line for line in found if measured in line.measured]
    assert len(lines) == 1 and lines[0].verdict == verdict and repair in lines[0].repair, found
