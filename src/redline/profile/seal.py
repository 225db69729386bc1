"""Whether the files of a session are as they were when the recording ended.

When the recording ends, `session.json` takes the size and the SHA-256 of every file, and one of
itself. A process that outlives the recording goes on writing, and seals its own files when it ends.
So every byte is sealed but those of processes that did not end, and these are named as long as
they have added something. A session whose recorder was killed has no seal and says so; one of
version 0.1 has none either, and is read as it is. Like those of checkpoints, the hashes find
damage; they prove nothing about who wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from redline.plain_files import lock_within
from redline.profile import layout

UNSEALED = {"sealed": False}
"""What a new manifest holds in place of a seal."""

_MANIFEST = "session.json"
_LEFT_OUT = (_MANIFEST, f"{_MANIFEST}.tmp", "lock")
_PROCESSES = "processes"
_READ_BESIDE = (Path(layout.MACHINE_SAMPLES),)
_LARGEST = 2**35  # bytes of a file that are read for its hash
_PIECE = 2**20  # bytes read at once
_LARGE = 2**26  # bytes of a session that are read beside whatever else is done
_PATIENCE_S = 10.0  # a process that ends waits no longer for others that seal their files


def seal(directory: Path) -> None:
    """Write the hashes of all files into session.json; what cannot be written is left unsealed.

    Args:
        directory: of the session.
    """
    with contextlib.suppress(OSError, ValueError), _alone(directory):
        manifest = _manifest(directory)
        manifest["files"] = _hashes(directory, directory)
        _write(directory, manifest)


def seal_process(directory: Path, process: Path) -> None:
    """Renew the seal on the files of a process that has outlived the recording.

    Before the recording's end this does nothing: all is sealed then.

    Args:
        directory: of the session.
        process: its subdirectory with the files of the process, which are closed.
    """
    with contextlib.suppress(OSError, ValueError), _alone(directory):
        manifest = _manifest(directory)
        # What was damaged before must not become right by a new hash of the manifest.
        if "files" in manifest and manifest.get("sha256") == _own(manifest):
            manifest["files"] = {**manifest["files"], **_hashes(directory, process)}
            _write(directory, manifest)


@contextlib.contextmanager
def _alone(directory: Path) -> Generator[None]:
    """Only one process at a time changes the manifest.

    Raises:
        OSError: if another one takes too long.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        lock_within(handle, _PATIENCE_S)
        yield
    finally:
        os.close(handle)


def _manifest(directory: Path) -> dict[str, Any]:
    found: Any = json.loads((directory / _MANIFEST).read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{_MANIFEST} holds no table")
    return cast("dict[str, Any]", found)


def _hashes(directory: Path, below: Path) -> dict[str, dict[str, Any]]:
    """Name -> size and hash of each file below a part of a session."""
    return {
        name: {"sha256": _sha256(path, size), "size_bytes": size}
        for path in sorted(below.rglob("*"))
        if (name := str(path.relative_to(directory))) not in _LEFT_OUT
        and (size := _size(path)) is not None
    }


def _write(directory: Path, manifest: dict[str, Any]) -> None:
    manifest["sealed"] = True
    manifest["sha256"] = _own(manifest)
    temporary = directory / f"{_MANIFEST}.tmp"
    temporary.write_text(json.dumps(manifest, indent=1) + "\n")
    temporary.rename(directory / _MANIFEST)


def broken_seals(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """One sentence for each file that is not as it was sealed; [] for sessions of version 0.1.

    Args:
        directory: of the session.
        manifest: what session.json holds.
    """
    files: Any = manifest.get("files")
    if files is None and "sha256" not in manifest:
        if "sealed" not in manifest:
            return []
        if manifest["sealed"] is False:
            return [
                "it is not sealed: its recorder still records, or was killed. A later change of "
                "its files cannot be found"
            ]
    if not isinstance(files, Mapping) or manifest.get("sha256") != _own(manifest):
        return [f"{_MANIFEST} was changed since the recording ended"]
    sealed = cast("Mapping[str, Any]", files)
    found = (_broken(directory, str(name), entry) for name, entry in sealed.items())
    return [problem for problem in found if problem] + _unknown(directory, sealed)


class SealCheck:
    """What is not as it was sealed, found once it is asked for, or before by a thread of its own.

    Args:
        directory: of the session.
        manifest: what session.json holds.
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any]) -> None:
        self._directory, self._manifest = directory, manifest
        self._found: list[str] | None = None
        self._coming: Future[list[str]] | None = None
        self._pid = os.getpid()

    def begin(self) -> None:
        """Look beside whatever else is done, where the session is large."""
        if self._found is not None or self._coming is not None:
            return
        files = (self._directory / _PROCESSES).rglob("*")
        if sum(_size(path) or 0 for path in files) >= _LARGE:
            pool = ThreadPoolExecutor(1, "seal")
            with contextlib.suppress(RuntimeError):  # no thread can begin: it is done when asked
                self._coming = pool.submit(broken_seals, self._directory, self._manifest)
            pool.shutdown(wait=False)

    def problems(self) -> list[str]:
        """One sentence for each file; see `broken_seals`."""
        if self._found is None:
            # The thread is not there in a child that was forked meanwhile.
            if self._coming is not None and self._pid == os.getpid():
                self._found = self._coming.result()
            else:
                self._found = broken_seals(self._directory, self._manifest)
            self._coming = None
        return list(self._found)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_coming": None}


def _broken(directory: Path, name: str, entry: Any) -> str | None:
    """What is wrong with one file that was sealed."""
    size, wanted = _entry(entry)
    path = directory / name
    inside = ".." not in path.parts and not os.path.isabs(name)
    present = _size(path) if inside else None
    if present is None:
        return f"{name!a} is missing since the recording ended"
    if size > _LARGEST:
        return f"{name!a} is too large to be compared"
    if present < size or _sha256(path, size) != wanted:
        return f"{name!a} was changed since the recording ended"
    if present > size:
        return (
            f"{name!a} has grown by {present - size} bytes since it was sealed: its process has "
            "outlived the recording and has not ended by itself, or the file was changed"
        )
    return None


def _unknown(directory: Path, sealed: Mapping[str, Any]) -> list[str]:
    """One sentence for each file that a report would read and that was not there.

    Reports, traces and tables may be written beside the recording, but not among the processes.
    """
    inside = (path.relative_to(directory) for path in (directory / _PROCESSES).rglob("*"))
    names = (str(path) for path in (*sorted(inside), *_READ_BESIDE))
    return [
        f"{name!a} is not sealed: it came after the end of the recording"
        for name in names
        if name not in sealed and _size(directory / name) is not None
    ]


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
