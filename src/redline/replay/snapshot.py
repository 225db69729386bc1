"""Incremental, verified save and load of a buffer's arrays.

Arrays are cut into chunks of fixed size. A chunk's file is named by its array, its number
and the SHA-256 of its content, so a chunk that did not change since an earlier checkpoint
is a hard link to that one's file: saving costs in proportion to what was written between.
Chunks that were never written have no file. Chunks go from the array to the file and back
without a second copy of the buffer; `replay.json` lists them all and carries a hash of
itself. No pickle: opening a stranger's checkpoint runs no code.

Hard links share their content, so damage to one file on the disk damages each checkpoint
that uses it; loading any of them finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.errors import CorruptCheckpointError, IncompatibleCheckpointError
from redline.plain_files import MANIFEST_LIMIT, open_plain, read_json
from redline.plain_text import shortened, shown
from redline.replay.snapshot_form import HostPlan, refuse, require_form, require_host_arrays
from redline.replay.storage import Arena, StoredArray

FORMAT_VERSION = 2
# Format 1 stored every observation once, with links, and the queue of a uniform sampler always.
_READABLE = (1, FORMAT_VERSION)
MANIFEST = "replay.json"
_PIECE_BYTES = 1 << 20


class SavedFile(NamedTuple):
    """One file of a saved buffer, for the manifest of the checkpoint around it.

    Attributes:
        name: file name in the buffer's directory.
        size_bytes: its size.
        sha256: hex digest of its content.
        is_new: whether this save wrote it, rather than linking an earlier checkpoint's.
    """

    name: str
    size_bytes: int
    sha256: str
    is_new: bool


def save_snapshot(
    arena: Arena,
    host_arrays: Mapping[str, Array],
    header: Mapping[str, Any],
    directory: Path,
    previous: Path | None,
) -> list[SavedFile]:
    """Write everything into `directory`, which becomes durable file by file.

    Args:
        arena: the arrays.
        host_arrays: further small arrays, written whole.
        header: plain data to find again in `read_header`.
        directory: made if need be; should be empty.
        previous: an earlier checkpoint's directory, to link unchanged chunks from.

    Returns:
        All files that make up the buffer, `replay.json` last.

    Raises:
        OSError: if the disk is full or the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: list[SavedFile] = []
    tables: dict[str, Any] = {}
    for number, (name, array) in enumerate(arena.arrays.items()):
        chunks: dict[str, str] = {}
        for chunk in np.flatnonzero(array.written):
            saved = _save_chunk(array, number, int(chunk), directory, previous)
            chunks[str(chunk)] = saved.name
            files.append(saved)
        tables[name] = {"rows": array.rows, "row_bytes": array.plan.row_bytes, "chunks": chunks}
    host: dict[str, Any] = {}
    for name, value in host_arrays.items():
        content = _bytes(np.ascontiguousarray(value))
        saved = _write(directory, previous, f"host-{len(host):02d}", content)
        host[name] = {"file": saved.name, "dtype": str(value.dtype), "shape": list(value.shape)}
        files.append(saved)
    body = {
        "format_version": FORMAT_VERSION,
        "chunk_bytes": next(iter(arena.arrays.values())).chunk_bytes,
        "header": header,
        "arrays": tables,
        "host_arrays": host,
        "files": {file.name: [file.size_bytes, file.sha256] for file in files},
    }
    text = json.dumps({"sha256": _json_digest(body), "content": body}, indent=1).encode()
    _write_durably(directory / MANIFEST, memoryview(text))
    _sync_directory(directory)
    for array in arena.arrays.values():
        array.changed[:] = False
    files.append(SavedFile(MANIFEST, len(text), hashlib.sha256(text).hexdigest(), is_new=True))
    return files


def read_manifest(directory: Path) -> dict[str, Any]:
    """The content of `replay.json`, checked against its own hash.

    Raises:
        CorruptCheckpointError: if it is missing, torn or altered.
        IncompatibleCheckpointError: if another version wrote it.
    """
    path = directory / MANIFEST
    try:
        outer = read_json(path, MANIFEST_LIMIT)
        body, digest = outer["content"], outer["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(
            f"{path} cannot be read ({shortened(error)}). Use an earlier checkpoint."
        ) from error
    if not isinstance(body, dict) or _json_digest(body) != digest:
        raise CorruptCheckpointError(
            f"{path} does not match its own SHA-256: it was altered. Use an earlier checkpoint."
        )
    version = body.get("format_version")
    if not isinstance(version, int) or version not in _READABLE:
        raise IncompatibleCheckpointError(
            f"{path} has replay format version {shown(version)}, this one reads "
            f"{_READABLE}. Use the release of Redline that wrote it."
        )
    require_form(body, path)
    return body


