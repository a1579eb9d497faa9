"""Whether the environment's settings of a conversation are sound: asked by launch/retriever.sh."""

import sys

from rft.agents.settings import OutOfRange, Settings

try:
    Settings.from_environment()
except OutOfRange as fault:
    sys.exit(
        "error: no agent has such a setting\n"
        f"  found:  {fault.variable}={fault.found}\n"
        f"  wanted: {fault.wanted}\n"
        f"  repair: correct it, or unset {fault.variable}"
    )
