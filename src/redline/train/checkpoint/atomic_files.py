"""Files that appear whole or not at all, however the process ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redline.errors import ConfigError, RunDirectoryError
from redline.plain_files import directory_handle

TEMPORARY_PREFIX = ".tmp-"


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Give a temporary path beside `path`; what is written there takes its place at the end.

    The suffix is the same, so that writers that choose a format by it do. The parent
    directory is made if need be. If the block raises, `path` is as it was.

    Raises:
        RunDirectoryError: if the file cannot be written there.
    """
    path = Path(path)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{path.name}")
    with _as_run_directory_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            sync_file(temporary)
            os.replace(temporary, path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path | str) -> Iterator[Path]:
    """Give an empty temporary directory beside `path`, renamed to `path` at the end.

    Files in it must be synced by whoever writes them. If the block raises, nothing is left.
    The parent directory is made if need be; it must be no link.

    Raises:
        RunDirectoryError: if it cannot be written there, or `path` exists.
    """
    path = Path(path)
    temporary = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{path.name}"
    with _as_run_directory_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with directory_handle(path.parent) as parent:
            os.mkdir(temporary, dir_fd=parent)
            try:
                yield path.with_name(temporary)
                with directory_handle(path.with_name(temporary)) as inside:
                    os.fsync(inside)
                os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
                os.fsync(parent)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(temporary, dir_fd=parent)


def remove_directory(path: Path) -> None:
    """Remove a directory so that no half-empty one of its name is ever seen.

    Names are resolved below a descriptor of its parent, which must be no link, so that nothing
    elsewhere can be removed.

    Raises:
        RunDirectoryError: if it cannot be removed.
    """
    doomed = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{path.name}"
    with _as_run_directory_error(path), directory_handle(path.parent) as parent:
        os.rename(path.name, doomed, src_dir_fd=parent, dst_dir_fd=parent)
        shutil.rmtree(doomed, dir_fd=parent)


def remove_leftovers(directory: Path) -> None:
    """Remove what a killed process left half written in `directory`, which must be no link.

    To be called only where no other process is writing.

    Raises:
        RunDirectoryError: if something cannot be removed.
    """
    with _as_run_directory_error(directory), directory_handle(directory) as handle:
        for name in os.listdir(handle):
            if not name.startswith(TEMPORARY_PREFIX):
                continue
            if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=handle)
            else:
                os.unlink(name, dir_fd=handle)


def write_json_atomic(path: Path | str, value: Any) -> None:
    """Write plain data as indented JSON.

    Raises:
        ConfigError: if `value` is not plain data, or holds NaN or infinity.
        RunDirectoryError: if the file cannot be written.
    """
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{Path(path).name} cannot be written as JSON: {error}. Use only finite numbers, "
            f"strings, lists, dicts, true, false and None."
        ) from error
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def sync_file(path: Path) -> None:
    """Make a file's contents survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make a directory's entries survive a loss of power."""
    sync_file(path)


@contextlib.contextmanager
def _as_run_directory_error(path: Path) -> Iterator[None]:
    try:
        yield
    except RunDirectoryError:
        raise
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {path}: {error.strerror or error}. Check that the directory is "
            f"writable and that the disk has room."
        ) from error
