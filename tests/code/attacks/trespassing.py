"""Attacks 59 to 64: files and processes of the host and of other jobs."""

from attack_case import LITERAL, Attack, attempts

ATTACKS = [
    attempts(
        59,
        "follows links out of its folder",
        """\
import os
def read(path):
    with open(path, "rb") as file:
        return file.read()
def attempt_plain():
    return read("{host}/secret")
def attempt_symlink():
    os.symlink("{host}/secret", "/tmp/rft_attack_link")
    try:
        return read("/tmp/rft_attack_link")
    finally:
        os.unlink("/tmp/rft_attack_link")
def attempt_hardlink():
    os.link("{host}/secret", "/tmp/rft_attack_left")
    return True
def attempt_root():
    return any(read(f"/proc/{pid}/root{host}/secret") for pid in (1, os.getppid(), "self"))
def attempt_cwd():
    return read(f"/proc/1/cwd/{'../' * 12}{host}/secret"[:4000])
def attempt_path():
    return os.open("{host}", os.O_PATH | os.O_DIRECTORY) >= 0 and read("{host}/secret")
def attempt_shadow():
    return read("/etc/shadow")
def attempt_devices():
    return any(os.path.exists(name) and os.open(name, os.O_RDONLY) for name in ("/dev/vda", "/dev/sda", "/dev/mem"))
""",
        "plain",
        "symlink",
        "hardlink",
        "root",
        "cwd",
        "path",
        "shadow",
        "devices",
    ),
    Attack(
        59,
        "swaps a folder for a link while it is cleaned",
        """\
import os, threading
os.makedirs("/tmp/rft_attack_left_a/b/c", exist_ok=True)
def swap():
    while True:
        try:
            os.rename("/tmp/rft_attack_left_a", "/tmp/rft_attack_left_b")
            os.symlink("{host}", "/tmp/rft_attack_left_a")
            os.unlink("/tmp/rft_attack_left_a")
            os.rename("/tmp/rft_attack_left_b", "/tmp/rft_attack_left_a")
        except OSError:
            pass
def f(x):
    threading.Thread(target=swap, daemon=True).start()
    return 0
""",
    ),
    Attack(
        60,
        "makes a tree that nobody may enter",
        """\
import os
os.makedirs("/tmp/rft_attack_left/a/b/c", exist_ok=True)
open("/tmp/rft_attack_left/a/b/c/d", "w").close()
os.chmod("/tmp/rft_attack_left/a/b", 0)
os.chmod("/tmp/rft_attack_left", 0)
def deep():
    os.mkdir("/tmp/rft_attack_deep")
    os.chdir("/tmp/rft_attack_deep")
    for _ in range(3000):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
def f(x):
    try:
        deep()
    except OSError:
        pass
    return 0
""",
    ),
    attempts(
        61,
        "writes where it may only read",
        """\
import os, sys
def write(path):
    os.close(os.open(path, os.O_WRONLY))
    return True
def create(folder):
    os.close(os.open(os.path.join(folder, "rft_attack_left"), os.O_CREAT | os.O_WRONLY))
    return True
def attempt_library():
    return write(os.__file__)
def attempt_python():
    return write(os.path.realpath(sys.executable))
def attempt_beside():
    return create(os.path.dirname(os.__file__))
def attempt_usr():
    return create("/usr/lib")
def attempt_etc():
    return create("/etc")
def attempt_root():
    return create("/")
def attempt_host():
    return create("{host}")
def attempt_sys():
    return write("/sys/kernel/mm/transparent_hugepage/enabled")
def attempt_sysctl():
    return write("/proc/sys/kernel/core_pattern")
def attempt_hostname():
    return write("/proc/sys/kernel/hostname")
def attempt_oom():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return True
def attempt_cgroup():
    return create("/sys/fs/cgroup")
def attempt_chmod():
    os.chmod(os.path.dirname(os.__file__), 0o755)
    return True
""",
        "library",
        "python",
        "beside",
        "usr",
        "etc",
        "root",
        "host",
        "sys",
        "sysctl",
        "hostname",
        "oom",
        "cgroup",
        "chmod",
    ),
    Attack(
        62,
        "stops itself",
        "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGSTOP)\n    return 0",
        (LITERAL,),
        seconds=0.2,
    ),
    Attack(
        62,
        "stops itself at import, with its group",
        """\
import os, signal
signal.signal(signal.SIGCONT, signal.SIG_IGN)
os.killpg(0, signal.SIGSTOP)
os.kill(os.getppid(), signal.SIGSTOP)
""",
    ),
    attempts(
        63,
        "looks for another job's files",
        """\
import os
def attempt_files():
    found = []
    for top in ("/tmp", "/dev/shm", "/var/tmp", "/run", os.getcwd(), os.path.dirname(os.getcwd())):
        for folder, _, names in os.walk(top):
            found += [name for name in names if name.startswith("rft_attack_neighbour")]
    return found
def attempt_processes():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append("rft-neighbour" in open(f"/proc/{pid}/comm").read())
        except OSError:
            pass
    return any(found)
""",
        "files",
        "processes",
    ),
    attempts(
        64,
        "kills or limits those of the same uid",
        """\
import os, resource, signal
def each(act):
    done = []
    for pid in range(1, 70_000):
        if pid not in (os.getpid(), os.getppid(), 1):
            try:
                act(pid)
                done.append(pid)
            except OSError:
                pass
    return done
def attempt_limit():
    return each(lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)))
def attempt_stop():
    return each(lambda pid: os.kill(pid, signal.SIGSTOP))
def attempt_priority():
    return each(lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
""",
        "limit",
        "stop",
        "priority",
        seconds=4.0,
    ),
]
