"""What a sandbox must not let a program do: a program that tries it, and what must come back.

As a program, `python sandbox_claims.py LEVEL FILE` tries all of it and prints the answers as JSON, for another user.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from rft.code.isolation import syscalls
from rft.code.isolation.seccomp import ARCHITECTURES
from rft.code.sandbox import Limits, Pool, SandboxError

INSIDE = Path(__file__).resolve().with_name("sandboxed")
ROLE = "sandbox_program"
LIMITS = Limits(memory_bytes=512 << 20, tmp_bytes=8 << 20, processes=16, open_files=64, output_bytes=1 << 20)
TOOLS = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*map(ctypes.c_long, arguments))
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def tried(function, *arguments):
    try:
        return f"done {function(*arguments)!r}"
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
def outcomes(found):
    return sorted(set(found))
"""
WRITABLE = '("/", "/dev", "/tmp", os.path.dirname(sys.prefix), sys.prefix, sys.prefix + "/lib", os.getcwd())'


def denied(*groups: dict[str, tuple[int | None, int | None]]) -> str:
    column = ARCHITECTURES[os.uname().machine][0]
    numbers = {name: both[column] for group in groups for name, both in group.items() if both[column] is not None}
    answers = f"{{name: call(number, 0, 0, 0, 0, 0, 0) for name, number in {numbers}.items()}}"
    return f"answer = {{name: found for name, found in {answers}.items() if found != 'EPERM'}}"


def number(name: str) -> int:
    return syscalls.JUDGED[name][ARCHITECTURES[os.uname().machine][0]]


