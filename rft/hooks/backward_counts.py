"""How many parameters a backward pass reaches: counted once in it, not once at each of them."""

from collections.abc import Sequence

import torch
from deepspeed.runtime.utils import count_used_parameters_in_backward
from deepspeed.runtime.zero import stage3, stage_1_and_2

_last: dict[str, object] = {"pass": None, "count": 0}


def count_once_a_pass() -> None:
    """Call before `deepspeed.initialize`.

    DeepSpeed 0.18.5 walks over all trained parameters at each one's gradient, to know whether that was the last
    (runtime/zero/stage_1_and_2.py, stage3.py): 192 tensors of an adapter of gpt-oss-20b are 36,864 looks a backward
    pass, 0.14 s in which the GPU waits. Its pull request 7886 ends that after 0.18.5; with it nothing changes here.
    """
    for zero in (stage_1_and_2, stage3):
        zero.count_used_parameters_in_backward = counted


def counted(parameters: Sequence[torch.nn.Parameter]) -> int:
    """DeepSpeed's own count, kept for the rest of the backward pass, whose graph does not change.

    A checkpointed layer that is recomputed is a pass of its own within the first, with another id, and is counted anew.

    Args:
        parameters: an optimizer's trained ones, the same list each time.

    Raises:
        RuntimeError: outside of a backward pass, as DeepSpeed does.
    """
    this = torch._C._current_graph_task_id(), id(parameters)
    if _last["pass"] != this:
        _last.update({"count": count_used_parameters_in_backward(parameters), "pass": this})
    return _last["count"]
