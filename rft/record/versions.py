"""Versions of installed packages."""

import contextlib
import importlib.metadata
from collections.abc import Iterable


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The version of each of these distributions, in their order; those that are not installed are left out."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
