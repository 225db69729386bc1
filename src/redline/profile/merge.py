"""Merge sessions of one machine, which were recorded separately, into one.

All times in a session are those of one clock, CLOCK_MONOTONIC, which begins when the machine
starts. So sessions fit together if they were recorded on the same machine since the same start.
"""

from __future__ import annotations

import heapq
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from redline.errors import ProfileError, SessionError
from redline.plain_text import shown
from redline.profile import layout
from redline.profile.read.regular import lines_of
from redline.profile.reader import Session, open_session
from redline.profile.record.files import SessionLock, create_session

__all__ = ["merge_sessions"]

SAME = (("mode", "modes"), ("machine", "machines"), ("boot_id", "starts of a machine"))


def merge_sessions(directories: Sequence[str | Path], output: str | Path) -> Path:
    """Write a new session that holds the processes of all of these, and seal it.

    Args:
        directories: of the sessions, two or more.
        output: of the new one; must not exist, or be empty.

    Returns:
        Where it is.

    Raises:
        ProfileError: if they do not fit together.
        SessionError: if one cannot be read, is not sealed or was changed, or if the new one cannot
            be written.
    """
    places = [Path(directory) for directory in directories]
    if len({place.resolve() for place in places}) < max(len(places), 2):
        raise ProfileError(
            "to merge means two sessions or more, each given once. Give their directories"
        )
    sessions = [open_session(place) for place in places]
    for session in sessions:
        _refuse_unsealed(session)
    _refuse_misfits(sessions)
    _refuse_same_pids(sessions)
    command: list[str] = []
    for session in sessions:
        command += (["&"] if command else []) + _command(session)
    target = Path(output)
    lock = create_session(target, mode=sessions[0].mode, command=command)
    try:
        _fill(target, sessions, command)
    except OSError as error:
        _discard(lock, target)
        raise SessionError(
            f"cannot merge into {target}: {error}. Give a directory that can be written"
        ) from error
    lock.release()
    return target


def _refuse_unsealed(session: Session) -> None:
    if not session.manifest.get("sealed") or session.seal_problems:
        reason = (session.seal_problems or ["an earlier Redline recorded it without a seal"])[0]
        raise SessionError(
            f"{session.directory} cannot be merged: {reason}. Merge only what is as it was recorded"
        )


def _refuse_misfits(sessions: list[Session]) -> None:
    first, *others = sessions
    for key, what in SAME:
        if key == "boot_id" and not all(each.manifest.get(key) for each in sessions):
            raise ProfileError(
                "a session does not say since which start of the machine its clock counts: an "
                "earlier Redline recorded it, or the system does not tell. Record it again"
            )
        for other in others:
            ours, theirs = first.manifest.get(key), other.manifest.get(key)
            if ours != theirs:
                raise ProfileError(
                    f"{first.directory} and {other.directory} are of different {what}: {key} is "
                    f"{shown(ours)} and {shown(theirs)}. {_reason(key)}"
                )


def _reason(key: str) -> str:
    if key == "mode":
        return "Their times mean different things: report them side by side"
    return "Their clocks have nothing in common: report them side by side"


def _refuse_same_pids(sessions: list[Session]) -> None:
    owners = Counter(pid for s in sessions for pid in {process.pid for process in s.processes})
    twice = sorted(pid for pid, number in owners.items() if number > 1)
    if twice:
        raise ProfileError(
            f"pid {twice[0]} is in two of the sessions, and all tables go by it: the system gave "
            "it again, or they ran in different containers. Merge the others, or record again"
        )


def _command(session: Session) -> list[str]:
    command: Any = session.manifest.get("command")
    return [str(word) for word in cast(list[Any], command)] if isinstance(command, list) else []


def _created(session: Session) -> float:
    created: Any = session.manifest.get("created_unix_s")
    return float(created) if isinstance(created, int | float) else 0.0


def _fill(target: Path, sessions: list[Session], command: list[str]) -> None:
    for session in sessions:
        for name in session.manifest["files"]:
            if Path(name).parts[0] == "processes":
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(session.directory / name, target / name, follow_symlinks=False)
    with open(target / layout.MACHINE_SAMPLES, "w", encoding="utf-8") as file:
        file.writelines(_samples(sessions))
    manifest = {
        **json.loads((target / "session.json").read_text()),
        **{key: sessions[0].manifest.get(key) for key in ("machine", "cpus", "python", "boot_id")},
        "created_unix_s": min(_created(each) for each in sessions),
        "command": command,
        **({"watch": watched} if (watched := _watched(sessions)) else {}),
        "merged": [
            {key: each.manifest.get(key) for key in ("command", "created_unix_s", "sha256")}
            for each in sessions
        ],
    }
    (target / "session.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _watched(sessions: list[Session]) -> list[str]:
    """The functions that were to be watched, so that a report can say which never came."""
    found: list[Any] = []
    for session in sessions:
        watch: Any = session.manifest.get("watch")
        found += cast(list[Any], watch) if isinstance(watch, list) else []
    return list(dict.fromkeys(str(name) for name in found))


def _samples(sessions: list[Session]) -> Iterator[str]:
    """What was read of the machine, in the order of time; what could be read is said once."""
    paths = [session.directory / layout.MACHINE_SAMPLES for session in sessions]
    paths = [path for path in paths if path.exists()]
    heads = (line for path in paths for line, time_ns in _rows(path) if time_ns is None)
    yield from islice(heads, 1)
    for line, time_ns in heapq.merge(*map(_rows, paths), key=lambda row: row[1] or 0):
        if time_ns is not None:
            yield line


def _rows(path: Path) -> Iterator[tuple[str, int | None]]:
    """The lines that can be read, each with its time; None for what is no reading."""
    for line in lines_of(path):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            time_ns: Any = cast(dict[str, Any], row).get("time_ns")
            yield line.rstrip("\n") + "\n", time_ns if type(time_ns) is int else None


def _discard(lock: SessionLock, target: Path) -> None:
    shutil.rmtree(target / "processes", ignore_errors=True)
    lock.discard()
