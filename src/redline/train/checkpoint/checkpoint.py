"""One checkpoint: a directory that holds all that a run needs to go on.

```
step_000000012345/
├── manifest.json        format, step, metadata, SHA-256 and size of the other files
├── state.json           the state tree, as in `tree`
├── tensors.safetensors  its arrays
└── replay/              of an off-policy run; has a manifest of its own, replay.json
```

It holds data only: nothing in it is run when it is opened, and no name in it is used as a
path. It is written beside its place, synced to disk and renamed, so that a process killed
at any moment leaves a whole one or none. The manifest carries a hash of itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redline.errors import CheckpointError, CorruptCheckpointError, IncompatibleCheckpointError
from redline.plain_files import MANIFEST_LIMIT, read_json
from redline.plain_text import shortened, shown
from redline.replay import Replay, verify_snapshot
from redline.train.checkpoint.atomic_files import atomic_directory
from redline.train.checkpoint.files import HashedFile, check_file, open_tensors, write_tensors
from redline.train.checkpoint.tree import decode_tree, encode_tree

FORMAT = "redline-checkpoint"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
STATE = "state.json"
TENSORS = "tensors.safetensors"
REPLAY = "replay"
REPLAY_MANIFEST = "replay.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        state: the tree that was saved; tensors on the CPU.
        metadata: what describes it, such as algorithm, env and counters.
        step: env_steps at which it was saved.
        score: what "best" compares, None if it was saved without.
        path: where it lies.
        replay: directory of the saved replay; None if there is none.
        run_files: name -> SHA-256 and size of the files that lay beside the checkpoints; empty
            in those of earlier versions.
    """

    state: dict[str, Any]
    metadata: dict[str, Any]
    step: int
    score: float | None
    path: Path
    replay: Path | None = None
    run_files: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(
    directory: Path | str,
    step: int,
    state: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any],
    score: float | None = None,
    score_of: str | None = None,
    replay: Replay | None = None,
    previous: Path | None = None,
    run_files: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint.

    Args:
        directory: the checkpoint itself; it must not exist yet.
        step: env_steps so far.
        state: a tree of plain data, tensors and numpy arrays; see `encode_tree`.
        metadata: plain data only, readable without opening the state.
        score: higher is better.
        score_of: what it is the mean of; one of something else says nothing of it.
        replay: saved beside the state, if there is one.
        previous: an earlier checkpoint, of whose replay the unchanged files are linked.
        run_files: plain data about the files beside the checkpoints; see `sealed_files`.

    Raises:
        CheckpointError: if state or metadata hold what cannot be saved, or the state more plain
            data than would be read again; names where.
        RunDirectoryError: if the directory exists or cannot be written.
    """
    plain, arrays = encode_tree(dict(state))
    plain_metadata, metadata_arrays = encode_tree(dict(metadata))
    if metadata_arrays:
        raise CheckpointError(
            f"metadata holds the array {next(iter(metadata_arrays))!r}. Arrays belong in the "
            f"state; metadata is plain data."
        )
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "score": score if score is not None and math.isfinite(score) else None,
        "metadata": plain_metadata,
    }
    if score_of is not None:
        manifest["score_of"] = score_of
    text = json.dumps(plain).encode()
    _require_readable(plain, len(text))
    with atomic_directory(directory) as temporary:
        with HashedFile(temporary / STATE) as state_file:
            state_file.write(text)
        manifest["files"] = {
            STATE: state_file.entry(),
            TENSORS: write_tensors(temporary / TENSORS, arrays),
        }
        if run_files:
            manifest["run_files"] = dict(run_files)
        if replay is not None:
            manifest["replay"] = _save_replay(replay, temporary, previous)
        manifest["manifest_sha256"] = _manifest_sha256(manifest)
        with HashedFile(temporary / MANIFEST) as manifest_file:
            manifest_file.write(json.dumps(manifest, indent=2).encode() + b"\n")


def _require_readable(plain: Any, size: int) -> None:
    """Refuse to write what could not be read again.

    Raises:
        CheckpointError: naming the largest part.
    """
    if size <= MANIFEST_LIMIT:
        return
    path = []
    while isinstance(plain, dict) and plain:
        lengths = {key: len(json.dumps(item)) for key, item in plain.items()}
        largest = max(lengths, key=lambda key: lengths[key])
        if path and lengths[largest] < size / 2:
            break
        path.append(str(largest))
        plain = plain[largest]
    raise CheckpointError(
        f"the state to save cannot be written: it has {size:,} bytes beside its arrays, and a "
        f"checkpoint is read up to {MANIFEST_LIMIT:,}. Most of them are in {'.'.join(path)}. Keep "
        f"less there, or keep it as tensors, numpy arrays or lists of nothing but floats."
    )


def _save_replay(replay: Replay, directory: Path, previous: Path | None) -> dict[str, Any]:
    """Save the replay; what the manifest says of it."""
    earlier = None if previous is None else previous / REPLAY
    files = replay.save(directory / REPLAY, earlier if earlier and earlier.is_dir() else None)
    table = next(file for file in files if file.name == REPLAY_MANIFEST)
    return {"sha256": table.sha256, "size_bytes": table.size_bytes}


def load_checkpoint(path: Path | str, *, with_replay: bool = False) -> Checkpoint:
    """Read a checkpoint after checking every byte of it.

    Args:
        path: the checkpoint.
        with_replay: check the files of its replay too, which may be many gigabytes.

    Raises:
        CorruptCheckpointError: if a file is missing, torn or altered; names it.
        IncompatibleCheckpointError: if another version of the format wrote it.
    """
    try:
        return _load(Path(path), with_replay)
    except OSError as error:
        raise CorruptCheckpointError(f"{path} cannot be read: {error}.") from error


def _load(path: Path, with_replay: bool) -> Checkpoint:
    manifest = read_manifest(path)
    replay = None
    if (entry := manifest.get("replay")) is not None:
        replay = path / REPLAY
        check_file(replay / REPLAY_MANIFEST, entry["sha256"], entry["size_bytes"])
        if with_replay:
            verify_snapshot(replay)
    for name in (STATE, TENSORS):
        entry = manifest["files"][name]
        check_file(path / name, entry["sha256"], entry["size_bytes"])
    try:
        plain = read_json(path / STATE, MANIFEST_LIMIT)
        with open_tensors(path / TENSORS) as read:
            state = decode_tree(plain, read)
        metadata = decode_tree(manifest["metadata"], _no_arrays)
    except (ValueError, KeyError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path / STATE} is malformed: {shortened(error)}.") from error
    if not isinstance(state, dict) or not isinstance(metadata, dict):
        raise CorruptCheckpointError(f"{path / STATE} is malformed: it holds no dict.")
    return Checkpoint(
        state=state,
        metadata=metadata,
        step=manifest["step"],
        score=manifest["score"],
        path=path,
        replay=replay,
        run_files=manifest.get("run_files", {}),
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The checked manifest of the checkpoint at `path`.

    Raises:
        CorruptCheckpointError: if it is missing, torn or altered.
        IncompatibleCheckpointError: if another version of the format wrote it.
    """
    file = path / MANIFEST
    try:
        manifest = read_json(file, MANIFEST_LIMIT)
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{file} is missing.") from error
    except (OSError, ValueError) as error:
        raise CorruptCheckpointError(f"{file} is torn or no JSON: {shortened(error)}.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CorruptCheckpointError(f"{file} is not the manifest of a {FORMAT}.")
    # The hash comes before the version, so that a flipped bit there does not pass for a
    # newer format: every version hashes its manifest in this way.
    if manifest.get("manifest_sha256") != _manifest_sha256(manifest):
        raise CorruptCheckpointError(f"{file} was altered: it does not match its own SHA-256.")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise IncompatibleCheckpointError(
            f"{path} has format version {shown(manifest.get('format_version'))}, this version of "
            f"Redline reads {FORMAT_VERSION}. Use the version of Redline that wrote it."
        )
    _check_manifest(file, manifest)
    return manifest


def _check_manifest(file: Path, manifest: dict[str, Any]) -> None:
    step, score, files = (manifest.get(key) for key in ("step", "score", "files"))
    entries = [files.get(name) for name in (STATE, TENSORS)] if isinstance(files, dict) else [None]
    well_formed = (
        _is_count(step)
        and (score is None or isinstance(score, (int, float)))
        and isinstance(files, dict)
        and set(files) == {STATE, TENSORS}
        and all(_is_entry(entry) for entry in entries)
        and ("replay" not in manifest or _is_entry(manifest["replay"]))
        and "metadata" in manifest
        and _are_entries(manifest.get("run_files", {}))
    )
    if not well_formed:
        raise CorruptCheckpointError(
            f"{file} is malformed: it must list exactly {STATE} and {TENSORS}, each with its "
            f"sha256 and size_bytes, beside step, score and metadata."
        )


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("sha256"), str)
        and _is_count(entry.get("size_bytes"))
    )


def _are_entries(entries: Any) -> bool:
    return isinstance(entries, dict) and all(
        _is_entry(entry) and _is_count(entry.get("columns") or 0) and _are_settings(entry)
        for entry in entries.values()
    )


def _are_settings(entry: dict[str, Any]) -> bool:
    settings = entry.get("settings", {})
    if not isinstance(settings, dict):
        return False
    run = settings.get("run", {})
    known = isinstance(run, dict) and isinstance(run.get("device", "cpu"), str)
    return known and isinstance(settings.get("algo", {}), dict)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _manifest_sha256(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _no_arrays(name: str) -> Any:
    raise ValueError(f"metadata refers to the array {shown(name)}")
