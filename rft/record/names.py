"""Names of the files that a run writes into its metrics directory."""

TRAINING_FILE = "training_metrics.jsonl"
EVAL_FILE = "eval_metrics.jsonl"
DECISIONS_FILE = "decisions.jsonl"  # of early stopping
PHASE_FILE = (
    "phase"  # in the run directory, while it trains: the phase of the step under way, an empty line between two
)
MEMORY_FILE = "memory.json"
TIMELINE_FILE = "memory_timeline.json"
