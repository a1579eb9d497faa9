"""Attacks 55 to 58: system calls that a program has no use for."""

from attack_case import SYSCALLS, attempts

ATTACKS = [
    attempts(
        55,
        "makes namespaces and mounts",
        SYSCALLS
        + """
def done(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "no")
    return True
def attempt_user():
    return done(libc.unshare(0x10000000))
def attempt_mountns():
    return done(libc.unshare(0x00020000))
def attempt_net():
    return done(libc.unshare(0x40000000))
def attempt_mount():
    return done(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
def attempt_remount():
    return done(libc.mount(b"none", b"/", None, 32 | 4096, None))
def attempt_umount():
    return done(libc.umount2(b"/tmp", 2))
def attempt_chroot():
    return done(libc.chroot(b"/tmp"))
def attempt_pivot():
    return call(155, 41, 0, 0)
def attempt_clone():
    return call(435, 435, 0, 0)
def attempt_setuid():
    return done(libc.setresuid(*[1 if os.getuid() else 2] * 3))
""",
        "user",
        "mountns",
        "net",
        "mount",
        "remount",
        "umount",
        "chroot",
        "pivot",
        "clone",
        "setuid",
    ),
    attempts(
        56,
        "traces and reads other processes",
        SYSCALLS
        + """
def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()] + [os.getppid()]
def any_of(act):
    for pid in others():
        try:
            if act(pid):
                return True
        except OSError:
            pass
    raise OSError("none")
def attempt_attach():
    return any_of(lambda pid: call(101, 117, 16, pid, 0, 0))
def attempt_seize():
    return any_of(lambda pid: call(101, 117, 0x4206, pid, 0, 0))
def attempt_readv():
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    return any_of(lambda pid: call(310, 270, pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0))
def attempt_memory():
    return any_of(lambda pid: open(f"/proc/{pid}/mem", "rb"))
def attempt_pidfd():
    return any_of(lambda pid: call(434, 434, pid, 0) and call(438, 438, libc.syscall(434, pid, 0), 3, 0))
""",
        "attach",
        "seize",
        "readv",
        "memory",
        "pidfd",
    ),
    attempts(
        57,
        "makes rare system calls",
        SYSCALLS
        + """
import time
ZEROS = ctypes.create_string_buffer(256)
AT = ctypes.addressof(ZEROS)
def attempt_io_uring():
    return call(425, 425, 4, AT)
def attempt_bpf():
    return call(321, 280, 0, AT, 128)
def attempt_userfaultfd():
    return call(323, 282, 1)
def attempt_keyctl():
    return call(250, 219, 0, -3, 1)
def attempt_add_key():
    return call(248, 217, ctypes.addressof(ctypes.create_string_buffer(b"user")), AT, AT, 1, -3)
def attempt_perf():
    ZEROS[4] = 112
    return call(298, 241, AT, 0, -1, -1, 0)
def attempt_modules():
    return call(175, 105, AT, 1, AT)
def attempt_kexec():
    return call(246, 104, 0, 0, 0, 0)
def attempt_reboot():
    return call(169, 142, 0, 0, 0, 0)
def attempt_handle():
    return call(304, 265, -100, AT, 0)
def attempt_settime():
    now = (ctypes.c_long * 2)(int(time.time()), 0)
    return call(227, 112, 0, ctypes.addressof(now))
def attempt_swapon():
    return call(167, 224, AT, 0)
""",
        "io_uring",
        "bpf",
        "userfaultfd",
        "keyctl",
        "add_key",
        "perf",
        "modules",
        "kexec",
        "reboot",
        "handle",
        "settime",
        "swapon",
    ),
    attempts(
        58,
        "types into a terminal",
        """\
import fcntl, os, termios
def attempt_tty():
    fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), termios.TIOCSTI, b"x")
    return True
def attempt_console():
    fcntl.ioctl(os.open("/dev/console", os.O_RDWR), termios.TIOCSTI, b"x")
    return True
def attempt_streams():
    done = []
    for fd in range(5):
        try:
            fcntl.ioctl(fd, termios.TIOCSTI, b"x")
            done.append(fd)
        except OSError:
            pass
    return done
def attempt_pty():
    return any(os.path.exists(f"/dev/pts/{n}") and os.open(f"/dev/pts/{n}", os.O_RDWR) for n in range(8))
""",
        "tty",
        "console",
        "streams",
        "pty",
    ),
]
