"""What the processes of a run must know, wherever Ray starts them."""

import os

from rft.options import remote_code

NAMES = ("RFT_RUN_DIR", "METRICS_LOG_DIR", "SAMPLES_LOG_DIR", "SPIKE_LOG_PATH", "SPIKE_GRAD_NORM", "CHAT_DATE")
LIMIT, LIMIT_SECONDS = "STALL_LIMIT", 600.0
NAMES += (remote_code.VARIABLE, LIMIT, "CODE_SERVER_URL")
NAMES += ("RFT_CODE_PASS_RATE_THRESHOLD", "RFT_CODE_SECONDS", "RFT_CODE_ALLOW_UNSAFE")
AGENT = ("RFT_AGENT_PROTOCOL", "RFT_AGENT_MAX_TURNS", "RFT_AGENT_TURN_TOKENS", "RFT_AGENT_OBSERVATION_TOKENS")
AGENT += ("RFT_AGENT_TOPK",)  # of rft.agents.settings
NAMES += ("RETRIEVER_URL", "RETRIEVER_TOKEN", *AGENT)
# Libraries that the run's own workers load first, such as torch's NCCL where the system's is too old. Not LD_PRELOAD in
# the launcher's environment: Ray's daemons, the scheduler's commands and every tool would load it too.
PRELOAD = "RUN_PRELOAD"


def of_this_run() -> dict[str, str]:
    """This process's variables for `ray.init(runtime_env=…)`.

    Ray's workers inherit the environment of their node, which on a cluster that somebody else started is another run's:
    two runs would then write into one metrics file.
    """
    found = {name: os.environ[name] for name in NAMES if name in os.environ}
    if preload := os.environ.get(PRELOAD):
        found["LD_PRELOAD"] = preload
    return found


def stall_limit() -> float:
    """Seconds after which a process of the run that stands still ends it; 0: never."""
    return float(os.environ.get(LIMIT) or LIMIT_SECONDS)
