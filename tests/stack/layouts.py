"""Names of OpenRLHF that are in another place from some release on, for tests that run on every series."""

import importlib
from importlib.util import find_spec


def samples_generator() -> type:
    """OpenRLHF's `SamplesGenerator`: in `experience_maker` up to 0.9.8, then in a module of its own."""
    own = "openrlhf.trainer.ppo_utils.samples_generator"
    module = own if find_spec(own) else "openrlhf.trainer.ppo_utils.experience_maker"
    return importlib.import_module(module).SamplesGenerator
