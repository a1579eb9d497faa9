"""The filter of system calls, run by the machine of seccomp(2): for both kinds of processor, whichever this one is."""

import struct

import pytest

from rft.code.isolation import seccomp, syscalls

X86, ARM = "x86_64", "aarch64"
DENIED, ABSENT, ALLOWED, KILLED = seccomp.EPERM, seccomp.ENOSYS, seccomp.ALLOW, seccomp.KILL
FILTERED = [
    *(
        (machine, name, (), DENIED)
        for machine in (X86, ARM)
        for name in ("socket", "ptrace", "unshare", "memfd_create")
    ),
    *((machine, "clone", (0x11,), DENIED) for machine in (X86, ARM)),
    *((machine, "clone", (0x3D0F00,), ALLOWED) for machine in (X86, ARM)),
    *((machine, "clone3", (), ABSENT) for machine in (X86, ARM)),
    *((machine, "socketpair", (1, 0x80801), ALLOWED) for machine in (X86, ARM)),
    *((machine, "socketpair", (1, 2), DENIED) for machine in (X86, ARM)),
    *((machine, "socketpair", (16, 1), DENIED) for machine in (X86, ARM)),
    *((machine, "prctl", (1,), DENIED) for machine in (X86, ARM)),
    *((machine, "prctl", (15,), ALLOWED) for machine in (X86, ARM)),
    *((machine, "ioctl", (0, 0x5412), DENIED) for machine in (X86, ARM)),
    *((machine, "ioctl", (0, 0x5401), ALLOWED) for machine in (X86, ARM)),
    *((machine, "prlimit64", (99,), DENIED) for machine in (X86, ARM)),
    *((machine, "prlimit64", (0,), ALLOWED) for machine in (X86, ARM)),
    *((machine, "kill", (7,), ALLOWED) for machine in (X86, ARM)),
    (X86, "fork", (), DENIED),
    (X86, 1, (), ALLOWED),  # write
    (ARM, 64, (), ALLOWED),  # write
    (X86, 0x40000001, (), KILLED),
    (X86, 500, (), ABSENT),
    (ARM, 500, (), ABSENT),
]


def run_filter(code, number, architecture, arguments):
    """The result of a program of classic BPF over one system call."""
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    data = {0: number, 4: architecture} | {16 + 8 * i: value for i, value in enumerate((*arguments, 0, 0, 0)[:6])}
    at = value = 0
    while True:
        kind, yes, no, constant = steps[at]
        at += 1
        if kind == seccomp.LOAD:
            value = data[constant]
        elif kind == seccomp.AND:
            value &= constant
        elif kind == seccomp.RETURN:
            return constant
        else:
            tests = {seccomp.EQUAL: value == constant, seccomp.AT_LEAST: value >= constant}
            at += yes if (tests | {seccomp.ANY_BIT: bool(value & constant)})[kind] else no


@pytest.mark.parametrize(("machine", "call", "arguments", "wanted"), FILTERED)
def test_the_filter(machine, call, arguments, wanted):
    column, architecture = seccomp.ARCHITECTURES[machine]
    tables = {
        name: numbers
        for table in vars(syscalls).values()
        if isinstance(table, dict)
        for name, numbers in table.items()
        if isinstance(numbers, tuple)
    }
    number = tables[call][column] if isinstance(call, str) else call
    code = seccomp.program(machine=machine)
    assert run_filter(code, number, architecture, arguments) == wanted
    other = next(each for name, (_, each) in seccomp.ARCHITECTURES.items() if name != machine)
    assert run_filter(code, number, other, arguments) == KILLED


def test_the_filter_for_a_program_that_sees_others():
    for machine, (column, architecture) in seccomp.ARCHITECTURES.items():
        code = seccomp.program(machine=machine, same_user=42, threads=False)
        for name, arguments, wanted in (
            ("kill", (42,), ALLOWED),
            ("kill", (1,), DENIED),
            ("tgkill", (43,), DENIED),
            ("clone", (0x3D0F00,), DENIED),
        ):
            assert run_filter(code, syscalls.JUDGED[name][column], architecture, arguments) == wanted, (machine, name)
        assert run_filter(code, syscalls.FILES["fchmodat"][column], architecture, ()) == DENIED
    with pytest.raises(ValueError, match="no table of system calls for riscv64"):
        seccomp.program(machine="riscv64")
