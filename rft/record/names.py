"""Names of the files that a run writes into its metrics directory."""

TRAINING_FILE = "training_metrics.jsonl"
EVAL_FILE = "eval_metrics.jsonl"
DECISIONS_FILE = "decisions.jsonl"  # of early stopping
