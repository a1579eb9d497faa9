"""A pool on a machine without user namespaces: prints its level, and why it is no better one.

A filter over this process refuses them as a kernel does that forbids them.
"""

import asyncio
import ctypes
import os
import struct

from sandbox_claims import INSIDE

from rft.code.isolation import seccomp, syscalls
from rft.code.sandbox import Pool

CLONE_NEWUSER = 0x10000000


def refuse_namespaces() -> None:
    column = seccomp.ARCHITECTURES[os.uname().machine][0]
    steps = [
        (seccomp.LOAD, 0, 0, 0),
        *seccomp._if(seccomp.EQUAL, syscalls.MACHINE["unshare"][column], seccomp.EPERM),
        *seccomp._if(seccomp.EQUAL, syscalls.JUDGED["clone3"][column], seccomp.ENOSYS),
        (seccomp.EQUAL, 0, 3, syscalls.JUDGED["clone"][column]),
        seccomp._argument(0),
        *seccomp._if(seccomp.ANY_BIT, CLONE_NEWUSER, seccomp.EPERM),
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    libc, kept = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(kept)))
    # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


async def main() -> None:
    async with Pool(inside=INSIDE) as pool:
        print(pool.level, pool.why_not)


refuse_namespaces()
asyncio.run(main())
