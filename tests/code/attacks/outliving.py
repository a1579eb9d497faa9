"""Attacks 50 to 54: past the end of the job, and out over sockets."""

from attack_case import SYSCALLS, Attack, attempts

DAEMON = """\
import os, time
def attempt_daemon():
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    time.sleep(600)
    os._exit(0)
"""

ATTACKS = [
    Attack(
        50,
        "leaves a daemon",
        "import signal\n"
        + DAEMON
        + """
def f(x):
    attempt_daemon()
    return 0
""",
    ),
    Attack(
        50,
        "leaves a daemon at import and dies",
        "import signal\n"
        + DAEMON
        + """
attempt_daemon()
os._exit(0)
""",
    ),
    Attack(
        51,
        "leaves a child that holds its descriptors",
        """\
import os, time
def f(x):
    if not os.fork():
        time.sleep(600)
        os._exit(0)
    os._exit(0)
""",
    ),
    Attack(
        51,
        "leaves a program of its own that holds its output",
        """\
import subprocess, sys
def f(x):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, close_fds=False)
    return 0
""",
    ),
    attempts(
        52,
        "leaves shared memory",
        SYSCALLS
        + """
def attempt_keyed():
    libc.shmget(0x52465441, 4096, 0o1666)
    libc.semget(0x52465441, 1, 0o1666)
    libc.msgget(0x52465441, 0o1666)
def attempt_files():
    libc.sem_open(b"/rft_attack_left", os.O_CREAT, 0o666, 1)
    libc.mq_open(b"/rft_attack_left", os.O_CREAT | os.O_RDWR, 0o666, None)
    for folder in ("/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp", "/run", "/run/lock", "."):
        try:
            open(folder + "/rft_attack_left", "x").close()
        except OSError:
            pass
""",
        "keyed",
        "files",
    ),
    attempts(
        53,
        "reaches the network",
        """\
import errno, socket
def reached(host, port, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as made:
        made.settimeout(0.5)
        if made.connect_ex((host, port)):
            raise OSError("not reached")
        if kind == socket.SOCK_DGRAM:
            made.send(b"x")
        return True
def attempt_listener():
    return reached("127.0.0.1", {port})
def attempt_server():
    return reached("127.0.0.1", {server_port})
def attempt_metadata():
    return reached("169.254.169.254", 80)
def attempt_udp():
    return reached("127.0.0.1", {udp_port}, socket.SOCK_DGRAM)
def attempt_dns():
    return socket.getaddrinfo("example.org", 80)
def attempt_raw():
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
def attempt_packet():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
""",
        "listener",
        "server",
        "metadata",
        "udp",
        "dns",
        "raw",
        "packet",
        seconds=3.0,
    ),
    Attack(
        53,
        "listens on the server's port",
        """\
import socket, time
def f(x):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for port in ({server_port}, {free_port}):
        made.bind(("127.0.0.1", port))
        made.listen()
    time.sleep(600)
""",
    ),
    attempts(
        54,
        "makes sockets of other families",
        """\
import socket
def attempt_abstract():
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("\\0{abstract}")
        return True
def attempt_path():
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("{host}/socket")
        return True
def attempt_netlink():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as made:
        made.bind((0, 0))
        made.send(b"\\x14\\0\\0\\0\\x12\\0\\x01\\x03" + bytes(12))  # links, all of them
        return b"lo\\0" not in made.recv(65536)
def attempt_alg():
    made = socket.socket(38, socket.SOCK_SEQPACKET)
    made.bind(("hash", "sha256"))
    return True
def attempt_vsock():
    return socket.socket(40, socket.SOCK_STREAM)
""",
        "abstract",
        "path",
        "netlink",
        "alg",
        "vsock",
    ),
]
