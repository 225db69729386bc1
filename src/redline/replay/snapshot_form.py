"""The form of `replay.json`: whoever signed it, only this is read any further.

The list of a snapshot's files says how much memory to take and which files to read. So each of its
numbers, names and kinds is checked before anything else is opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from redline.errors import CorruptCheckpointError
from redline.plain_text import shown

_LARGEST = 2**53  # bytes, rows and positions that any program counts to
# Names from a file are not trusted as paths.
_FILE_NAME = re.compile(r"[\w-]+\.bin")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = re.compile(r"0|[1-9][0-9]{0,15}")


class HostPlan(NamedTuple):
    """A small array that a snapshot must hold.

    Attributes:
        dtype: of its elements.
        shape: None: one axis of any length up to `most`.
        most: elements it may have, where `shape` is None.
        is_optional: whether it may be missing.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    most: int = 0
    is_optional: bool = False


def refuse(where: Path, what: str) -> NoReturn:
    """Refuse a snapshot.

    Args:
        where: its directory or file.
        what: is wrong with it; no full stop.

    Raises:
        CorruptCheckpointError: always.
    """
    raise CorruptCheckpointError(f"{where}: {what}. Use an earlier checkpoint.")


def is_count(value: Any, most: int = _LARGEST) -> bool:
    """Whether it is a whole number from 0 to `most`; True and False are none."""
    return type(value) is int and 0 <= value <= most


def require_form(body: Any, path: Path) -> None:
    """Refuse a list of files that no replay writes.

    Args:
        body: the content of `replay.json`.
        path: that file.

    Raises:
        CorruptCheckpointError: naming what is wrong.
    """
    if not isinstance(body, Mapping):
        refuse(path, f"it holds {shown(body)}, which is no list of files")
    _require_files(body.get("files"), path)
    if not is_count(body.get("chunk_bytes")) or not body["chunk_bytes"]:
        refuse(path, f"chunk_bytes is {shown(body.get('chunk_bytes'))}, which is no size")
    header = _mapping(body, "header", path)
    _mapping(header, "layout", path)
    for name, table in _mapping(body, "arrays", path).items():
        _require_table(name, table, body["files"], path)
    for name, entry in _mapping(body, "host_arrays", path).items():
        if not isinstance(entry, Mapping) or not _is_listed(entry.get("file"), body["files"]):
            refuse(path, f"the entry of {shown(name)} is {shown(entry)}, which names no file of it")


def require_host_arrays(body: Mapping[str, Any], plans: Mapping[str, HostPlan], path: Path) -> None:
    """Refuse small arrays of another kind than the buffer's.

    Args:
        body: the content of `replay.json`, in form.
        plans: what is wanted, by name.
        path: directory of the snapshot.

    Raises:
        CorruptCheckpointError: naming the array.
    """
    for name, plan in plans.items():
        entry = body["host_arrays"].get(name)
        if entry is None:
            if not plan.is_optional:
                refuse(path, f"the saved replay has no array {name!r}")
            continue
        dtype, shape = entry.get("dtype"), entry.get("shape")
        if dtype != str(plan.dtype):
            refuse(path, f"the array {name!r} is of {shown(dtype)} instead of {plan.dtype}")
        if not isinstance(shape, list) or not all(is_count(axis) for axis in shape):
            refuse(path, f"the array {name!r} has the shape {shown(shape)}, which is none")
        size = math.prod(shape) * plan.dtype.itemsize
        if size != body["files"][entry["file"]][0]:
            refuse(
                path,
                f"the array {name!r} has {shown(size)} bytes by its shape, and another number in "
                f"its file",
            )
        fits = shape == list(plan.shape or ()) if plan.shape is not None else len(shape) == 1
        if not fits or (plan.shape is None and shape[0] > plan.most):
            wanted = list(plan.shape) if plan.shape is not None else f"at most [{plan.most}]"
            refuse(path, f"the array {name!r} has the shape {shown(shape)} instead of {wanted}")


def _require_files(files: Any, path: Path) -> None:
    if not isinstance(files, Mapping):
        refuse(path, f"files is {shown(files)}, which is no table")
    for name, entry in files.items():
        if not _FILE_NAME.fullmatch(name):
            refuse(path, f"it lists the file {shown(name)}, which no replay has")
        well_formed = (
            isinstance(entry, list)
            and len(entry) == 2
            and is_count(entry[0])
            and isinstance(entry[1], str)
            and _SHA256.fullmatch(entry[1])
        )
        if not well_formed:
            refuse(path, f"the entry of {shown(name)} is {shown(entry)}, not a size and a SHA-256")


def _require_table(name: str, table: Any, files: Mapping[str, Any], path: Path) -> None:
    keys: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("rows", is_count),
        ("row_bytes", is_count),
        ("chunks", lambda value: isinstance(value, Mapping)),
    )
    if not isinstance(table, Mapping):
        refuse(path, f"the table of {shown(name)} is {shown(table)}")
    for key, is_right in keys:
        if not is_right(table.get(key)):
            refuse(path, f"{key} of {shown(name)} is {shown(table.get(key))}")
    for chunk, file in table["chunks"].items():
        if not _CHUNK.fullmatch(chunk) or not _is_listed(file, files):
            refuse(path, f"the chunk {shown(chunk)} of {shown(name)} is {shown(file)}")


def _is_listed(file: Any, files: Mapping[str, Any]) -> bool:
    return isinstance(file, str) and file in files


def _mapping(body: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(found := body.get(key), Mapping):
        refuse(path, f"{key} is {shown(found)}, which is no table")
    return found
