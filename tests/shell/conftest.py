"""Fixtures of several modules."""

import pytest
import toy_checkout


@pytest.fixture
def checkout(tmp_path):
    return toy_checkout.make(tmp_path / "checkout")
