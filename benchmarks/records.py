"""Result files whose parts are measured at different times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def merged(path: Path, new: Mapping[str, Any]) -> dict[str, Any]:
    """Write `new` over what a JSON file holds, and give all of it."""
    found = {**recorded(path), **new}
    path.write_text(json.dumps(found, indent=2) + "\n")
    return found


def recorded(path: Path) -> dict[str, Any]:
    """What a JSON file holds; {} before there is one."""
    return dict(json.loads(path.read_text())) if path.exists() else {}
