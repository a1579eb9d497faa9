"""What the patches call: one module per behaviour, so that a patch stays a few lines."""
