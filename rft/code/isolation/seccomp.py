"""The seccomp filter of a sandbox, as the kernel takes it (seccomp(2), struct sock_filter): no library needed."""

import errno
import platform
import struct

from rft.code.isolation import syscalls

# A program of classic BPF over struct seccomp_data: nr at 0, arch at 4, the arguments from 16 on, 8 bytes each.
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
KILL, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the table, AUDIT_ARCH_…
X32 = 0x40000000  # bit of the numbers of x86-64's 32-bit twin, a second way to every call
CLONE_THREAD, AF_UNIX, SOCK_STREAM, SOCK_TYPES = 0x10000, 1, 1, 0xF
PR_SET_PDEATHSIG, PR_SET_SECCOMP, TIOCSTI, TIOCLINUX = 1, 22, 0x5412, 0x541C
EPERM = ERRNO | errno.EPERM
ENOSYS = ERRNO | errno.ENOSYS

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def program(*, same_user: int | None = None, threads: bool = True, machine: str | None = None) -> bytes:
    """The filter.

    Args:
        same_user: pid of the program where no namespace hides other processes and files: it may signal only itself
            and change no file's attributes, start no other program
        threads: whether it may start threads
        machine: "x86_64" | "aarch64"; None: this machine's

    Raises:
        ValueError: no table for this machine
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise ValueError(f"no table of system calls for {machine}, there is one for {', '.join(ARCHITECTURES)}")
    column, architecture = ARCHITECTURES[machine]
    denied = {
        **syscalls.OTHER_PROCESSES,
        **syscalls.NEW_PROCESSES,
        **syscalls.SOCKETS,
        **syscalls.MEMORY,
        **syscalls.KERNEL,
        **syscalls.MACHINE,
    }
    if same_user is not None:
        denied |= syscalls.FILES
    steps: list[Instruction] = [(LOAD, 0, 0, 4), *_unless(EQUAL, architecture, KILL), (LOAD, 0, 0, 0)]
    if machine == "x86_64":
        steps += _if(AT_LEAST, X32, KILL)
    steps += _if(AT_LEAST, syscalls.LAST + 1, ENOSYS)
    for numbers in denied.values():
        if numbers[column] is not None:
            steps += _if(EQUAL, numbers[column], EPERM)
    for name, body in _by_arguments(same_user, threads).items():
        # A call that is judged never falls through to the next one: the accumulator holds an argument by then.
        steps += [(EQUAL, 0, len(body), syscalls.JUDGED[name][column]), *body]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _by_arguments(same_user: int | None, threads: bool) -> dict[str, list[Instruction]]:
    allow = (RETURN, 0, 0, ALLOW)
    rules = {
        # glibc falls back to clone, whose flags a filter can read
        "clone3": [(RETURN, 0, 0, ENOSYS)],
        "clone": [_argument(0), *_unless(ANY_BIT, CLONE_THREAD, EPERM), allow] if threads else [(RETURN, 0, 0, EPERM)],
        # asyncio wakes itself by a pair of streams, which reaches nobody else
        "socketpair": [
            _argument(0),
            *_unless(EQUAL, AF_UNIX, EPERM),
            _argument(1),
            (AND, 0, 0, SOCK_TYPES),
            *_unless(EQUAL, SOCK_STREAM, EPERM),
            allow,
        ],
        # it must die with the server, and another filter could answer in the kernel's place
        "prctl": [_argument(0), *_if(EQUAL, PR_SET_PDEATHSIG, EPERM), *_if(EQUAL, PR_SET_SECCOMP, EPERM), allow],
        "ioctl": [_argument(1), *_if(EQUAL, TIOCSTI, EPERM), *_if(EQUAL, TIOCLINUX, EPERM), allow],
        "prlimit64": [_argument(0), *_unless(EQUAL, 0, EPERM), allow],
    }
    if same_user is not None:
        rules["kill"] = rules["tgkill"] = [_argument(0), *_unless(EQUAL, same_user, EPERM), allow]
    return rules


def _argument(number: int) -> Instruction:
    return (LOAD, 0, 0, 16 + 8 * number)  # the low half: both machines are little-endian


def _if(test: int, constant: int, result: int) -> list[Instruction]:
    return [(test, 0, 1, constant), (RETURN, 0, 0, result)]


def _unless(test: int, constant: int, result: int) -> list[Instruction]:
    return [(test, 1, 0, constant), (RETURN, 0, 0, result)]
