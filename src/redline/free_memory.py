"""How much memory this process may still take, and refusing what cannot fit.

Work that needs more memory than there is ends in a crash or a killed process, hours later or at
once. Whoever plans a large allocation asks here first, and says how many bytes it comes to.
"""

from __future__ import annotations

import os
from pathlib import Path

from redline.errors import ConfigError


def require_memory(
    needed: int, what: str, advice: str, available: tuple[int, str] | None = None
) -> None:
    """Refuse what cannot fit into memory, with the arithmetic.

    Args:
        needed: bytes that it takes at least.
        what: the setting and how the bytes come about, to begin the message with.
        advice: a sentence with the way out.
        available: bytes there are, and what says so; None: main memory, by `available_memory`.

    Raises:
        ConfigError: if more is needed than is available.
    """
    free, source = available_memory() if available is None else available
    if needed > free:
        raise ConfigError(
            f"{what} needs at least {_size(needed)}, and there are {_size(free)} ({source}). "
            f"{advice}"
        )


def _size(count: int) -> str:
    """Bytes, and the same in GB where that is easier to read; whole numbers of any length."""
    if count < 10**7:
        return f"{count:,} bytes"
    return f"{count:,} bytes ({count // 10**9:,}.{count // 10**7 % 100:02} GB)"


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


def resident_bytes() -> int:
    """Memory that this process holds; 0 where the system does not say."""
    words = _read(Path("/proc/self/statm")).split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


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
