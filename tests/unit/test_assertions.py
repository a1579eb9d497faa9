"""What OpenRLHF asserts of its options is refused before; judged by its assertions, read in the installed source."""

import ast
import re
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_options import TINY, options

from rft.options import check, command
from rft.options.assertions import faults
from rft.options.loss import needs_own_model
from rft.options.settled import settle

PACKAGE = command.installed_source().parents[1]


def assertions(file: str) -> list[tuple[list[str], str]]:
    """Each `assert` of a file: the conditions of the `if`s around it, and its own."""
    found = []

    def walk(nodes: list[ast.stmt], around: list[str]) -> None:
        for node in nodes:
            if isinstance(node, ast.Assert):
                found.append((around, ast.unparse(node.test)))
            inside = [*around, ast.unparse(node.test)] if isinstance(node, ast.If) else around
            walk(getattr(node, "body", []), inside)
            walk(getattr(node, "orelse", []), [*around, f"not ({inside[-1]})"] if inside != around else around)

    walk(ast.parse((PACKAGE / file).read_text()).body, [])
    return found


MAIN = assertions("cli/train_ppo_ray.py")


def failing(args: Namespace) -> list[str]:
    """The assertions of the trainer's main and of `train` that fail on settled options."""
    names = {"__name__": "__main__", "args": args, "needs_own_model": needs_own_model}
    return [test for around, test in MAIN if all(eval(one, names) for one in around) and not eval(test, names)]


def settled(text: str) -> Namespace:
    """Of the tiny launcher's command and some words, without a refusal."""
    return settle(command.trainer_parser().parse_args([*TINY.split(), *text.split()]))


CRITIC = "--advantage_estimator gae --colocate_critic_reward"
FILTER = "--dynamic_filtering --dynamic_filtering_reward_range"
OF_MAIN = [
    ("--advantage_estimator rloo --n_samples_per_prompt 1", "--n_samples_per_prompt 8"),
    ("--packing_samples --vllm_num_engines 0", "--vllm_num_engines 1"),
    ("--async_train --vllm_enable_sleep --colocate_all_models --enable_vllm_is_correction", "--vllm_enable_sleep out"),
    ("--eval_dataset E.jsonl --remote_rm_url=", "--remote_rm_url rewards/reward_func_em.py"),
    (f"{FILTER} 1 1", "--dynamic_filtering_reward_range 0 1"),
    (f"{FILTER} 0 1 --remote_rm_url=", "--remote_rm_url rewards/reward_func_em.py"),
    (f"{FILTER} 0 1 --n_samples_per_prompt 1 --advantage_estimator reinforce", "--n_samples_per_prompt 8"),
    ("--actor_num_gpus_per_node 8", "--micro_rollout_batch_size 8"),
    ("--rollout_batch_size 3 --n_samples_per_prompt 5", "--micro_rollout_batch_size 5"),
    ("--colocate_all_models --actor_num_gpus_per_node 4 --vllm_num_engines 3", "--vllm_num_engines 4"),
    ("--colocate_all_models --actor_num_gpus_per_node 3 --vllm_tensor_parallel_size 2", "--vllm_num_engines 3 --vllm_"),
    ("--colocate_actor_ref --init_kl_coef 0.1 --separate_reference_model", "--ref_num_gpus_per_node 1"),
    ("--colocate_all_models --init_kl_coef 0.1 --lora_rank 0", "--ref_num_gpus_per_node 1"),
    (f"{CRITIC} --reward_num_gpus_per_node 2", "--reward_num_nodes 1 --reward_num_gpus_per_node 8"),
]  # fmt: skip
if "partial_rollout" in command.trainer_parser().parse_args(TINY.split()):
    OF_MAIN.append(("--partial_rollout", "leave --partial_rollout out"))
OF_OTHERS = [
    ("--load_in_4bit --param_dtype fp16", "--param_dtype bf16"),
    ("--ds_tensor_parallel_size 2 --param_dtype fp16 --actor_num_gpus_per_node 2", "--param_dtype bf16"),
    ("--dual_clip 1", "--dual_clip 3"),
    ("--async_train --enable_vllm_is_correction --async_queue_size 0", "--async_queue_size 1"),
    ("--overlong_buffer_len 65", "--overlong_buffer_len 16"),
    ("--stop_properly_penalty_coef 1.5", "--stop_properly_penalty_coef 0"),
    ("--prompt_data a.jsonl,b.jsonl --prompt_data_probs 1", "--prompt_data_probs 0.5,0.5"),
    ("--agent_func_path agent.txt", "--agent_func_path FILE.py"),
    ("--micro_train_batch_size 0", "set 1 or more"),
    ("--micro_rollout_batch_size 0 --ring_attn_size 0", "set 1 or more"),
]