def load_snapshot(
    arena: Arena,
    manifest: dict[str, Any],
    directory: Path,
    host_arrays: Mapping[str, HostPlan],
    without: Collection[str] = (),
) -> dict[str, Array]:
    """Read the arrays of a snapshot in place, checking each file.

    Args:
        arena: arrays of the same layout.
        manifest: from `read_manifest`.
        directory: where the files are.
        host_arrays: what further arrays to read.
        without: arrays that an earlier format does not hold; they are zeroed.

    Returns:
        The host arrays.

    Raises:
        CorruptCheckpointError: if a file is missing, torn or altered; the arrays are then
            half loaded and must be cleared.
        IncompatibleCheckpointError: if an array is missing or of another shape.
    """
    files = manifest["files"]
    require_host_arrays(manifest, host_arrays, directory)
    held = {name: array for name, array in arena.arrays.items() if name not in without}
    for name, array in held.items():
        _require_table(array, manifest["arrays"].get(name), directory)
    for name in without:
        arena.arrays[name].clear()
    for name, array in held.items():
        table = manifest["arrays"][name]
        array.grow(table["rows"])
        _load_array(array, table["chunks"], files, manifest["chunk_bytes"], directory)
    found: dict[str, Array] = {}
    for name, plan in host_arrays.items():
        if (entry := manifest["host_arrays"].get(name)) is not None:
            value = np.empty(entry["shape"], dtype=plan.dtype)
            _read_into(directory, entry["file"], files, _bytes(value))
            found[name] = value
    return found


def _require_table(array: StoredArray, table: Mapping[str, Any] | None, directory: Path) -> None:
    plan = array.plan
    if table is None or table["row_bytes"] != plan.row_bytes:
        raise IncompatibleCheckpointError(
            f"{directory}: the saved replay has no array {plan.name!r} of "
            f"{plan.row_bytes} bytes per row. Use the settings it was saved with."
        )
    if not plan.rows <= table["rows"] <= max(plan.rows, plan.max_rows):
        refuse(
            directory,
            f"the array {plan.name!r} has {shown(table['rows'])} rows, where this replay's has "
            f"{plan.rows} to {max(plan.rows, plan.max_rows)}",
        )


def read_array(
    manifest: dict[str, Any],
    name: str,
    directory: Path,
    dtype: torch.dtype | None,
    most_rows: int,
    most_row_bytes: int,
) -> Tensor:
    """One saved array, for conversion from an earlier format.

    Args:
        manifest: from `read_manifest`.
        name: of the array.
        directory: where the files are.
        dtype: of its elements; None is the integer type of one element per row.
        most_rows: that it may have.
        most_row_bytes: that a row of it may have.

    Returns:
        [rows, elements per row].

    Raises:
        CorruptCheckpointError: if a file is missing, torn or altered.
        IncompatibleCheckpointError: if there is no such array.
    """
    table = manifest["arrays"].get(name)
    if table is None:
        raise IncompatibleCheckpointError(
            f"{directory}: the saved replay has no array {name!r}. "
            "Use the settings it was saved with."
        )
    if not table["rows"] <= most_rows or not 0 < table["row_bytes"] <= most_row_bytes:
        refuse(directory, f"the array {name!r} is larger than any of a replay of these settings")
    files, chunk_bytes = manifest["files"], manifest["chunk_bytes"]
    # The last chunk may hold rows that were reserved for growth.
    ends = [int(chunk) * chunk_bytes + files[file][0] for chunk, file in table["chunks"].items()]
    if max(ends, default=0) > (2 * most_rows + 1) * most_row_bytes + chunk_bytes:
        refuse(directory, f"the array {name!r} is larger than any of a replay of these settings")
    value = np.zeros(max([table["rows"] * table["row_bytes"], *ends]), dtype=np.uint8)
    for chunk, file in table["chunks"].items():
        first = int(chunk) * chunk_bytes
        _read_into(directory, file, files, value[first : first + files[file][0]].data)
    row_bytes = table["row_bytes"]
    dtype = dtype or (torch.int32 if row_bytes == 4 else torch.int64)
    flat = torch.from_numpy(value[: table["rows"] * row_bytes])
    return flat.view(table["rows"], row_bytes).view(dtype)


def verify_snapshot(directory: Path) -> None:
    """Check every file of a saved buffer without loading it.

    Raises:
        CorruptCheckpointError: if a file is missing, torn or altered; names it.
        IncompatibleCheckpointError: if another version wrote it.
    """
    for name, (size, digest) in read_manifest(directory)["files"].items():
        path, found = directory / name, hashlib.sha256()
        with _opened(path, size) as file:
            while piece := file.read(_PIECE_BYTES):
                found.update(piece)
        if found.hexdigest() != digest:
            raise CorruptCheckpointError(_altered(path))


