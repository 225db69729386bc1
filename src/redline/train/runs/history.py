"""`history.jsonl` of a run directory: when the run began, went on, was changed, and how it ended.

One JSON object per line, each with `event`, `time` (UTC) and `env_steps`:

| event | further |
|---|---|
| started | `init_from`, where it began with another run's weights |
| resumed | `changed`: setting -> [before, now], where settings were changed |
| saved | of a session's first checkpoint: a session that is killed says no more |
| ended | `state`: complete, stopped (by a callback), interrupted or failed; `reason`; `saved`, where it failed: the env_steps of this session's newest checkpoint, 0 without one |

It is for people and for `redline runs`. One thing that a run does depends on it: where the history
tells of a checkpoint, the run does not begin anew without one.
"""  # noqa: E501 (a row of a table)

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from redline.errors import RunDirectoryError
from redline.plain_files import read_plain
from redline.train.runs.files import HISTORY_FILE, LARGEST_HISTORY


class RunHistory:
    """Writes the beginning, the first checkpoint and the end of one session.

    Args:
        out: run directory; it must be there.
        event: "started" or "resumed".
        env_steps: where the session begins.
        **details: further entries of its line; None is left out.

    Attributes:
        env_steps: where the session stands.
        saved: those of its newest checkpoint; None before it has written one.
    """

    def __init__(self, out: Path, event: str, env_steps: int, **details: Any) -> None:
        self._path = out / HISTORY_FILE
        self._first = (event, env_steps, details)
        self._end: dict[str, Any] = {"state": "failed"}
        self.env_steps = env_steps
        self.saved: int | None = None

    def ended(
        self, state: str, env_steps: int, reason: str | None = None, *, worker_restarts: int = 0
    ) -> None:
        """Note how the session ended.

        Args:
            state: "complete", "stopped" or "interrupted".
            env_steps: where.
            reason: in words, if there is one.
            worker_restarts: how often all workers were started anew.
        """
        self._end = {"state": state, **({} if reason is None else {"reason": reason})}
        if worker_restarts:
            self._end["worker_restarts"] = worker_restarts
        self.env_steps = env_steps

    def has_saved(self, env_steps: int) -> None:
        """Note a checkpoint, the session's first one in the file."""
        is_first, self.saved = self.saved is None, env_steps
        if is_first:
            self._write("saved", env_steps, {})

    def __enter__(self) -> RunHistory:
        event, env_steps, details = self._first
        told = {name: value for name, value in details.items() if value is not None}
        self._write(event, env_steps, told)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if value is not None:
            first_line = str(value).partition("\n")[0]
            self._end = {"state": "failed", "reason": f"{type(value).__name__}: {first_line}"}
            self._end["saved"] = self.saved or 0
        self._write("ended", self.env_steps, self._end)

    def _write(self, event: str, env_steps: int, details: dict[str, Any]) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"event": event, "time": time, "env_steps": env_steps, **details})
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise RunDirectoryError(
                f"{self._path} cannot be written ({error.strerror or error}). Make room, or remove "
                f"what is in its place."
            ) from error


def read_history(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's history, oldest first; those that a kill tore are left out."""
    try:
        text = read_plain(out / HISTORY_FILE, LARGEST_HISTORY).decode()
    except (OSError, UnicodeDecodeError):
        return []
    lines: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict):
            lines.append(entry)
    return lines


def saved(out: Path) -> int:
    """The env_steps of the newest checkpoint that a run's history tells of; 0: of none.

    Every session but one that fails writes a checkpoint when it ends. One that failed or was killed
    before its first one has left nothing to lose.
    """
    return max((_saved(entry) for entry in read_history(out)), default=0)


def _saved(entry: dict[str, Any]) -> int:
    # A session of 0.2 that failed did not say what it had saved: it may have.
    count = entry.get("saved", entry.get("env_steps"))
    return count if type(count) is int else 0
