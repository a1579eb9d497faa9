"""Versioned patches over installed packages: apply, verify, revert, author. Standard library only.

`bash apply_patches.sh --help` lists the commands; docs/overlay.md explains them.
"""

from __future__ import annotations


def tree_ids(python: str | None = None) -> dict[str, str]:
    """Fingerprint of every patched package as it is on disk now, recomputed from the files.

    Args:
        python: interpreter whose environment is examined; default is the running one.

    Returns:
        import name -> tree_id (16 hex digits), or `"<STATE>: <reason>"` for a package that is not exactly APPLIED,
        so that a run manifest never records a fingerprint of something else. An environment that cannot be examined
        raises `rft.overlay.errors.OverlayError`.
    """
    import sys

    from .commands import examine

    return {
        inspection.package.import_name: inspection.tree_id if inspection.state == "APPLIED" else inspection.summary()
        for inspection in examine(python or sys.executable).inspections
    }
