from rft.options.loss import *  # noqa: F403
