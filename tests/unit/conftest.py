"""Fixtures of several modules here."""

import functools

import pytest
from report_runs import whole_run


@pytest.fixture
def make_run(tmp_path):
    """`report_runs.whole_run` below this test's folder."""
    return functools.partial(whole_run, tmp_path)
