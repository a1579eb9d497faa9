"""DeepSpeed's collectives on the CPU: gloo's, without a compiler, and each one waited for."""

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partition_parameters import Init

_gather_coalesced = Init._allgather_params_coalesced


def keep_to_gloo() -> None:
    """Call before `deepspeed.init_distributed`; does nothing where the accelerator is not the CPU.

    DeepSpeed 0.18.5 compiles a shared-memory all-reduce for every CPU process group (deepspeed/comm/torch.py,
    `build_shm_op`): most of a minute in a new environment, to add tensors that gloo adds as well.

    Where it gathers several parameters at once, as for a weight sync, it waits for the last gather only
    (deepspeed/runtime/zero/partition_parameters.py, `_allgather_params_coalesced`). Streams keep their order; gloo's
    gathers end in any, and with two ranks 1.5 to 4 % of the gathers of a tiny adapter were read too early. Fixed after
    0.18.5 by DeepSpeed's pull request 8539.
    """
    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        Init._allgather_params_coalesced = _gather_each


def _gather_each(self: Init, params: list, hierarchy: int = 0, quantize: bool = False) -> None:
    """By DeepSpeed's own gathers that block, one parameter after the other."""
    if self.num_partitions == 1:
        return _gather_coalesced(self, params, hierarchy, quantize)
    return self._allgather_params_sequential(params, hierarchy)
