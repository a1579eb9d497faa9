"""With LoRA, the reference policy is the actor with its adapter off: no second model (42 GB for gpt-oss-20b)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openrlhf.models import Actor
    from openrlhf.trainer.ray.launcher import RayActorGroup
    from openrlhf.utils.deepspeed import DeepspeedStrategy


class AdapterOff:
    """Takes the place of OpenRLHF's `RayActorGroup` of reference models, over the actor's own group."""

    _actor_handlers = ()  # none beside the actor's

    def __init__(self, actor_group: "RayActorGroup") -> None:
        self.actor_group = actor_group

    def async_init_model_from_pretrained(self, strategy: "DeepspeedStrategy", pretrain: str) -> list:
        return []  # the actor has loaded it

    def async_run_method(self, method_name: str, *args: object, **kwargs: object) -> list:
        return self.actor_group.async_run_method(method_name, *args, **kwargs)

    def async_run_method_batch(self, method_name: str, **kwargs: object) -> list:
        """Object references to lists of (batch, actions) log-probabilities of the base model."""
        return self.actor_group.async_run_method_batch(f"reference_{method_name}", **kwargs)


@contextmanager
def adapter_off(actor: "Actor") -> Iterator[None]:
    """Within, `actor` (OpenRLHF's `Actor` around a DeepSpeed engine around PEFT) computes as the base model does.

    PEFT's own `disable_adapter` also turns gradients off and on again, for which no pass between rollout and training
    has a use, and which DeepSpeed does not expect: its switch on the layers alone is set here.
    """
    layers = [m for m in actor.model.module.modules() if hasattr(m, "_disable_adapters")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
