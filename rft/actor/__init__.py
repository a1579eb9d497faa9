"""gpt-oss as the trainer holds it: experts in MXFP4, sequences packed."""
