"""What the results were measured on, without naming the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

HARDWARE = ("processor", "cores", "memory_gib", "system")
"""Of what `describe` gives, what the machine itself is."""

PACKAGES = ("torch", "gymnasium", "numpy", "mujoco", "ale-py", "envpool", "minatar", "redline")


def processor() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, str]:
    """Processor, cores, memory, system, Python and the versions of what matters."""
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    found = {
        "processor": processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{page * pages / 2**30:.0f}",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def as_markdown(described: Mapping[str, str] | None = None) -> str:
    """The same as a table; of another machine, if what was described there is given."""
    table = describe() if described is None else described
    rows = "\n".join(f"| {name} | {value} |" for name, value in table.items())
    return f"| machine | |\n|---|---|\n{rows}\n"