@pytest.mark.parametrize(("text", "repair"), OF_MAIN + OF_OTHERS)
def test_trainer_preflight_and_launcher_refuse_with_one_message(text, repair):
    with pytest.raises(ValueError, match=r"\n  found:  (.|\n)*\n  wanted: (.|\n)*\n  repair: ") as preflight:
        options(text)
    assert repair in str(preflight.value).splitlines()[-1]
    with pytest.raises(SystemExit) as trainer:
        check(command.trainer_parser().parse_args([*TINY.split(), *text.split()]))
    assert trainer.value.code == f"error: {preflight.value}"


def test_each_assertion_of_the_trainers_main_has_a_refused_command():
    seen = {test for text, _ in OF_MAIN for test in failing(settled(text))}
    assert seen == {test for _, test in MAIN}


@pytest.mark.parametrize("text", [text for text, _ in OF_MAIN])
def test_following_the_repairs_satisfies_the_assertions(text):
    assert failing(settled(text))
    for _ in range(3):
        try:
            assert not failing(options(text))
            return
        except ValueError as refusal:
            repair = str(refusal).rpartition("repair: ")[2]
        leave = re.fullmatch("leave (.*) out", repair)
        text = text.replace(leave[1], "") if leave else f"{text} {repair}"
    raise AssertionError(text)


@settings(max_examples=300)
@given(
    batch=st.tuples(st.integers(1, 9), st.integers(2, 4), st.integers(1, 9)),
    gpus=st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(0, 3), st.integers(1, 2), st.integers(1, 4)),
    flags=st.tuples(*[st.booleans()] * 8),
)
def test_commands_are_refused_exactly_where_an_assertion_fails(batch, gpus, flags):
    names = ("rollout_batch_size", "n_samples_per_prompt", "micro_rollout_batch_size", "actor_num_gpus_per_node")
    names += ("actor_num_nodes", "vllm_num_engines", "vllm_tensor_parallel_size", "ref_num_gpus_per_node")
    switches = ("colocate_all_models", "colocate_actor_ref", "separate_reference_model", "packing_samples")
    switches += ("vllm_enable_sleep", "async_train", "dynamic_filtering", "colocate_critic_reward")
    args = command.trainer_parser().parse_args([*TINY.split(), "--init_kl_coef", "0.1"])
    args = settle(Namespace(**vars(args) | dict(zip(names + switches, batch + gpus + flags, strict=True))))
    assert bool(list(faults(args))) == bool(failing(args))


def only(file: str, condition: str) -> str:
    """The assertion of another file of which `condition` is a part; the test fails where upstream has another one."""
    (found,) = {test for _, test in assertions(file) if condition in test}
    return found


@pytest.mark.parametrize(
    ("file", "part", "option", "good", "bad"),
    [
        ("models/loss.py", "dual_clip", "dual_clip", [1.01, 3.0], [1.0, 0.0, -2.0]),
        ("trainer/ppo_utils/length_penalty.py", "overlong_buffer_len", "overlong_buffer_len", [0.0, 64.0], [64.5, 1e9]),
        ("trainer/ppo_utils/length_penalty.py", "penalty_coef", "stop_properly_penalty_coef", [0.0, 1.0], [-0.1, 1.1]),
        ("trainer/ray/vllm_engine.py", "endswith", "agent_func_path", ["none/agent.py"], ["agent", "a.py.txt"]),
        ("models/actor.py", "param_dtype", "param_dtype", ["bf16"], ["fp16"]),
        ("models/model.py", "param_dtype", "param_dtype", ["bf16"], ["fp16"]),
    ],
)
def test_other_assertions_hold_exactly_for_what_is_accepted(file, part, option, good, bad):
    test, base = only(file, part), vars(settled("--load_in_4bit"))
    for value in good + bad:
        args = base | {option: value}
        names = args | {"max_new_tokens": args["generate_max_len"]}  # of 0.9.10's function
        assert eval(test, names) == (value in good) == (not list(faults(Namespace(**args))))


def test_an_agents_file_without_an_executor_is_refused_where_it_can_be_read(tmp_path: Path):
    agent = tmp_path / "agent.py"
    agent.write_text("class Agent: pass\n")
    with pytest.raises(ValueError, match=r"found:  --agent_func_path .*agent.py\n  wanted: class AgentExecutor"):
        options(f"--agent_func_path {agent}")
    for source in ("class AgentExecutor: pass\n", "from mine import *\n", "from mine import Mine as AgentExecutor\n"):
        agent.write_text(source)
        assert options(f"--agent_func_path {agent}").agent_func_path == str(agent)


def test_asynchronous_training_has_no_stop_rules_in_the_trainer_too():
    args = command.trainer_parser().parse_args([*TINY.split(), "--async_train", "--enable_vllm_is_correction"])
    check(args)
    assert args.stop_rules == "off" and not hasattr(args, "own_reference")
