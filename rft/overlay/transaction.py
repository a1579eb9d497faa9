"""All-or-nothing replacement of files below site-packages: lock, journal, rollback, recovery.

State lives in `<site-packages>/.rft-overlay/`: `lock`, `journal.json` while a transaction runs, `applied-*.json`, and
`blobs/<sha256>`, the bytes that rollback and revert need. Everything that takes disk space is written before the first
file of the package changes, and files change by `os.replace` only: uv hardlinks site-packages to its cache, so writing
in place would edit the cache and every other environment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import BUSY, NOT_WRITABLE, ROLLED_BACK, OverlayError
from .series import dump, sha256
from .state import STATE_DIR, read

JOURNAL = f"{STATE_DIR}/journal.json"
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True)
class Change:
    """`path` below `root` goes from `before` to `after` (None: no such file). `owner` is its dist-info folder."""

    root: Path
    owner: str
    path: str
    before: bytes | None
    after: bytes | None


@contextlib.contextmanager
def locked(roots: list[Path], wait: float) -> Iterator[None]:
    """Hold the lock of every site-packages folder, in a fixed order.

    Waits up to `wait` seconds, then raises OverlayError (exit 5) that names the holder; exit 6 where the folder cannot
    be written.
    """
    deadline = time.monotonic() + wait
    with contextlib.ExitStack() as stack:
        for root in sorted(set(roots)):
            try:
                (root / STATE_DIR).mkdir(exist_ok=True)
                file = stack.enter_context((root / STATE_DIR / "lock").open("a+"))
                _acquire(file, deadline, root)
            except OSError as error:
                raise _not_writable(error) from error
            file.seek(0)
            file.truncate()
            file.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield


def _acquire(file, deadline: float, root: Path) -> None:
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                raise OverlayError(
                    BUSY,
                    f"another apply or revert works on {root}",
                    found=f"lock held by {file.read().strip()}",
                    wanted="a free lock",
                    repair="wait for it to end, or pass a larger --wait",
                ) from None
        time.sleep(0.05)


def _not_writable(error: OSError) -> OverlayError:
    if error.errno in READ_ONLY:
        return OverlayError(
            NOT_WRITABLE,
            f"cannot write {error.filename}; nothing was changed",
            found=error.strerror,
            wanted="a writable site-packages",
            repair="run as the owner of the environment, or when the image is built: RUN bash apply_patches.sh",
        )
    return OverlayError(
        ROLLED_BACK,
        "nothing was changed",
        found=str(error),
        wanted="room and a writable folder",
        repair="df -h, then again",
    )


def commit(changes: list[Change], keep: list[bytes], operation: str) -> None:
    """Make all changes or none, then verify them from disk.

    keep: pristine bytes that a later revert needs. Any fault, SIGINT, SIGTERM and SIGHUP included, restores every file:
    exit 6 where the folder turned out to be read-only, else exit 7.
    """
    roots = sorted({change.root for change in changes})
    try:
        with _signals_raise():
            for root in roots:
                _write_journal(root, [c for c in changes if c.root == root], keep, operation)
            written = [(change, _write_temporary(change)) for change in changes]
            for change, temporary in written:
                _install(change, temporary)
            for change in changes:
                drop_bytecode(change.root / change.path)
                prune(change.root, change.path)
            for folder in sorted({(c.root / c.path).parent for c in changes if (c.root / c.path).parent.is_dir()}):
                _sync(folder)
            for change in changes:
                if sha256(read(change.root, change.path)) != sha256(change.after):
                    raise OSError(errno.EIO, "the file on disk is not what was written", str(change.root / change.path))
            for root in roots:
                (root / JOURNAL).unlink()
    except BaseException as error:
        with _signals_ignored():
            for root in roots:
                recover(root)
        if isinstance(error, OSError) and error.errno in READ_ONLY:
            raise _not_writable(error) from error
        found = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OverlayError(ROLLED_BACK, "rolled back after a fault: every file is as before", found=found) from error
    # Leftover blobs do no harm, and the next transaction collects them.
    with contextlib.suppress(OSError):
        for root in roots:
            _sync(root / STATE_DIR)  # first: a journal that came back after a power cut would need the blobs
            collect_garbage(root)


def _write_journal(root: Path, changes: list[Change], keep: list[bytes], operation: str) -> None:
    (root / STATE_DIR / "blobs").mkdir(exist_ok=True)
    for data in [*keep, *(change.before for change in changes if change.before is not None)]:
        if blob(root, sha256(data)) is None:
            _replace(root / STATE_DIR / "blobs" / sha256(data), data, 0o644)
    _sync(root / STATE_DIR / "blobs")
    files = [
        {
            "path": change.path,
            "owner": change.owner,
            "before": sha256(change.before),
            "after": sha256(change.after),
            "mode": _mode(root / change.path),
        }
        for change in changes
    ]
    _replace(root / JOURNAL, dump({"operation": operation, "pid": os.getpid(), "files": files}), 0o644)
    _sync(root / STATE_DIR)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777 if path.exists() else 0o644


def _temporary(path: Path) -> Path:
    """A fixed name, so that recovery finds what a killed run left. No module name starts with a dot."""
    return path.with_name(f".{path.name}.rft-overlay")


def _write_temporary(change: Change) -> Path | None:
    if change.after is None:
        return None
    path = change.root / change.path
    path.parent.mkdir(parents=True, exist_ok=True)
    return _write(_temporary(path), change.after, _mode(path), not_mtime_of=path)


def _write(path: Path, data: bytes, mode: int, not_mtime_of: Path | None = None) -> Path:
    with path.open("wb") as file:
        file.write(data)
        file.flush()  # before utime: a later write would set the mtime again
        os.fchmod(file.fileno(), mode)
        if not_mtime_of is not None and not_mtime_of.exists():
            # Bytecode is matched by size and whole seconds of mtime: never keep the second of the file it replaces.
            now, old = int(time.time()), int(not_mtime_of.stat().st_mtime)
            os.utime(file.fileno(), times=(now, now + 1 if now == old else now))
        os.fsync(file.fileno())
    return path


def _replace(path: Path, data: bytes, mode: int) -> None:
    os.replace(_write(_temporary(path), data, mode, not_mtime_of=path), path)


def _install(change: Change, temporary: Path | None) -> None:
    path = change.root / change.path
    drop_bytecode(path)
    if temporary is None:
        path.unlink()
    else:
        os.replace(temporary, path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def drop_bytecode(path: Path) -> None:
    """Delete every cached bytecode of a module: unchecked-hash files would be run without a look at the source."""
    if path.suffix == ".py":
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            stale.unlink(missing_ok=True)


def prune(root: Path, path: str) -> None:
    """Remove parent folders of a file that is gone as long as they are empty but for an empty __pycache__."""
    folder = (root / path).parent
    while not (root / path).exists() and folder != root and folder.is_dir():
        names = os.listdir(folder)
        if names == ["__pycache__"] and not os.listdir(folder / "__pycache__"):
            (folder / "__pycache__").rmdir()
        elif names:
            return
        folder.rmdir()
        folder = folder.parent


def recover(root: Path) -> bool:
    """Undo the transaction that a journal describes; True when there was one.

    Only files that hold what the transaction wrote are restored: one that was reinstalled since is somebody else's.
    Repeating a recovery that was itself cut short is safe, so the journal stays until the last file is back.
    """
    data = read(root, JOURNAL)
    if data is None:
        return False
    try:
        _undo(root, data)
    except OSError as error:
        raise OverlayError(
            NOT_WRITABLE if error.errno in READ_ONLY else ROLLED_BACK,
            f"could not restore every file in {root}; the journal is kept",
            found=str(error),
            wanted="room and a writable folder",
            repair="remove the cause, then `apply` or `revert` again",
        ) from error
    return True


def _undo(root: Path, data: bytes) -> None:
    for row in json.loads(data)["files"]:
        path = root / row["path"]
        if not (root / row["owner"]).is_dir():
            continue  # uninstalled since
        _temporary(path).unlink(missing_ok=True)
        if sha256(read(root, row["path"])) == row["after"] != row["before"]:
            drop_bytecode(path)
            if row["before"] is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, (root / STATE_DIR / "blobs" / row["before"]).read_bytes(), row["mode"])
        drop_bytecode(path)
        prune(root, row["path"])
        if path.parent.is_dir():
            _sync(path.parent)
    (root / JOURNAL).unlink()


def blob(root: Path, digest: str) -> bytes | None:
    """Stored bytes with this sha256, None when there are none or they are damaged."""
    data = read(root, f"{STATE_DIR}/blobs/{digest}")
    return data if sha256(data) == digest else None


def collect_garbage(root: Path) -> None:
    """Delete blobs that no applied lock names as pristine."""
    locks = [json.loads(path.read_bytes()) for path in (root / STATE_DIR).glob("applied-*.json")]
    needed = {row["pristine"] for lock in locks for row in lock["files"].values()}
    for path in (root / STATE_DIR / "blobs").iterdir():
        if path.name not in needed:
            path.unlink()


class _Interrupted(BaseException):
    pass


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    def stop(number, _frame):
        raise _Interrupted(signal.Signals(number).name)

    with _handling(stop):
        yield


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    with _handling(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handling(handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
