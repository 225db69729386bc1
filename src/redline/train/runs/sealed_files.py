"""Whether the files beside a checkpoint are what they were when it was written.

A checkpoint's own files are hashed in its manifest. So are, under `run_files`, the two beside it
that a resumed run depends on:

| file | what the manifest holds |
|---|---|
| `config.json` | SHA-256, size, and the settings themselves, so that a difference has a name |
| `progress.csv` | SHA-256 and size up to the checkpoint's row; what follows is cut off anyhow |

`config.json` also carries a hash of itself. Redline rewrites it when a run is resumed, before there
is a new checkpoint. A file with a valid hash that differs only in what a resume may change, or in
settings that it lists as changed by `--set`, is such a one. Checkpoints and files of earlier
versions have no hashes and are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from redline.errors import ConfigError, RunDirectoryError
from redline.plain_files import (
    CONFIG_LIMIT,
    open_plain,
    read_json,
    read_plain,
    read_row,
)
from redline.plain_text import shortened, shown
from redline.train.checkpoint.atomic_files import write_json_atomic
from redline.train.progress.writers import CSV_NAME, first_fields
from redline.train.runs.files import CONFIG_FILE
from redline.train.settings import RunConfig

ACCEPT = "--accept-changed-config"
_OWN_HASH = "sha256"
_CHUNK_BYTES = 1 << 20
# What resuming may change, and what an engine that failed its check does.
_MAY_DIFFER = frozenset({"run.total_env_steps", "run.quiet", "run.accelerate", "run.cpu_acting"})
_PARTS = ("algorithm", "run", "policy", "algo")


def write_config(out: Path, config: RunConfig, **said: Any) -> dict[str, Any]:
    """Write `config.json` with a hash of itself.

    Args:
        out: run directory.
        config: all settings.
        said: what else the file says, such as engine and build.

    Returns:
        The file's entry in the manifests of checkpoints.
    """
    data = config.to_json(**said)
    data[_OWN_HASH] = _own_hash(data)
    write_json_atomic(out / CONFIG_FILE, data)
    content = read_plain(out / CONFIG_FILE, CONFIG_LIMIT)
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "settings": {part: data[part] for part in _PARTS},
    }


def require_own_hash(out: Path, data: Mapping[str, Any]) -> None:
    """Refuse a config that does not match the hash in it; one without a hash is taken.

    Args:
        out: run directory.
        data: what its `config.json` holds.

    Raises:
        ConfigError: naming the file and how to go on.
    """
    if _OWN_HASH in data and data[_OWN_HASH] != _own_hash(data):
        raise ConfigError(_changed(out, "it does not match its own SHA-256"))


def require_same_config(out: Path, run_files: Mapping[str, Any]) -> None:
    """Refuse a `config.json` that is not the one a checkpoint was written beside.

    Args:
        out: run directory.
        run_files: of the checkpoint's manifest; empty in those of earlier versions.

    Raises:
        ConfigError: naming the settings that differ.
    """
    entry = run_files.get(CONFIG_FILE)
    if entry is None:
        return
    content = read_plain(out / CONFIG_FILE, CONFIG_LIMIT)
    if hashlib.sha256(content).hexdigest() == entry["sha256"]:
        return
    data = read_json(out / CONFIG_FILE)
    names = dict(_differences(entry.get("settings", {}), data))
    if data.get(_OWN_HASH) == _own_hash(data):
        names = {name: pair for name, pair in names.items() if not _may_differ(name, data)}
        if not names:
            return
    listed = "; ".join(
        f"{name.partition('.')[2] or name} was {shown(was)} and is {shown(now)}"
        for name, (was, now) in names.items()
    )
    raise ConfigError(_changed(out, listed or "no setting differs, but its text does"))


def require_same_rows(out: Path, run_files: Mapping[str, Any]) -> None:
    """Refuse a `progress.csv` whose rows up to a checkpoint's are not those it was written beside.

    Raises:
        RunDirectoryError: naming the file and how to go on.
    """
    entry = run_files.get(CSV_NAME)
    if entry is None:
        return
    path, left = out / CSV_NAME, int(entry["size_bytes"])
    digest = hashlib.sha256()
    try:
        with open(open_plain(path), "rb") as file:
            for chunk in _as_it_was(file, entry.get("columns")):
                digest.update(chunk[:left])
                left -= min(left, len(chunk))
                if not left:
                    break
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be read ({shortened(error)}), and the checkpoint to resume from "
            "counts rows in it. Restore the file, or start a new run."
        ) from error
    if left == 0 and digest.hexdigest() == entry["sha256"]:
        return
    if left:
        raise RunDirectoryError(
            f"{path} ends before the rows that the checkpoint to resume from counts in it: "
            f"{left:,} of {entry['size_bytes']:,} bytes are missing. Restore the file, or start a "
            f"new run."
        )
    raise RunDirectoryError(
        f"{path} was changed since the checkpoint was written: its first {entry['size_bytes']:,} "
        f"bytes do not match the checkpoint's SHA-256. Restore the file; or, if you changed it on "
        f"purpose, add {ACCEPT}."
    )


def _as_it_was(file: IO[bytes], columns: int | None) -> Iterator[bytes]:
    """What a progress.csv held before further columns joined at its end, piece by piece.

    Without further columns nothing is read beyond what the caller takes.

    Args:
        file: from its beginning on.
        columns: that it had; None: as it is.
    """
    header = read_row(file)
    if columns is not None and header.count(b",") + 1 > columns:
        yield first_fields(header, columns)
        while line := read_row(file):
            yield first_fields(line, columns)
        return
    yield header
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _changed(out: Path, how: str) -> str:
    return (
        f"{out / CONFIG_FILE} was changed since Redline wrote it: {how}. Restore the file; or, if "
        f"you changed it on purpose, add {ACCEPT} (accept_changed_config=True from Python)."
    )


def _may_differ(name: str, data: Mapping[str, Any]) -> bool:
    return name in _MAY_DIFFER or name.partition(".")[2] in data.get("changed", ())


def _own_hash(data: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in data.items() if key != _OWN_HASH}
    try:
        text = json.dumps(rest, sort_keys=True)
    except RecursionError as error:
        raise ConfigError(
            f"{CONFIG_FILE} is nested too deep for settings. Put back the file that the run wrote."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def _differences(was: Any, now: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """(dotted name, (value then, value now)) of each setting that both have or the new one lacks.

    A setting that only the file has is one that a later version added.
    """
    for part, settings in was.items():
        present = now.get(part) if isinstance(now, Mapping) else None
        if not isinstance(settings, Mapping) or not isinstance(present, Mapping):
            if settings != present:
                yield part, (settings, present)
            continue
        for name, value in settings.items():
            if present.get(name) != value:
                yield f"{part}.{name}", (value, present.get(name))
