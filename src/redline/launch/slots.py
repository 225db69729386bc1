"""Slots: what one run at a time may use of this machine."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from redline.control_groups import MEMBERSHIP, MOUNT, own_groups
from redline.envs.cpus import allowed_cpus
from redline.errors import ConfigError
from redline.free_memory import require_memory
from redline.usable_cores import usable_cpus

_GIB = 2**30
_RUN_BYTES = 64 * 2**20  # torch alone takes twice that; some of it is shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place for one run.

    Attributes:
        name: what status and messages call it.
        cores: that the run is pinned to; () where the system does not pin.
        threads: that the run is told to use.
        gpus: indices, among those that the launcher sees, of the GPUs that it sees; None: all.
        memory_bytes: that it may hold before it is ended; None: any amount.
    """

    name: str
    cores: tuple[int, ...]
    threads: int
    gpus: tuple[int, ...] | None = None
    memory_bytes: int | None = None

    def environment(self) -> dict[str, str]:
        """Variables for the run's process, laid over those of the launcher."""
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self.gpus is None:
            return threads
        return threads | {"CUDA_VISIBLE_DEVICES": ",".join(map(_gpu_name, self.gpus))}


def _gpu_name(index: int) -> str:
    """What CUDA calls a GPU that the launcher sees: itself it may see a part of all."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in seen.split(",")] if seen else []
    return names[index] if index < len(names) else str(index)


def make_slots(
    count: int | None = None,
    *,
    cores_per_run: int = 1,
    gpus: Sequence[int] = (),
    memory_gb: float | None = None,
    oversubscribe: bool = False,
    cgroup: Path = MOUNT,
) -> list[Slot]:
    """Slots of equal size, on the cores that affinity, cpuset and control group leave.

    Args:
        count: how many; None: as many as fit.
        cores_per_run: cores of each, which are no other's.
        gpus: indices that are dealt out: one or more to each slot, or, where there are more
            slots than GPUs, one to several slots.
        memory_gb: GiB that each run may hold.
        oversubscribe: whether there may be more slots than fit, which then share cores.
        cgroup: where control groups are mounted.

    Raises:
        ConfigError: if more is asked for than there is.
    """
    for name, value in (("slots", count), ("cores_per_run", cores_per_run)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1.")
    usable = usable_cpus(cgroup)
    fit = usable // cores_per_run
    count = max(1, fit) if count is None else count
    if count > fit and not oversubscribe:
        raise ConfigError(
            f"{count} slots of {cores_per_run} cores each need {count * cores_per_run} cores, and "
            f"this process may use {usable} (by affinity and control group). Give --slots "
            f"{max(1, fit)}, fewer --cores-per-run, or --oversubscribe to let them share."
        )
    require_memory(
        count * _RUN_BYTES,
        f"slots={count}: {count:,} runs at a time x {_RUN_BYTES:,} bytes, and so it",
        "Give fewer slots: one per core is usual.",
    )
    memory_bytes = None if memory_gb is None else int(memory_gb * _GIB)
    _check_memory(count, memory_gb, cgroup)
    cores = allowed_cpus()
    if usable < len(cores):
        # A quota of time, on cores that other groups of the machine may use as well: those would
        # all begin with the first ones.
        cores = sorted(random.SystemRandom().sample(cores, usable))
    return [
        Slot(
            name=str(number),
            cores=_share(cores, number, cores_per_run),
            threads=cores_per_run,
            gpus=_dealt(gpus, number, count) if gpus else None,
            memory_bytes=memory_bytes,
        )
        for number in range(count)
    ]


def _share(cores: list[int], number: int, size: int) -> tuple[int, ...]:
    """The cores of one slot; beyond the last core it begins again with the first."""
    found = {cores[(number * size + i) % len(cores)] for i in range(size)} if cores else set()
    return tuple(sorted(found))


def _dealt(gpus: Sequence[int], number: int, count: int) -> tuple[int, ...]:
    if count >= len(gpus):
        return (gpus[number % len(gpus)],)
    return tuple(gpus[number::count])


def _check_memory(count: int, memory_gb: float | None, cgroup: Path) -> None:
    if memory_gb is None:
        return
    if memory_gb <= 0:
        raise ConfigError(f"memory_gb={memory_gb} must be positive.")
    there = usable_memory_bytes(cgroup)
    if there is not None and count * memory_gb * _GIB > there:
        raise ConfigError(
            f"{count} slots of {memory_gb:g} GiB each need {count * memory_gb:g} GiB, and this "
            f"machine lets the process have {there / _GIB:.1f}. Give fewer --slots or a smaller "
            f"--memory-gb."
        )


def usable_memory_bytes(cgroup: Path = MOUNT, membership: Path = MEMBERSHIP) -> int | None:
    """Memory by control groups and machine, whichever allows less; None if neither says.

    Args:
        cgroup: where control groups are mounted.
        membership: the kernel's list of this process's groups.
    """
    found: list[int] = []
    for group in own_groups("memory", cgroup, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
                found.append(int((group / name).read_text()))
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found) if found else None


def held_bytes(sessions: Collection[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Resident memory of all processes of some sessions, shared pages counted by share (Linux).

    The table of processes is read once for all of them: it may have thousands.

    Args:
        sessions: number of each, which is that of the process that leads it.
        proc: the kernel's table of processes.

    Returns:
        Session -> bytes; 0 where the system does not say.
    """
    total = dict.fromkeys(sessions, 0)
    for entry in proc.glob("[0-9]*"):
        try:
            # After the name in parentheses: state, parent, group, session; see proc(5).
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if session in total:
                total[session] += _proportional_bytes(entry)
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    return total


def _proportional_bytes(entry: Path) -> int:
    for line in (entry / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
