"""Fixtures of several modules here."""

import functools

import pytest
from report_runs import whole_run


@pytest.fixture
def make_run(tmp_path):
    """`report_runs.whole_run` below this test's folder."""
    return functools.partial(whole_run, tmp_path)


@pytest.fixture(scope="module")
def store():
    """Variables that lead a process to moto's S3, and a client of it."""
    from s3_server import served  # moto takes a second to import
    from sagemaker_jobs import BUCKET

    with served(BUCKET) as (environment, s3):
        yield environment, s3


@pytest.fixture
def s3(store):
    """The client, its bucket empty."""
    from sagemaker_jobs import BUCKET

    for entry in store[1].list_objects_v2(Bucket=BUCKET).get("Contents", []):
        store[1].delete_object(Bucket=BUCKET, Key=entry["Key"])
    return store[1]
