"""First code in every sandbox, before the program that speaks for it.

Moves the pipes to where that program expects them, sets the limits, confines itself where nothing outside could
(Landlock), and says one byte when all that is done. What fails here is the machine's fault. Runs inside: standard
library, no imports of rft; started as `python -I -S boot.pyc FOLDER ROLE LEVEL LIMITS SCRATCH`.
"""

import os
import resource
import sys

READY = b"\x06"


def move_pipes(scratch: int) -> None:
    """From 0, 1, 2 to 3, 4 and 1 with 2. Standard input is an empty file without a name, for input to be put in.

    Args:
        scratch: fd of that file; -1: made in /tmp
    """
    while 0 <= scratch < 5:  # its number is one of those that are taken now
        scratch = os.dup(scratch)
    for ours, theirs in ((0, 3), (1, 4), (2, 1)):
        os.dup2(ours, theirs)
    if scratch < 0:
        scratch = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.dup2(scratch, 0)
    os.close(scratch)


def landlock(root: str) -> None:
    """No file but those below `root` can be read, and none written; the filter of system calls comes on fd 3.

    Raises:
        OSError: the kernel refuses
    """
    import ctypes
    import struct

    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments) -> int:
        result = libc.prctl(*arguments) if name == "prctl" else libc.syscall(*map(ctypes.c_long, arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
        return result

    def buffer(data: bytes) -> int:
        kept.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(kept[-1])

    kept: list[ctypes.Array] = []
    size = int.from_bytes(os.read(3, 4), "big")
    code = b""
    while len(code) < size:
        code += os.read(3, size - len(code))
    # Numbers of linux/landlock.h and linux/prctl.h. Of files: all that ABI 3 knows (15 bits); of TCP: bind and connect
    # (ABI 4); of what is outside: abstract sockets and signals (ABI 6).
    abi = call("landlock_create_ruleset", 444, 0, 0, 1)
    if abi < 3:
        raise OSError(f"Landlock of ABI {abi}, 3 is needed (Linux 6.2)")
    handled = struct.pack("=QQQ", (1 << 15) - 1, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    ruleset = call("landlock_create_ruleset", 444, buffer(handled), 24 if abi >= 6 else 16 if abi >= 4 else 8, 0)
    for path, rights in ((root, 1 << 2 | 1 << 3), (os.devnull, 1 << 1 | 1 << 2)):  # read files and folders; read, write
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call("landlock_add_rule", 445, ruleset, 1, buffer(struct.pack("=Qi", rights, fd)), 0)
        os.close(fd)
    call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    call("prctl", 1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: killed when the server ends
    call("landlock_restrict_self", 446, ruleset, 0)
    os.close(ruleset)
    filter_program = struct.pack("@HP", len(code) // 8, buffer(code))  # struct sock_fprog
    call("prctl", 22, 2, ctypes.c_void_p(buffer(filter_program)), 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def main() -> None:
    folder, role, level, limits, scratch = sys.argv[1:]
    move_pipes(int(scratch))
    if level != "none":
        for limit in limits.split(","):
            kind, most = map(int, limit.split("="))
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
    if level == "landlock":
        landlock(os.path.dirname(folder))
    os.write(4, READY)
    if not role:
        return
    path = f"{folder}/inside/{role}.py"
    # Compiled when the folder was made: a program of a few hundred lines takes as long to compile as Python to start.
    code = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", path).get_code("__main__")
    names, sys.argv[:] = sys.modules["__main__"].__dict__, [path]
    builtins = names["__builtins__"]
    names.clear()
    names.update(__name__="__main__", __file__=path, __builtins__=builtins)
    exec(code, names)


if __name__ == "__main__":
    main()
