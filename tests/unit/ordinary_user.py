"""What a test of sandboxes asks of its machine: an ordinary user where the tests run as root, user namespaces."""

import os
import site
import subprocess
from pathlib import Path

from rft.code.isolation.python import stage

USER = 57123  # nobody's


def command(*arguments: str, owns: Path | None = None) -> list[str]:
    """The command that runs a Python program as `USER`, who needs no right to the folder of root's interpreter.

    `owns` is a folder that shall be the user's, with the files in it.
    """
    staged = stage(Path(__file__).with_name("sandboxed"))
    os.close(staged.lock)
    for path in (owns, *owns.iterdir()) if owns else ():
        os.chown(path, USER, USER)
    for above in owns.parents if owns else ():
        if above.stat().st_uid == 0 and not above.stat().st_mode & 1:
            above.chmod(above.stat().st_mode | 0o011)
    environment = [
        f"LD_LIBRARY_PATH={staged.root}/lib",
        f"PYTHONPATH={':'.join([str(Path(__file__).parents[2]), *site.getsitepackages()])}",
    ]
    return [
        *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"),
        *("env", "-i", "PATH=/usr/bin:/bin", *environment, f"{staged.root}/{staged.interpreter}", *arguments),
    ]


def has_namespaces() -> bool:
    """Whether this user may make namespaces of users here: where not, a test of that level has nothing to try."""
    return subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True).returncode == 0
