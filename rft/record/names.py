"""Names of files that a run writes: into its metrics directory, and, from PHASE_FILE on, into its own."""

TRAINING_FILE = "training_metrics.jsonl"
EVAL_FILE = "eval_metrics.jsonl"
DECISIONS_FILE = "decisions.jsonl"  # of early stopping
PHASE_FILE = "phase"  # the phase of the step under way, or an empty line; while memory is measured
MEMORY_FILE = "memory.json"
TIMELINE_FILE = "memory_timeline.json"
