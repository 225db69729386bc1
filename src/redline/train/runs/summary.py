"""What a run directory says of a run, without loading anything of it: state, steps, return."""

from __future__ import annotations

import csv
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redline.plain_files import open_plain, read_json, read_plain, read_row
from redline.plain_text import shortened
from redline.train.runs.files import (
    CONFIG_FILE,
    HISTORY_FILE,
    LARGEST_HISTORY,
    LOCK_FILE,
    PROGRESS_FILE,
)

_TAIL_BYTES = 65_536
_MOST_TAIL_BYTES = 2**23  # some 30,000 rows: a page that follows a run reads them again and again
_MOST_ENV_STEPS = 2**63  # of a run; JSON holds numbers of thousands of digits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in a list.

    Attributes:
        path: its directory.
        state: running, complete, stopped (by a callback), interrupted, failed, or killed: begun and
            neither running nor ended by itself.
        algorithm: its name.
        env: likewise.
        seed: of the run.
        env_steps: of the last row.
        total_env_steps: length of the run.
        return_mean: the last one in `progress.csv`; None before the first episode.
        sps: env_steps per second in the last row; None before it.
        name: what the run is called; None: by its directory.
        group: what it belongs to, if anything.
        tags: words to find it by.
        reason: why it stopped or failed, if it did.
        problem: why its numbers are left out, if they are.
    """

    path: str
    state: str
    algorithm: str
    env: str
    seed: int
    env_steps: int
    total_env_steps: int
    return_mean: float | None
    sps: float | None = None
    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    reason: str | None = None
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"tags": list(self.tags)}


def find_runs(folder: Path) -> Iterator[Path]:
    """The run directories in a folder, itself included, in the order of their names."""
    for directory, folders, files in os.walk(folder):
        if CONFIG_FILE in files:
            yield Path(directory)
            folders.clear()  # a run holds no other runs
        folders.sort()


def summarize_run(path: Path) -> RunSummary | None:
    """What a directory says of its run; None if its config.json cannot be read."""
    try:
        config = read_json(path / CONFIG_FILE)
        run = config["run"]
        total = int(run["total_env_steps"])
        seed = int(run["seed"])
        if abs(total) > _MOST_ENV_STEPS or abs(seed) > _MOST_ENV_STEPS:
            return None
        env_steps, return_mean, sps, problem = _numbers(path)
        end = _last_end(path)
        return RunSummary(
            path=str(path),
            state=_state(path, end, env_steps, total),
            algorithm=str(config["algorithm"]),
            env=str(run["env"]),
            seed=seed,
            env_steps=env_steps,
            total_env_steps=total,
            return_mean=return_mean,
            sps=sps,
            name=_word(run.get("name")),
            group=_word(run.get("group")),
            tags=tuple(map(str, run.get("tags", ()))),
            reason=_word(end.get("reason")),
            problem=problem,
        )
    except (OSError, ValueError, OverflowError, KeyError, TypeError):
        return None


def _word(value: Any) -> str | None:
    """Text, also where somebody's file holds something else there."""
    return None if value is None else str(value)


def _numbers(path: Path) -> tuple[int, float | None, float | None, str | None]:
    """Newest env_steps, return and SPS of progress.csv, and what is wrong with it, if anything."""
    try:
        last = last_row(path)
        env_steps = int(float(last.get("env_steps") or 0))
        if abs(env_steps) > _MOST_ENV_STEPS:
            raise ValueError(f"env_steps={last['env_steps']} is more than a run has")
        sps = float(last["sps"]) if last.get("sps") else None
        return env_steps, _last_return(path), sps, None
    except (ValueError, OverflowError, TypeError, csv.Error) as error:
        problem = (
            f"{PROGRESS_FILE} is damaged ({shortened(error)}), so its numbers are left out here. "
            "Restore the file from a copy, or move the run elsewhere."
        )
        return 0, None, None, problem


def is_running(path: Path) -> bool:
    """Whether a process holds the run directory."""
    try:
        with open(open_plain(path / LOCK_FILE), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _state(path: Path, end: Mapping[str, Any], env_steps: int, total: int) -> str:
    if is_running(path):
        return "running"
    if end:
        return str(end.get("state", "failed"))
    # Runs of version 0.1 keep no history.
    return "complete" if env_steps >= total else "killed"


def _last_end(path: Path) -> dict[str, Any]:
    """The last line of the history, if it says how a session ended."""
    try:
        lines = read_plain(path / HISTORY_FILE, LARGEST_HISTORY).splitlines()
        last = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return last if isinstance(last, dict) and last.get("event") == "ended" else {}


def last_row(path: Path) -> dict[str, str]:
    """The last whole row of progress.csv; {} if there is none."""
    rows, _ = _tail_rows(path, _TAIL_BYTES)
    return rows[-1] if rows else {}


def last_return_row(path: Path) -> dict[str, str]:
    """The newest row of progress.csv in which an episode ended; {} if there is none."""
    size = _TAIL_BYTES
    while True:
        rows, has_more = _tail_rows(path, size)
        for row in reversed(rows):
            if row.get("return_mean"):
                return row
        if not has_more or size > _MOST_TAIL_BYTES:
            return {}
        size *= 4


def _last_return(path: Path) -> float | None:
    row = last_return_row(path)
    return float(row["return_mean"]) if row else None


def _tail_rows(path: Path, size: int) -> tuple[list[dict[str, str]], bool]:
    """The whole rows in the last `size` bytes of progress.csv; whether there are rows before."""
    try:
        with open(open_plain(path / PROGRESS_FILE), "rb") as file:
            header = read_row(file).decode()
            begin = file.tell()
            end = file.seek(0, os.SEEK_END)
            file.seek(max(begin, end - size))
            tail = file.read(size).decode(errors="replace")
    except OSError:
        return [], False
    lines = tail.split("\n")[:-1]  # what follows the last line's end is still being written
    is_cut = end - size > begin
    if is_cut:
        lines = lines[1:]
    return list(csv.DictReader([header, *lines])), is_cut
