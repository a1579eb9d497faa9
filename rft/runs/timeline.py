"""Memory over a run's time, in a file of bounded size: what its processes held when, and at most in each phase.

`memory_timeline.json` holds two lists of points, which cover the whole run with fewer and fewer details, and its last
ten minutes. A point:

    {"time": 1763800000.0, "seconds": 4.0, "phases": {"train": 4.0}, "host_gb": {"trainer": 3.1, "engine": 9.5},
     "gpu_mib": {"0": {"trainer": 30211, "engine": 21000}}}

`time` is the first sample's (seconds since the epoch), `seconds` what it covers, `phases` its seconds by phase of
`rft.record.step_phases`, with an empty name outside a step. Memory is that of one sample, which held the most.
"""

import json
from collections import deque
from pathlib import Path

from rft.record.files import replace_text

WHOLE = 1000  # points of the whole run; of more, neighbours become one
RECENT = 300  # samples


class Timeline:
    """Points of a run, continued where the run is resumed.

    Attributes:
        whole, recent: points, oldest first.
        peaks: by phase `host_gb` and `gpu_mib` of the samples that held the most, each device's own.
    """

    def __init__(self) -> None:
        self.whole: list[dict] = []
        self.recent: deque[dict] = deque(maxlen=RECENT)
        self.peaks: dict[str, dict] = {}
        self.samples = 1  # that make a point of `whole`
        self._open = 0  # samples in its last point

    @classmethod
    def read(cls, file: Path) -> "Timeline":
        """The timeline that an earlier part of the run wrote; an empty one where there is none, or it is damaged."""
        made = cls()
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            made.whole, made.samples = list(content["whole"]), int(content["samples_a_point"])
            made.recent.extend(content["recent"])
            made.peaks = dict(content["peaks"])
            made._open = made.samples  # the next sample begins a point
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return cls()
        return made

    def add(self, point: dict) -> None:
        """Add a sample, a point with one phase."""
        self.recent.append(point)
        (phase,) = point["phases"]
        self.peaks[phase] = heaviest(self.peaks.get(phase, {"host_gb": {}, "gpu_mib": {}}), point)
        if self.whole and self._open < self.samples:
            self.whole[-1] = merged(self.whole[-1], point)
            self._open += 1
            return
        if len(self.whole) == WHOLE:
            self.whole = [merged(*self.whole[i : i + 2]) for i in range(0, WHOLE, 2)]
            self.samples *= 2
        self.whole.append(point)
        self._open = 1

    def write(self, file: Path) -> None:
        content = {"samples_a_point": self.samples, "peaks": self.peaks, "whole": self.whole}
        text = json.dumps(content | {"recent": list(self.recent)}, separators=(",", ":"))
        replace_text(file, text + "\n")


def merged(first: dict, second: dict) -> dict:
    """One point of two neighbours."""
    phases = dict(first["phases"])
    for name, seconds in second["phases"].items():
        phases[name] = phases.get(name, 0.0) + seconds
    covered = first["seconds"] + second["seconds"]
    return {"time": first["time"], "seconds": covered, "phases": phases} | heaviest(first, second)


def heaviest(first: dict, second: dict) -> dict:
    """`host_gb` and each GPU's share of `gpu_mib` from the point that held more there in all; roles are not mixed."""
    gpus = {}
    for index in sorted(first["gpu_mib"].keys() | second["gpu_mib"].keys()):
        gpus[index] = max((point["gpu_mib"].get(index, {}) for point in (first, second)), key=total)
    return {"host_gb": max(first["host_gb"], second["host_gb"], key=total), "gpu_mib": gpus}


def total(roles: dict[str, float]) -> float:
    return sum(roles.values())
