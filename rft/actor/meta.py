"""A model without memory for its weights, by the transformers that is installed: below 5, and from 5 on."""

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import init_empty_weights

try:
    from transformers.initialization import no_init_weights
except ImportError:  # transformers < 5
    from transformers.modeling_utils import no_init_weights


@contextmanager
def without_weights() -> Iterator[None]:
    """Models made within have parameters on the meta device, and draw no random numbers; buffers are computed."""
    with no_init_weights(), init_empty_weights():
        yield
