"""How much memory or disk there is for a buffer, and the refusal when it does not fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from redline.errors import ConfigError


def available_memory(root: Path = Path("/")) -> tuple[int, str]:
    """Bytes this process may still take, and what sets the limit.

    The least of what the machine has free and what each control group above this process
    (version 1 or 2) leaves; page cache that can be dropped counts as free.

    Args:
        root: where /proc and /sys are found.
    """
    found = [_machine_memory(root)]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _group_memory(
                root / "sys/fs/cgroup", path, ("memory.max", "memory.current", "inactive_file")
            )
        elif "memory" in controllers.split(","):
            found += _group_memory(
                root / "sys/fs/cgroup/memory",
                path,
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            )
    return min(found)


def available_device_memory(device: torch.device) -> tuple[int, str] | None:
    """Free bytes of a CUDA device; None for a kind of device that does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0], f"free on {device}"
    return available_memory() if device.type == "cpu" else None


def available_disk(directory: Path) -> tuple[int, str]:
    """Free bytes on the disk that holds `directory`."""
    return shutil.disk_usage(directory).free, f"free on the disk of {directory}"


def require_fit(
    parts: dict[str, int], capacity: int, available: tuple[int, str] | None, advice: str
) -> None:
    """Refuse a buffer that cannot fit, with the arithmetic.

    Args:
        parts: what takes room -> bytes.
        capacity: transitions that these bytes are for.
        available: bytes there are, and where; None skips the check.
        advice: further ways out, to end the message.

    Raises:
        ConfigError: if the parts sum to more than is available.
    """
    needed = sum(parts.values())
    if available is None or needed <= available[0]:
        return
    room, source = available
    largest = sorted(parts.items(), key=lambda item: -item[1])[:4]
    terms = " + ".join(f"{name} {size / capacity:,.0f}" for name, size in largest)
    raise ConfigError(
        f"replay of capacity={capacity:,} transitions needs {needed / 1e9:,.2f} GB = {capacity:,} "
        f"x {needed / capacity:,.0f} bytes ({terms}{' + ...' if len(parts) > 4 else ''}), but "
        f"{room / 1e9:,.2f} GB is available ({source}). Use a capacity of at most "
        f"{int(capacity * room / needed):,}{advice}."
    )


def _machine_memory(root: Path) -> tuple[int, str]:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024, "MemAvailable of the machine"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total, "memory of the machine"


def _group_memory(mount: Path, path: str, names: tuple[str, str, str]) -> list[tuple[int, str]]:
    """What each group from `path` up to the mount leaves, for those with a limit."""
    limit_name, usage_name, cache_name = names
    found: list[tuple[int, str]] = []
    group = mount / path.lstrip("/")
    for directory in [group, *group.parents]:
        if not directory.is_relative_to(mount):
            break
        limit, usage = _read(directory / limit_name).strip(), _read(directory / usage_name).strip()
        if not (limit.isdigit() and usage.isdigit()):
            continue
        cache = 0
        for line in _read(directory / "memory.stat").splitlines():
            name, _, value = line.partition(" ")
            cache = int(value) if name == cache_name else cache
        free = max(int(limit) - max(int(usage) - cache, 0), 0)
        found.append((free, f"{limit_name} of the control group {directory}"))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not Linux, not in a group, or not ours to read: no limit known here
        return ""
