"""Looking at processes and at their memory from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead but not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int], limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.02)


def named_memory(*pids: int) -> set[str]:
    """Entries of /dev/shm that these processes map or hold open: what could be left behind.

    Other programs of this machine use that folder too, so its listing tells nothing.
    """
    found = set()
    for pid in pids:
        words = Path(f"/proc/{pid}/maps").read_text().split()
        links = [target(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        found |= {word for word in (*words, *links) if word.startswith("/dev/shm")}
    return found


def target(link: Path) -> str:
    """What a file descriptor leads to; nothing once it is closed."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""
