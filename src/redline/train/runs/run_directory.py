"""The run directory: its layout, its config file, and the lock that keeps two runs apart.

```
config.json      all settings
history.jsonl    when it began, was changed and ended
progress.csv     one row per logging interval
checkpoints/     step_000000012345/ ..., best/
tensorboard/     events
videos/          what `redline eval --video` recorded
```
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from redline.errors import ConfigError, RunDirectoryError
from redline.plain_files import (
    lock_within,
    read_json,
    refuse_special_files,
    without_locks,
)
from redline.plain_text import shortened
from redline.train.runs.files import CONFIG_FILE, LOCK_FILE
from redline.train.runs.sealed_files import require_own_hash
from redline.train.settings import RunConfig

_LONGEST_NAME = 255  # bytes of one part of a path, on the file systems in use
_LOOKED_AT_S = 2.0  # a look at the lock takes microseconds, if its process is not put to sleep
_NAMED_AT_MOST = 3  # of the changed settings: a name must fit into a table and a file system


def run_name(config: RunConfig, changed: Iterable[str] = ()) -> str:
    """<algorithm>-<env>-seed<seed>, with the hyperparameters that were changed in between.

    Args:
        config: of the run.
        changed: names of the settings that differ from the preset's.
    """
    if config.run.name is not None:
        return config.run.name
    env = re.sub(r"[/:(]", "-", config.run.env.rstrip(")"))
    env = re.sub(r"[^\w.+=-]", "_", env)  # of a lambda or of arguments: nothing that a shell reads
    algorithm = config.algorithm.rpartition(":")[2].rpartition(".")[2]  # of module:Name, the name
    values = dataclasses.asdict(config.policy) | dataclasses.asdict(config.algo)
    differing = [name for name in values if name in set(changed)]
    told = [f"{name}={_in_a_name(values[name])}" for name in differing[:_NAMED_AT_MOST]]
    if len(differing) > _NAMED_AT_MOST:
        told.append(f"and{len(differing) - _NAMED_AT_MOST}more")
    return "-".join([algorithm, env, *told, f"seed{config.run.seed}"])


def _in_a_name(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "x".join(map(_in_a_name, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]", "_", text)[:24]


@contextmanager
def run_directory(config: RunConfig, changed: Iterable[str] = ()) -> Iterator[Path]:
    """The directory of a new run, which no other run takes meanwhile.

    A default one is made at once, under a number if its name is taken: making a directory either
    succeeds or fails, also where several processes begin at the same moment. It is removed if
    nothing was written into it but the lock, as when a setting proves wrong.

    Args:
        config: of the run; its `out` is taken as it is.
        changed: names of the settings that differ from the preset's.

    Raises:
        RunDirectoryError: if it holds a run already or cannot be written.
    """
    if config.run.out:
        out = Path(config.run.out)
        check_new_run_directory(out)
        refuse_special_files(out)  # the run will write beside what is there
        yield out
        return
    folder = Path("runs") / config.run.group if config.run.group else Path("runs")
    check_new_run_directory(folder)  # what other runs hold does not matter: this one's is new
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    out = _claimed(folder, run_name(config, changed))
    try:
        yield out
    finally:
        with suppress(OSError):
            if os.listdir(out) == [LOCK_FILE]:
                (out / LOCK_FILE).unlink()
        for each in (out, *made):
            with suppress(OSError):  # it holds something: the run, or another one
                each.rmdir()


def _claimed(folder: Path, name: str) -> Path:
    """A directory in `folder` that this call has made: `name`, `name-2`, ...

    Raises:
        RunDirectoryError: if none can be made.
    """
    number = 1
    while True:
        path = folder / (name if number == 1 else f"{name}-{number}")
        number += 1
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunDirectoryError(
                f"{path} cannot be made ({error.strerror}). Give a directory you may write to as "
                f"--out."
            ) from error
        return path


def check_new_run_directory(path: Path) -> None:
    """Refuse a directory that holds a run or cannot be written, before any work.

    Raises:
        RunDirectoryError: naming the directory, the reason and the fix.
    """
    long = next((part for part in path.parts if len(os.fsencode(part)) > _LONGEST_NAME), None)
    if long is not None:
        raise RunDirectoryError(
            f"{long[:20]}... is a name of {len(os.fsencode(long))} bytes, and file systems take "
            f"{_LONGEST_NAME}. Give a shorter --out."
        )
    if (path / CONFIG_FILE).exists():
        raise RunDirectoryError(
            f"{path} already holds a run. Go on with it by `redline train --resume {path}`, or "
            f"give another --out."
        )
    if path.exists() and not path.is_dir():
        raise RunDirectoryError(f"{path} is a file, not a directory. Give another --out.")
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise RunDirectoryError(f"{path} cannot be made: {existing} is a file. Give another --out.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunDirectoryError(
            f"{path} cannot be written: no permission to write in {existing}. Give a directory "
            f"you may write to as --out."
        )


def read_config(path: Path, algorithm: Any = None, *, accept_changed: bool = False) -> RunConfig:
    """The config of the run in `path`.

    Args:
        path: run directory.
        algorithm: class or module:Name, where the run's is one of a user's own.
        accept_changed: take it also if it was changed since Redline wrote it.

    Raises:
        RunDirectoryError: if `path` holds no run.
        ConfigError: if its config.json is damaged, changed or from another version.
    """
    file = path / CONFIG_FILE
    refuse_special_files(path)
    try:
        data = read_json(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDirectoryError(
            f"{path} is not a run directory: it has no {CONFIG_FILE}. Give the directory that "
            f"`redline train` printed."
        ) from error
    except OSError as error:
        raise RunDirectoryError(f"{file} cannot be read: {error}.") from error
    except ValueError as error:
        raise ConfigError(
            f"{file} is not valid JSON ({shortened(error)}). Restore it, or start a new run."
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file} must hold a JSON object. Restore it, or start a new run.")
    if not accept_changed:
        require_own_hash(path, data)
    return RunConfig.from_json(data, algorithm)


def recorded_engine(path: Path) -> str:
    """Why updates run as they do, as the run in `path` has it; "" if it does not say."""
    said = _said(path, "engine")
    return said if isinstance(said, str) else ""


def recorded_build(path: Path) -> dict[str, Any]:
    """What computed the run in `path`; empty if it does not say."""
    said = _said(path, "build")
    return said if isinstance(said, dict) else {}


def recorded_changes(path: Path) -> list[str]:
    """Settings that the run in `path` went on with instead of its own; see `sealed_files`."""
    said = _said(path, "changed")
    return [str(name) for name in said] if isinstance(said, list) else []


def recorded_length(path: Path) -> int | None:
    """The env_steps that the run in `path` was to have so far; None if there is none yet."""
    run = _said(path, "run")
    length = run.get("total_env_steps") if isinstance(run, dict) else None
    return length if type(length) is int else None


def _said(path: Path, name: str) -> Any:
    try:
        return read_json(path / CONFIG_FILE).get(name)
    except (OSError, ValueError, AttributeError):
        return None


class RunLock:
    """Holds a run directory for one process; the system releases it however that one ends.

    Raises:
        RunDirectoryError: if another process holds it, or it cannot be written or locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._path / LOCK_FILE, flags, 0o644)
        except OSError as error:
            raise RunDirectoryError(
                f"{self._path} cannot be written ({error.strerror}). Give a directory you may "
                f"write to."
            ) from error
        try:
            lock_within(descriptor, _LOOKED_AT_S)  # `redline runs` may be looking at it
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunDirectoryError(
                f"{self._path} is in use by another process. Wait until that run has ended, or "
                f"give another --out."
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise RunDirectoryError(without_locks(self._path, error)) from error
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
