"""The Python stacks of a session for https://www.speedscope.app, which editors show as well.

One sampled profile per process, in its file format
(https://www.speedscope.app/file-format-schema.json). The operation is the outermost frame. Each
frame names its file and the line that was running, so that an editor opens it there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redline.errors import ConfigError
from redline.profile.analyse.slices import outline, slices_of
from redline.profile.analyse.stacks import Stacks, read_stacks, stack_of
from redline.profile.reader import Process, Session

SCHEMA = "https://www.speedscope.app/file-format-schema.json"

__all__ = ["write_speedscope"]


class _Frames:
    """The frames of all profiles, each once."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def place(self, name: str, file: str = "", line: int = 0) -> int:
        key = name, file, line
        if key not in self._places:
            self._places[key] = len(self.rows)
            row: dict[str, Any] = {"name": name}
            self.rows.append(row | ({"file": file, "line": line} if file else {}))
        return self._places[key]


def write_speedscope(session: Session, output: Path) -> int:
    """Write the stacks of all processes that have any.

    Args:
        session: recorded in full or sample mode.
        output: the file, replaced if it exists.

    Returns:
        How many samples were written.

    Raises:
        ConfigError: if the session holds no stacks, or the file cannot be written.
    """
    frames = _Frames()
    profiles: list[dict[str, Any]] = []
    for process, stacks in _all_stacks(session):
        if len(stacks.times_ns):
            profiles.append(_profile(process, stacks, frames))
    if not profiles:
        raise ConfigError(
            f"{session.directory} holds no Python stacks. Record with --mode sample, and "
            "without --no-lines"
        )
    content = {
        "$schema": SCHEMA,
        "exporter": "redline",
        "name": str(session.directory),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.rows},
        "profiles": profiles,
    }
    try:
        output.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}. Give another file") from error
    return sum(len(profile["samples"]) for profile in profiles)


def _all_stacks(session: Session) -> list[tuple[Process, Stacks]]:
    found = [(p, stacks) for p in session.processes if (stacks := read_stacks(p)) is not None]
    for step in slices_of(outline([process for process, _ in found])):
        for place, timeline in zip(step.places, step.timelines, strict=True):
            found[place][1].add(timeline)
    return found


def _profile(process: Process, stacks: Stacks, frames: _Frames) -> dict[str, Any]:
    weights = [ns / 1e9 for ns in stacks.weights_ns.tolist()]
    known: dict[int, list[int]] = {}
    samples: list[list[int]] = []
    for operation, leaf in zip(stacks.operations, stacks.leaves.tolist(), strict=True):
        if leaf not in known:
            known[leaf] = [
                frames.place(code.function, code.file, max(line, 0))
                for code, line in (
                    (stacks.codes[node.code], node.line) for node in stack_of(stacks, leaf)
                )
            ]
        samples.append([frames.place(operation), *known[leaf]])
    return {
        "type": "sampled",
        "name": f"{process.name} ({process.pid})",
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
