"""The control groups of this process: each of them may set a limit, and the least one counts."""

from __future__ import annotations

from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def own_groups(controller: str, mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Directories of the groups whose limits hold for this process, its own one first.

    Version 1 has a tree of groups for each controller, version 2 one for all. In a container the
    mount often is its own group, whatever path the kernel names; so the roots always count.

    Args:
        controller: such as cpu or memory.
        mount: where control groups are mounted.
        membership: the kernel's list of this process's groups.
    """
    found: list[Path] = []
    for line in _read(membership).splitlines():
        controllers, path = [*line.split(":", 2), "", ""][1:3]
        if controllers == "":
            tree = mount
        elif controller in controllers.split(","):
            tree = mount / controller
        else:
            continue
        group = tree / path.lstrip("/")
        found += [each for each in (group, *group.parents) if each.is_relative_to(tree)]
    return list(dict.fromkeys([*found, mount, mount / controller]))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not Linux
        return ""
