"""Runs as training jobs of AWS SageMaker (docs/sagemaker.md): `submit` and its like here, `container` inside of a job."""
