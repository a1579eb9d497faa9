"""Runs as training jobs of AWS SageMaker (docs/sagemaker.md): `cli` submits them, `container` runs inside of one."""
