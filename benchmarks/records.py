"""Result files whose parts are measured at different times."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import HARDWARE


def merged(path: Path, new: Mapping[str, Any]) -> dict[str, Any]:
    """Write `new` over what a JSON file holds, and give all of it.

    Where `new` says that it is of another machine, nothing of the file stays; see
    `require_one_machine`.
    """
    before = recorded(path)
    if "machine" in new and _differences(before.get("machine"), new["machine"]):
        before = {}
    found = {**before, **new}
    path.write_text(json.dumps(found, indent=2) + "\n")
    return found


def recorded(path: Path) -> dict[str, Any]:
    """What a JSON file holds; {} before there is one."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _differences(there: Mapping[str, str] | None, here: Mapping[str, str]) -> list[str]:
    """What of two machines differs; nothing where none is recorded."""
    return [
        f"{name} {there.get(name)!r}, here {here.get(name)!r}"
        for name in (("gpu", *HARDWARE) if there else ())
        if there is not None and there.get(name) != here.get(name)
    ]


def require_one_machine(path: Path, kept: Collection[str], here: Mapping[str, str]) -> None:
    """Refuse to measure parts here for a page whose other parts were measured elsewhere.

    Args:
        path: the recorded results; their page names one machine for all of them.
        kept: names of the parts that stay as they are recorded.
        here: this machine, as `benchmarks.machine.describe` gives it.

    Raises:
        SystemExit: if parts are kept, and the machine of the file is another.
    """
    other = _differences(recorded(path).get("machine"), here)
    if kept and other:
        raise SystemExit(
            f"{path} has results of another machine ({'; '.join(other)}), and its page names one "
            f"machine for all: {', '.join(kept)}. Move the file away, and measure all parts here."
        )