# name: (program, what must come back as a regular expression; two where the levels differ: namespaces, landlock)
CLAIMS = {
    "sockets": (
        "def made(family, kind):\n with socket.socket(family, kind): pass\n"
        "answer = outcomes(tried(made, family, kind) for family in range(1, 46) for kind in (1, 2, 3, 5))",
        r"\['EPERM'\]",
    ),
    "datagrams of a pair": ("answer = tried(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)", "EPERM"),
    "the pair of asyncio": ("import asyncio\nanswer = asyncio.run(asyncio.sleep(0, 'ran'))", "ran"),
    "a name looked up": (
        "try: socket.getaddrinfo('example.org', 80)\nexcept OSError as error: answer = type(error)",
        r".*(gaierror|PermissionError)'>",
    ),
    "command lines": ("answer = tried(open, '/proc/1/cmdline', 'rb')", ("ENOENT", "EACCES")),
    "own memory by /proc": ("answer = tried(open, '/proc/self/mem', 'rb')", ("ENOENT", "EACCES")),
    "processes": ("answer = tried(os.listdir, '/proc')", ("ENOENT", "EACCES")),
    "kernel's settings": ("answer = tried(os.listdir, '/proc/sys')", ("ENOENT", "EACCES")),
    "devices of the kernel": ("answer = tried(os.listdir, '/sys')", ("ENOENT", "EACCES")),
    "users": ("answer = tried(open, '/etc/passwd')", ("ENOENT", "EACCES")),
    "a file of the server": ("answer = tried(open, FILE)", ("ENOENT", "EACCES")),
    "a file's rights": ("answer = tried(os.chmod, FILE, 0o777)", ("ENOENT", "EPERM")),
    "a file's times": ("answer = tried(os.utime, FILE)", ("ENOENT", "EPERM")),
    "a file cut": ("answer = tried(os.truncate, FILE, 0)", ("ENOENT", "EACCES")),
    "a file removed": ("answer = tried(os.unlink, FILE)", ("ENOENT", "EACCES")),
    "a link to a file": ("answer = tried(os.link, FILE, FILE + '2')", ("ENOENT", "EACCES")),
    "the root folder": (
        "answer = tried(lambda: sorted(os.listdir('/')))",
        (r"done \['dev'(, 'lib\w*')?, 'python', 'tmp'\]", "EACCES"),
    ),
    "the devices": ("answer = tried(lambda: sorted(os.listdir('/dev')))", (r"done \['null', 'urandom'\]", "EACCES")),
    "folders to write to": (
        f"def made(folder):\n open(folder + '/made', 'x').close(); os.unlink(folder + '/made')\n"
        f"answer = outcomes(tried(made, folder) for folder in set({WRITABLE}) - {{'/tmp'}})",
        (r"\['EROFS'\]", r"\['EACCES'\]"),
    ),
    "a remount": ("answer = tried(libc.mount, None, b'/', None, 32, None), ctypes.get_errno()", r"\('done -1', 1\)"),
    "descriptors": (
        "def is_open(fd):\n try: return bool(os.fstat(fd))\n except OSError: return False\n"
        "answer = [fd for fd in range(4096) if is_open(fd)]",
        r"\[0, 1, 2, 3, 4\]",
    ),
    "verdicts on other descriptors": (
        "answer = outcomes(tried(os.write, fd, b'1') for fd in range(5, 1024))",
        r"\['EBADF'\]",
    ),
    "environment": (
        "answer = sorted(set(os.environ) - {'PWD'})",
        r"\['HOME', 'LANG', 'LD_LIBRARY_PATH', 'PATH', 'TMPDIR'\]",
    ),
    "standard input": ("answer = sys.stdin.read() == '' and os.fstat(0).st_nlink", "0"),
    "root's rights": (
        "header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()\n"
        "answer = 0 in (os.getuid(), os.geteuid(), os.getgid()), libc.capget(header, data), list(data)",
        r"\(False, 0, \[0, 0, 0, 0, 0, 0\]\)",
    ),
    "becoming root": (
        "answer = [tried(f, 0) for f in (os.setuid, os.setgid)]",
        (r"\['EINVAL', 'EINVAL'\]", r"\['EPERM', 'EPERM'\]"),
    ),
    "other groups": ("answer = set(os.getgroups()) - {os.getgid(), 65534}", r"set\(\)"),
    "a namespace of users": ("answer = tried(libc.unshare, 0x10000000), ctypes.get_errno()", r"\('done -1', 1\)"),
    "a new process": ("answer = tried(os.fork)", "EPERM"),
    "a command": ("import subprocess\nanswer = tried(subprocess.run, [sys.executable, '-c', '0'])", "EPERM"),
    "a process by spawn": ("answer = tried(os.posix_spawn, sys.executable, ['x'], {})", "EPERM"),
    "a new process by number": (
        f"answer = call({number('clone')}, 17, 0, 0, 0, 0), call({number('clone3')}, 0, 0)",
        r"\('EPERM', 'ENOSYS'\)",
    ),
    "calls that are denied": (
        denied(
            *(syscalls.OTHER_PROCESSES, syscalls.NEW_PROCESSES, syscalls.SOCKETS),
            *(syscalls.MEMORY, syscalls.KERNEL, syscalls.MACHINE),
        ),
        r"\{\}",
    ),
    "calls of later kernels": (f"answer = outcomes(call(n) for n in range({syscalls.LAST + 1}, 600))", r"\['ENOSYS'\]"),
    "signals to the server": ("answer = tried(os.kill, SERVER, 0)", ("ESRCH", "EPERM")),
    "signals to all": ("answer = tried(os.kill, -1, 0)", ("ESRCH", "EPERM")),
    "signals to itself": (
        "import signal\nsignal.signal(10, lambda *_: None)\nanswer = tried(os.kill, os.getpid(), 10)",
        "done None",
    ),
    "limits of the server": (
        "import resource\nanswer = tried(resource.prlimit, SERVER, resource.RLIMIT_CPU)",
        "EPERM",
    ),
    "outliving the server": ("answer = libc.prctl(1, 0, 0, 0, 0), ctypes.get_errno()", r"\(-1, 1\)"),
    "another filter": ("answer = libc.prctl(22, 2, 0, 0, 0), ctypes.get_errno()", r"\(-1, 1\)"),
    "typing for the terminal": ("answer = libc.ioctl(0, 0x5412, b'x'), ctypes.get_errno()", r"\(-1, 1\)"),
    "threads": (
        "import threading\nstop, count = threading.Event(), 0\nthreading.stack_size(65536)\n"
        "try:\n while count < 100: threading.Thread(target=stop.wait, daemon=True).start(); count += 1\n"
        "except RuntimeError: pass\nstop.set()\nanswer = count",
        (r"[5-9]|1[0-5]", r"\d|1[0-5]"),
    ),
    "memory": ("try: bytearray(1 << 30)\nexcept MemoryError: answer = 'refused'", "refused"),
    "memory in C": ("try: 'x' * (1 << 32)\nexcept MemoryError: answer = 'refused'", "refused"),
    "mapped memory": ("import mmap\nanswer = tried(mmap.mmap, -1, 1 << 30)", "ENOMEM"),
    "locked memory": ("answer = libc.mlockall(3)", "-1"),
    "files in all": (
        "written = 0\ntry:\n for i in range(100):\n  with open(f'/tmp/{i}', 'wb', 0) as f:\n"
        "   for _ in range(64): written += f.write(bytes(1 << 16))\n"
        "except OSError as error: answer = errno.errorcode[error.errno], written <= 8 << 20",
        (r"\('ENOSPC', True\)", r"\('EACCES', True\)"),
    ),
    "a sparse file": ("answer = tried(os.truncate, 0, 1 << 40)", "EFBIG"),
    "open files": (
        "kept = []\ntry:\n while len(kept) < 1000: kept.append(os.open('/dev/null', 0))\n"
        "except OSError as error: answer = errno.errorcode[error.errno], len(kept)\n[os.close(fd) for fd in kept]",
        r"\('EMFILE', 59\)",
    ),
    "more than the limit": (
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))\n"
        "except (ValueError, OSError) as error: answer = 'refused'",
        "refused",
    ),
    "a core dump": ("import resource\nanswer = resource.getrlimit(resource.RLIMIT_CORE)", r"\(0, 0\)"),
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\nanswer = tried(SharedMemory, 'rft-test', True, 99)",
        ("ENOENT|EPERM|EACCES", "EACCES"),
    ),
    "deep recursion": (
        "sys.setrecursionlimit(20000)\ndef down(n): return n and down(n - 1)\nanswer = down(10000)",
        "0",
    ),
    "its tools": ("import decimal, hashlib, json, random, re, sqlite3, zlib\nanswer = 'there'", "there"),
}
# What ends the sandbox: program, the machine it is for, the cause
DEATHS = {
    "32-bit system calls": (
        "import mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",
        "x86_64",
        "SIGSYS",
    ),
    "x32 system calls": ("call(0x40000000 | 39)", "x86_64", "SIGSYS"),
    "a null pointer": ("ctypes.string_at(0)", None, "SIGSEGV"),
    "an exit": ("os._exit(0)", None, "exit status 0"),
}


async def answers(level: str, file: str) -> dict[str, str]:
    """What each program answered, by its name; `file` is a file of the server."""
    found = {}
    async with Pool(level=level, limits=LIMITS, inside=INSIDE) as pool:
        for name, source in {name: claim[0] for name, claim in (CLAIMS | DEATHS).items()}.items():
            sandbox = await pool.acquire(ROLE)
            try:
                await sandbox.send(f"{TOOLS}SERVER, FILE = {os.getpid()}, {file!r}\n{source}".encode())
                answer = await sandbox.receive(cpu_seconds=20, wall_seconds=200, max_bytes=1 << 20)
                found[name] = answer.decode()
            except SandboxError as error:
                found[name] = f"{type(error).__name__}: {error}"
            finally:
                await sandbox.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(answers(*sys.argv[1:]))))
