"""NVIDIA's driver against the CUDA that the wheels bring, and the GPU's architecture."""

import os
import subprocess
from shutil import which

from rft.runs.preflight.lines import GO, NO_GO, WARN, Line, lines

# CUDA's release notes, table "CUDA Toolkit and Corresponding Driver Versions": the wheels of requirements/gpu.txt bring
# CUDA 12.8, whose own driver is 570.26; any 12.x runs on older ones from 525.60.13 on, by minor-version compatibility.
OWN, OLDEST = (570, 26), (525, 60, 13)
HOPPER = (9, 0)  # sm_90a: kernels with TMA and wgmma, which run on no other architecture, also no newer one


def check_driver() -> list[Line]:
    """The driver runs CUDA 12.8's programs, and the GPUs are of the architecture that was measured."""
    if which("nvidia-smi") is None or os.environ.get("RFT_STACK", "").startswith("cpu"):
        return [Line("driver", GO, "no GPU used")]
    query = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    rows = {tuple(cell.strip() for cell in row.split(",")) for row in done.stdout.splitlines() if "," in row}
    if done.returncode or not rows:
        found = (done.stdout + done.stderr).strip().splitlines()[:1]
        return [
            Line("driver", NO_GO, f"nvidia-smi: {' '.join(found) or 'no GPU'}", "a machine whose GPUs nvidia-smi lists")
        ]
    return [line for driver, capability in sorted(rows) for line in judge(driver, capability)]


def judge(driver: str, capability: str) -> list[Line]:
    """The lines for a driver version (`570.86.15`) and a compute capability (`9.0`), or nvidia-smi's `[N/A]`."""
    try:
        version, architecture = (tuple(map(int, text.split("."))) for text in (driver, capability))
    except ValueError:
        measured = f"nvidia-smi says driver {driver}, compute capability {capability}"
        return [Line("driver", WARN, measured, "nvidia-smi -q on that machine shows more")]
    faults = []
    if version < OLDEST:
        faults.append(Line("driver", NO_GO, f"{driver}, CUDA 12 needs 525.60.13", "a newer driver, or another machine"))
    elif version < OWN:
        measured = f"{driver}, older than CUDA 12.8's own 570.26: kernels that come as PTX cannot be compiled"
        faults.append(Line("driver", WARN, measured, "NVIDIA's package cuda-compat-12-8, or a driver from 570.26 on"))
    if architecture != HOPPER:
        measured = f"compute capability {capability}: what was measured are kernels for 9.0 (sm_90a)"
        faults.append(Line("driver", WARN, measured, "PREFLIGHT=only, then a short run, before a long one"))
    return lines("driver", faults, f"{driver}, compute capability {capability}")
