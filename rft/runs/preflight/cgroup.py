"""Memory that a container or a job scheduler leaves to this process, from the control groups of Linux, v1 and v2."""

from pathlib import Path

# Mounts below /sys/fs/cgroup, and files: limit, use; and the row of memory.stat that the kernel would drop.
V2 = (("", "unified"), "memory.max", "memory.current", "inactive_file")
V1 = (("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
UNLIMITED = 1 << 60  # v1 has no word for it, and says the largest multiple of a page


def available(root: Path = Path("/")) -> int | None:
    """Bytes below the tightest limit of this process's groups and of all above them; None where none is set.

    File pages that the kernel has not used lately count as free, as in MemAvailable.

    Args:
        root: of the file systems /proc and /sys, elsewhere in tests.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # a kernel without control groups
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            mounts, *names = V1 if controllers else V2
            for mount in mounts:
                top = root / "sys/fs/cgroup" / mount
                # In a container the path is often the host's, and the group itself is what is mounted: walk to the top.
                groups = [top / path.strip("/"), *(top / path.strip("/")).parents]
                found += [free for group in groups if group.is_relative_to(top) for free in below(group, *names)]
    return min(found, default=None)


def below(group: Path, limit: str, use: str, droppable: str) -> list[int]:
    """[bytes that a group may still use], [] where it has no limit or is not there."""
    try:
        most = (group / limit).read_text().strip()
        if most == "max" or int(most) >= UNLIMITED:
            return []
        rows = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        return [int(most) - int((group / use).read_text()) + int(dict(rows).get(droppable, 0))]
    except FileNotFoundError:
        return []