def _save_chunk(
    array: StoredArray, number: int, chunk: int, directory: Path, previous: Path | None
) -> SavedFile:
    stem = f"{number:02d}-{chunk:06d}"
    first, stop = array.chunk_range(chunk)
    known = array.digest.get(chunk)
    is_same = not (array.changed[chunk] or array.plan.volatile)
    if known is not None and is_same and previous is not None:
        name = _file_name(stem, known)
        if _link(previous / name, directory / name, stop - first):
            return SavedFile(name, stop - first, known, is_new=False)
    content = array.flat_bytes()[first:stop].cpu().numpy()
    saved = _write(directory, previous, stem, content.data)
    array.digest[chunk] = saved.sha256
    return saved


def _write(directory: Path, previous: Path | None, stem: str, content: memoryview) -> SavedFile:
    digest = hashlib.sha256(content).hexdigest()
    name = _file_name(stem, digest)
    if previous is not None and _link(previous / name, directory / name, content.nbytes):
        return SavedFile(name, content.nbytes, digest, is_new=False)
    _write_durably(directory / name, content)
    return SavedFile(name, content.nbytes, digest, is_new=True)


def _file_name(stem: str, digest: str) -> str:
    return f"{stem}-{digest[:32]}.bin"


def _link(source: Path, target: Path, size: int) -> bool:
    """Make `target` the same file as `source` if that has the right size."""
    try:
        if source.stat().st_size != size:
            return False
    except OSError:
        return False  # the earlier checkpoint does not have it: it is written anew
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
        _sync_file(target)
    return True


def _write_durably(path: Path, content: memoryview) -> None:
    path.unlink(missing_ok=True)  # never write into a file that another checkpoint links to
    with path.open("wb", buffering=0) as file:
        written = 0
        while written < content.nbytes:
            written += file.write(content[written:])
        os.fsync(file.fileno())


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _json_digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _load_array(
    array: StoredArray,
    chunks: dict[str, str],
    files: dict[str, list[Any]],
    chunk_bytes: int,
    directory: Path,
) -> None:
    array.clear()
    flat = array.flat_bytes()[: array.rows * array.row_bytes]
    most = max(array.plan.max_rows * array.row_bytes, len(flat))
    for chunk, name in chunks.items():
        first = int(chunk) * chunk_bytes
        size, digest = files[name]
        if size > chunk_bytes or first + size > most or first >= len(flat):
            raise IncompatibleCheckpointError(
                f"{directory / name} reaches beyond the end of the array {array.plan.name!r}. "
                "Use the settings it was saved with."
            )
        target = flat[first : first + size]
        # Earlier versions saved rows that were only reserved for growth, which hold nothing.
        is_whole = len(target) == size
        in_place = is_whole and target.device.type == "cpu"
        staging = target if in_place else torch.empty(size, dtype=torch.uint8)
        _read_into(directory, name, files, staging.numpy().data)
        if staging is not target:
            target.copy_(staging[: len(target)])
        for touched in _overlapping(array, first, first + len(target)):
            array.written[touched] = True
            array.changed[touched] = chunk_bytes != array.chunk_bytes or not is_whole
        if chunk_bytes == array.chunk_bytes and is_whole:
            array.digest[int(chunk)] = digest


def _overlapping(array: StoredArray, first: int, stop: int) -> Iterator[int]:
    yield from range(first // array.chunk_bytes, -(-stop // array.chunk_bytes))


def _read_into(directory: Path, name: str, files: dict[str, list[Any]], target: memoryview) -> None:
    size, digest = files[name]
    filled = 0
    with _opened(directory / name, size) as file:
        while filled < size:
            count = file.readinto(target[filled:])
            if not count:
                break
            filled += count
    if filled != size or hashlib.sha256(target).hexdigest() != digest:
        raise CorruptCheckpointError(_altered(directory / name))


@contextlib.contextmanager
def _opened(path: Path, size: int) -> Iterator[Any]:
    """A file of a snapshot, once it is known to have its size.

    Raises:
        CorruptCheckpointError: if it has not, or cannot be read.
    """
    try:
        actual = path.lstat().st_size
        if actual != size:
            raise CorruptCheckpointError(
                f"{path} has {actual} bytes instead of {size}: it is torn. "
                "Use an earlier checkpoint."
            )
        with open(open_plain(path), "rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise CorruptCheckpointError(
            f"{path} cannot be read ({shortened(error)}). Use an earlier checkpoint."
        ) from error


def _altered(path: Path) -> str:
    return f"{path} does not match its SHA-256: it was altered. Use an earlier checkpoint."
