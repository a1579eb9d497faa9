"""Names of files that a run writes: into its metrics directory, and, from WANDB_FILE on, into its own."""

TRAINING_FILE = "training_metrics.jsonl"
EVAL_FILE = "eval_metrics.jsonl"
CLOCKS = ("time", "elapsed_seconds")  # when a line of the two was written: no measure of the policy
DECISIONS_FILE = "decisions.jsonl"  # of early stopping
WANDB_FILE = "wandb_id"  # of the W&B run that a resume continues
PHASE_FILE = "phase"  # the phase of the step under way, or an empty line; while memory is measured
MEMORY_FILE = "memory.json"
TIMELINE_FILE = "memory_timeline.json"
