"""A small run under `rft.hooks.watch`, in the cluster of RAY_ADDRESS: two ranks, and a trainer that waits for them.

python ray_watch.py raise     rank 1 raises
python ray_watch.py rank      rank 1 is killed, rank 0 waits for ever
python ray_watch.py helper    an actor that only the trainer knows is killed
python ray_watch.py agents    the trainer ends actors of its own in every way; rank results are printed
"""

import os
import signal
import sys
import time
import types

import ray

from rft.hooks import watch


@ray.remote(num_cpus=0)
class Rank:
    def pid(self):
        return os.getpid()

    def work(self, scenario, rank):
        if scenario == "agents":
            return rank
        if scenario == "raise" and rank == 1:
            raise ValueError("the reward of batch 7 is not a number")
        time.sleep(600)


@ray.remote(num_cpus=0)
class Tool:
    """What an agent may start for itself."""

    def own(self):
        self.tool = Tool.remote()
        return ray.get(self.tool.ready.remote())

    def ready(self):
        return True

    def leave(self):
        ray.actor.exit_actor()


def use_tools():
    """End four tools: by `ray.kill`, by themselves, after their work, and with their owner."""
    tools = [Tool.remote() for _ in range(4)]
    ray.get([tool.ready.remote() for tool in tools[:3]] + [tools[3].own.remote()])
    ray.kill(tools[0])
    tools[1].leave.remote()
    tools[2].__ray_terminate__.remote()
    ray.kill(tools[3])
    time.sleep(8)  # four looks at the actor table
    return tools


@ray.remote(num_cpus=0, max_concurrency=2)
class Trainer:
    def __init__(self):
        self.helper = Rank.remote()
        given_up = Rank.remote()  # the end of an actor that nobody holds any more is no failure
        ray.get(given_up.pid.remote())

    def helper_pid(self):
        return ray.get(self.helper.pid.remote())

    def fit(self, ranks, scenario):
        if scenario == "agents":
            self.tools = use_tools()
        tasks = [rank.work.remote(scenario, index) for index, rank in enumerate(ranks)]
        return ray.get(tasks[::-1] if scenario == "raise" else tasks)


def main(scenario: str) -> None:
    ray.init(logging_level="ERROR")
    policy = types.SimpleNamespace(_actor_handlers=[Rank.remote(), Rank.remote()])
    trainer = Trainer.remote()
    victims = {
        "rank": ray.get(policy._actor_handlers[1].pid.remote()),
        "helper": ray.get(trainer.helper_pid.remote()),
    }
    fit = trainer.fit.remote(policy._actor_handlers, scenario)
    if scenario in victims:
        print("victim", victims[scenario], flush=True)
        time.sleep(1)
        os.kill(victims[scenario], signal.SIGKILL)
    print("result", watch.get([fit], {"policy": policy, "trainer": trainer, "critic": None})[0])


if __name__ == "__main__":
    main(sys.argv[1])
