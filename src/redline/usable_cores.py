"""How many cores this process may really use: by affinity, control groups and other ranks here."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from redline.control_groups import MEMBERSHIP, MOUNT, own_groups

__all__ = ["ranks_here", "usable_cpus"]


def ranks_here() -> int:
    """How many ranks of this run share the machine, as torchrun says; 1 without it."""
    if "RANK" not in os.environ or _number("WORLD_SIZE") == 1:
        return 1
    return _number("LOCAL_WORLD_SIZE")


def _number(variable: str) -> int:
    """What an environment variable says; 1 if it is no positive number."""
    try:
        return max(1, int(os.environ[variable]))
    except (KeyError, ValueError):
        return 1


def usable_cpus(cgroup: Path = MOUNT, membership: Path = MEMBERSHIP) -> int:
    """Cores by affinity and control groups, whichever allows fewer; at least 1.

    Ranks of one run on one machine share its cores evenly. One that is pinned to fewer cores than
    its parent, which is torchrun, has all of those.

    Args:
        cgroup: where control groups are mounted.
        membership: the kernel's list of this process's groups.
    """
    quotas = map(_quota, own_groups("cpu", cgroup, membership))
    limits = [math.ceil(quota) for quota in quotas if quota is not None]
    ranks = ranks_here()
    if ranks == 1:
        return max(1, min([_own_cores(), *limits]))
    shared = min([_cores_of_all_ranks(), *limits]) // ranks
    return max(1, min(_own_cores(), shared))


def _own_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cores_of_all_ranks() -> int:
    """Those that torchrun may use, which may have given each rank fewer."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            return max(_own_cores(), len(os.sched_getaffinity(os.getppid())))
    return _own_cores()


def _quota(group: Path) -> float | None:
    """Cores that a control group's quota is worth; None if there is no limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota = _read(group / "cpu.cfs_quota_us")
        period = _read(group / "cpu.cfs_period_us")
    if quota in ("", "max", "-1") or period in ("", "0"):
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
