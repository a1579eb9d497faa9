"""At the end, say what each probe said when its patch was left out, and what had to be left out with it."""

import gc
import os

import pytest
from ranks import world


@pytest.fixture(scope="module")
def one_rank():
    """A process group of this process alone, as ZeRO-3 needs one; nobody beyond this machine reaches it."""
    import deepspeed
    import torch
    from deepspeed.utils import groups

    from rft.hooks import loopback
    from rft.hooks.cpu_collectives import keep_to_gloo

    keep_to_gloo()
    (own,) = world(1)
    own |= loopback.THIS_MACHINE
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    gc.freeze()  # DeepSpeed collects garbage three times for each engine that it makes
    deepspeed.init_distributed("gloo", init_method=loopback.init_method())
    yield
    torch.distributed.destroy_process_group()
    for name, value in vars(groups).items():  # DeepSpeed keeps them, for the next group of this process too
        if isinstance(value, torch.distributed.ProcessGroup):
            setattr(groups, name, None)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def pytest_terminal_summary(terminalreporter):
    """From the reports, which come from other processes too."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    lines = [line for report in reports for name, line in report.user_properties if name == "left out"]
    if lines:
        terminalreporter.section("probes with their patch left out")
    for line in lines:
        terminalreporter.write_line(line)
