"""Where the processes of a run are in a cluster of two nodes, by the real driver and a real Ray."""

import types

import pytest

SECONDS = 600  # that only a hang exceeds


@pytest.fixture
def two_nodes(monkeypatch):
    """This process is a driver on a node that Ray would rather not choose for the policy, nor for the controller.

    Ray packs a group onto the node that it fills best: the driver's, with one GPU, would be the engine's. The driver's
    one CPU is that GPU's.
    """
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # nothing of it is reached from beyond this machine
    options = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(
        initialize_head=True, head_node_args=options | {"num_cpus": 8, "num_gpus": 2, "node_ip_address": "127.0.0.1"}
    )
    cluster.add_node(num_cpus=1, num_gpus=1, node_ip_address="127.0.0.2", **options)
    cluster.wait_for_nodes()
    # A driver joins the node that this machine has begun last.
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    (own,) = (node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id())
    assert own["Resources"]["GPU"] == 1
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.parametrize("shared", [False, True], ids=["GPUs of its own", "GPUs shared with the engine"])
def test_what_writes_the_files_of_a_run_is_on_the_drivers_node(two_nodes, monkeypatch, shared):
    import ray
    from openrlhf.cli import train_ppo_ray
    from openrlhf.trainer import ppo_trainer
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    class Process:
        """In place of controller, rank and engine: says where it is."""

        def __init__(self, *args, **kwargs):
            pass

        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

        def get_max_steps(self) -> int:
            return 1

        def get_master_addr_port(self):
            return "127.0.0.1", 1

        init_model_from_pretrained = fit = save_model = lambda self, *args, **kwargs: None

    def engines(count, *args, **kwargs):
        """As create_vllm_engines places them."""
        group = args[7]
        if group is None:
            group = placement_group([{"GPU": 1, "CPU": 1}] * count, strategy="PACK")
            ray.get(group.ready())
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        part = 0.2 if shared else 1
        return [ray.remote(Process).options(num_cpus=part, num_gpus=part, scheduling_strategy=strategy).remote()]

    found = {}

    def results(refs, actors, **_):
        if "trainer" in actors and not found:
            group = actors["policy"]._actor_handlers
            handles = {"controller": actors["trainer"], "engine": actors["vLLM engine"][0]}
            handles |= {f"policy rank {rank}": handle for rank, handle in enumerate(group)}
            found.update({name: ray.get(handle.node.remote(), timeout=SECONDS) for name, handle in handles.items()})
        return ray.get(refs, timeout=SECONDS)

    args = types.SimpleNamespace(
        colocate_actor_ref=False, colocate_all_models=shared, vllm_num_engines=2 if shared else 1, ring_attn_size=1,
        actor_num_nodes=2 if shared else 1, actor_num_gpus_per_node=1, ds_tensor_parallel_size=1, init_kl_coef=0,
        critic_pretrain=None, remote_rm_url=["r"], async_train=False, pretrain="p", prompt_max_len=1, max_len=None,
        generate_max_len=1, temperature=1, top_p=1, reward_pretrain=None, save_path="saved", agent_func_path=None,
        vllm_tensor_parallel_size=1, seed=0, full_determinism=False, enable_prefix_caching=False, enforce_eager=True,
        vllm_gpu_memory_utilization=0.5, vllm_enable_sleep=False,
    )  # fmt: skip
    monkeypatch.setattr(ppo_trainer, "PPOTrainer", ray.remote(Process))
    monkeypatch.setattr(train_ppo_ray, "PolicyModelActor", ray.remote(Process))
    monkeypatch.setattr(train_ppo_ray, "create_vllm_engines", engines)
    monkeypatch.setattr(train_ppo_ray, "get_strategy", lambda args: types.SimpleNamespace(print=lambda args: None))
    monkeypatch.setattr(train_ppo_ray.engine_options, "of_run", lambda args: None)
    monkeypatch.setattr(train_ppo_ray.watch, "get", results)
    monkeypatch.delenv("METRICS_LOG_DIR", raising=False)
    monkeypatch.delenv("RFT_RUN_DIR", raising=False)
    train_ppo_ray.train(args)
    here = ray.get_runtime_context().get_node_id()
    assert found["policy rank 0"] == found["controller"] == here, found
    if not shared:
        assert found["engine"] != here, "it takes what the policy leaves"
