"""Whether the files of a session are as they were when the recording ended.

When the recording ends, `session.json` takes the size and the SHA-256 of every file, and one of
itself. A file may grow afterwards, since a process may outlive the recording: its first bytes must
stay. A session whose recorder was killed has no seal, nor has one of version 0.1, and is read as it
is. Like those of checkpoints, the hashes find damage; they prove nothing about who wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

_MANIFEST = "session.json"
_LEFT_OUT = (_MANIFEST, "lock")
_LARGEST = 2**35  # bytes of a file that are read for its hash
_PIECE = 2**20  # bytes read at once


def seal(directory: Path) -> None:
    """Write the hashes of all files into session.json; what cannot be written is left unsealed.

    Args:
        directory: of the session.
    """
    with contextlib.suppress(OSError, ValueError):
        manifest = json.loads((directory / _MANIFEST).read_text())
        manifest["files"] = {
            str(path.relative_to(directory)): {"sha256": _sha256(path, size), "size_bytes": size}
            for path in sorted(directory.rglob("*"))
            if path.name not in _LEFT_OUT and (size := _size(path)) is not None
        }
        manifest["sha256"] = _own(manifest)
        temporary = directory / f"{_MANIFEST}.tmp"
        temporary.write_text(json.dumps(manifest, indent=1) + "\n")
        temporary.rename(directory / _MANIFEST)


def broken_seals(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """One sentence for each file that is not as it was sealed; [] where there is no seal.

    Args:
        directory: of the session.
        manifest: what session.json holds.
    """
    files: Any = manifest.get("files")
    if files is None and "sha256" not in manifest:
        return []
    if not isinstance(files, Mapping) or manifest.get("sha256") != _own(manifest):
        return [f"{_MANIFEST} was changed since the recording ended"]
    problems: list[str] = []
    for name, entry in cast("Mapping[str, Any]", files).items():
        size, wanted = _entry(entry)
        path = directory / str(name)
        inside = ".." not in path.parts and not os.path.isabs(str(name))
        present = _size(path) if inside else None
        if present is None:
            problems.append(f"{name!a} is missing since the recording ended")
        elif size > _LARGEST:
            problems.append(f"{name!a} is too large to be compared")
        elif present < size or _sha256(path, size) != wanted:
            problems.append(f"{name!a} was changed since the recording ended")
    return problems


def _entry(entry: Any) -> tuple[int, str]:
    """Size and hash; sizes that no file has where there are none."""
    if isinstance(entry, Mapping):
        known = cast("Mapping[str, Any]", entry)
        size, sha256 = known.get("size_bytes"), known.get("sha256")
        if type(size) is int and size >= 0 and isinstance(sha256, str):
            return size, sha256
    return 2**63, ""


def _own(manifest: Mapping[str, Any]) -> str:
    """The hash of the manifest without itself."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None for anything else."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _sha256(path: Path, size: int) -> str:
    """Of the first `size` bytes; "" where they cannot be read."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while size > 0 and (piece := file.read(min(size, _PIECE))):
                found.update(piece)
                size -= len(piece)
    except OSError:
        return ""
    return found.hexdigest()
