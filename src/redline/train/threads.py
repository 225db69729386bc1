"""How many threads torch gets under `--num-threads auto`.

More threads help only where an update has enough arithmetic to share: below that, starting and
joining them costs more than it saves. Of work, cores and load, only the load may differ between two
starts of the same run on the same machine; `config.json` keeps the number that was chosen.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from torch import nn

from redline.envs.cpus import allowed_cpus
from redline.usable_cores import usable_cpus

MULTIPLICATIONS_PER_THREAD = 5e7
"""SAC at 256 rows through layers of 256 units (1.7e8) goes from 133 to 220 SPS with a second
thread; PPO at 512 rows through layers of 64 units (1.7e7) gains nothing (two cores of an EPYC)."""
_PASSES = 3  # forward, gradient of the inputs, gradient of the weights
_SAMPLE_S = 0.1
_STAT = Path("/proc/stat")


def choose_threads(multiplications: float, cores: int, busy: float) -> int:
    """Threads for an update of so much work.

    Args:
        multiplications: of one optimizer step.
        cores: that this process may use.
        busy: how many of them other processes keep busy.
    """
    free = max(1, math.floor(cores - busy + 0.5))
    return int(min(free, max(1.0, multiplications / MULTIPLICATIONS_PER_THREAD)))


def update_multiplications(algorithm: Any, rows: float) -> float:
    """Multiplications of one optimizer step through dense layers.

    Convolutions multiply each weight at many places, so this does not hold for images.

    Args:
        algorithm: its modules are those among its attributes.
        rows: of the batch that a step learns from.
    """
    modules = [part for part in vars(algorithm).values() if isinstance(part, nn.Module)]
    parameters = {p for module in modules for p in module.parameters() if p.requires_grad}
    return _PASSES * rows * sum(parameter.numel() for parameter in parameters)


def busy_cores(stat: Path = _STAT) -> float:
    """Cores of this process's share that others keep busy, over a tenth of a second.

    Cores that the process may run on, but not use because of its control group's quota, absorb
    load first. 0 where the system does not say.

    Args:
        stat: the kernel's table of processor times.
    """
    cores = set(allowed_cpus())
    before = _times(stat, cores)
    if before is None:
        return 0.0
    own_s = time.process_time()
    time.sleep(_SAMPLE_S)
    after = _times(stat, cores)
    own_s = time.process_time() - own_s
    if after is None or after[1] <= before[1]:
        return 0.0
    share = (after[0] - before[0]) / (after[1] - before[1])
    spare = len(cores) - usable_cpus()
    return max(0.0, share * len(cores) - own_s / _SAMPLE_S - spare)


def _times(stat: Path, cores: set[int]) -> tuple[int, int] | None:
    """(busy, all) ticks of some cores, summed; proc(5) describes the columns."""
    busy = total = 0
    try:
        for line in stat.read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu" and int(name[3:]) in cores:
                ticks = [int(field) for field in fields[:8]]  # guests count as user time already
                total += sum(ticks)
                busy += sum(ticks) - ticks[3] - ticks[4]  # idle, and waiting for a disk
    except (OSError, ValueError, IndexError):
        return None
    return (busy, total) if total else None
