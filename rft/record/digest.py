"""The identity of files: sha256 over their contents."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_digest(path: str | Path) -> str:
    """sha256 over names and contents of a directory's files (or of one file): the identity of a checkpoint."""
    path, digest = Path(path), hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        digest.update(f"{file.relative_to(path) if path.is_dir() else file.name}\0".encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
