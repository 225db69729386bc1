"""Random damage to the files of a directory; imports no torch."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

LEFT_OUT = ("lock", ".lock")


def damage(root: Path, rng: random.Random) -> str:
    """Do something to one file or name; what it was."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name not in LEFT_OUT)
    if not files:
        return "nothing left"
    path = rng.choice(files)
    shown = path.relative_to(root)
    how = rng.choice(_DAMAGES)
    if how == "value" and path.suffix in (".json", ".jsonl"):
        return f"{shown}: {other_value(path, rng)}"
    if how == "delete":
        path.unlink()
    elif how == "swap":
        other = rng.choice(files)
        data = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return f"{shown} swapped with {other.relative_to(root)}"
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "rename":
        target = path.with_name(rng.choice(("x", "state.json", "a" * 200, ".tmp-1")))
        if not target.is_dir():  # it may have become one
            path.rename(target)
    elif how == "remove parent" and path.parent != root:
        shutil.rmtree(path.parent)
    else:
        data = bytearray(path.read_bytes())
        how = spoil(data, rng)
        path.write_bytes(data)
    return f"{shown}: {how}"


_DAMAGES = (
    "bytes", "bytes", "bytes", "bytes", "value", "value", "delete", "swap", "folder", "rename",
    "remove parent",
)  # fmt: skip


def spoil(data: bytearray, rng: random.Random) -> str:
    """Change bytes in place; how."""
    at = rng.randrange(len(data)) if data else 0
    how = rng.choice(("bit", "bit", "byte", "cut", "append", "zeros", "twice", "empty"))
    if how == "bit" and data:
        data[at] ^= 1 << rng.randrange(8)
        return f"bit of byte {at} flipped"
    if how == "byte" and data:
        data[at] = rng.randrange(256)
    elif how == "cut":
        del data[at:]
    elif how == "append":
        data += rng.randbytes(rng.randint(1, 50))
    elif how == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif how == "twice":
        data += bytes(data)
    else:
        data.clear()
    return f"{how} at {at}"


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, -(2**63), 1e308, -1e-308, "", "x", "../../x",
    "/etc/passwd", "\0", "\x1b[2J", [], {}, [[[[]]]], "9" * 5000, [1] * 100,
)  # fmt: skip


def other_value(path: Path, rng: random.Random) -> str:
    """Give one value inside a JSON file another one; which."""
    lines = path.suffix == ".jsonl"
    try:
        text = path.read_text()
        data = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    except ValueError:
        return "left as it is"
    places = list(_places(data))
    if not places:
        return "left as it is"
    holder, key, trail = rng.choice(places)
    value = rng.choice(STRANGE)
    if rng.random() < 0.1:
        del holder[key]
        said = f"{trail} removed"
    else:
        holder[key] = value
        said = f"{trail} = {value!r:.40}"
    path.write_text(
        "".join(json.dumps(each) + "\n" for each in data) if lines else json.dumps(data)
    )
    return said


def _places(data: Any, trail: str = "") -> list[tuple[Any, Any, str]]:
    """Every place in nested data: (holder, key or index, how it is reached)."""
    found: list[tuple[Any, Any, str]] = []
    pairs: Any = ()
    if isinstance(data, dict):
        pairs = list(data.items())
    elif isinstance(data, list):
        pairs = list(enumerate(data))
    for key, value in pairs:
        found.append((data, key, f"{trail}.{key}"))
        found += _places(value, f"{trail}.{key}")
    return found
