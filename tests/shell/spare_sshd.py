"""An ssh server of our own on the loopback address, with its own keys, home and tmux: nothing of the user's is read."""

import os
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path

from ports import free_port

SSHD = shutil.which("sshd", path=os.defpath + ":/usr/sbin:/usr/local/sbin")
NEEDED = ("ssh", "ssh-keygen", "rsync", "tmux", "git")
PRIVILEGE_SEPARATION = Path(
    "/run/sshd"
)  # Debian's sshd wants it when root starts it; an init script makes it elsewhere


def missing() -> list[str]:
    """Programs that the tests need and this machine lacks."""
    return [name for name in NEEDED if not shutil.which(name)] + ([] if SSHD else ["sshd"])


def start(folder: Path, home: Path) -> tuple[subprocess.Popen, str]:
    """(the server, the value of SPARE_SSH that logs in to it as host `spare`).

    Args:
        folder: for keys, configuration and log; its name may hold blanks.
        home: HOME of the sessions; tmux keeps its socket in `home/tmux`.
    """
    for name in ("host key", "login key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port, user = free_port(), subprocess.check_output(["id", "-un"], text=True).strip()
    shutil.copy(folder / "login key.pub", folder / "authorized")
    server_options = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": f'"{folder}/host key"',
        "AuthorizedKeysFile": f'"{folder}/authorized"',
        "PidFile": "none",
        "StrictModes": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "SetEnv": f'"HOME={home}" "TMUX_TMPDIR={home}/tmux"',
        "Subsystem": "sftp internal-sftp",
    }
    host_key = (folder / "host key.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key[0]} {host_key[1]}\n")
    client_options = {
        "HostName": "127.0.0.1",
        "Port": port,
        "User": user,
        "IdentityFile": f'"{folder}/login key"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": f'"{folder}/known"',
        "GlobalKnownHostsFile": "/dev/null",
    }
    write(folder / "sshd config", server_options)
    write(folder / "ssh config", {"Host": "spare", **client_options})
    command = [SSHD, "-D", "-f", str(folder / "sshd config"), "-E", str(folder / "sshd.log")]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    wait_for(port, server, folder / "sshd.log")
    return server, f"ssh -F {shlex.quote(str(folder / 'ssh config'))}"


def write(path: Path, options: dict) -> None:
    path.write_text("".join(f"{name} {value}\n" for name, value in options.items()))


def wait_for(port: int, server: subprocess.Popen, log: Path) -> None:
    """Until the server listens; AssertionError with its log when it ended, or not within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen: {log.read_text() if log.is_file() else 'no log'}")
