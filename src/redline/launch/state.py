"""What of a sweep has been done: one SQLite file, and who may change it.

```
DIR/sweep.sqlite      runs, their states and attempts
DIR/.launcher.lock    held by the launcher, so that there is one
DIR/runs/NAME/        run directories, as `redline train` writes them
DIR/runs/NAME/outcome.json    written by the run's process at its end
```

Only the launcher writes to the database. Every change is one transaction, so that a launcher that
is killed leaves a state that was true a moment before. SQLite keeps a rollback journal: a
write-ahead log, as earlier versions made, is shared memory that other machines do not see. What a
run reached stands in its own directory as well: a lost database costs nothing but the tracebacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from redline.errors import SweepStateError
from redline.launch import locks
from redline.launch.run_process import is_of_another
from redline.plain_files import open_plain
from redline.plain_text import shown

FORMAT_VERSION = 1
DATABASE = "sweep.sqlite"
RUNS = "runs"
_LOCK = ".launcher.lock"
_BUSY_S = 5.0

RunState: TypeAlias = Literal["queued", "running", "done", "failed"]
STATES: tuple[RunState, ...] = ("queued", "running", "done", "failed")

_WHEN = (int, float, type(None))
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("id", "failures", "attempts"), int),
    **dict.fromkeys(("name", "algorithm", "state"), str),
    **dict.fromkeys(("settings", "varies", "result"), dict),
    **dict.fromkeys(("started_s", "ended_s"), _WHEN),
    "slot": (str, type(None)),
}
"""Column of the runs -> what stands in it."""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE runs (
  id INTEGER PRIMARY KEY,
  name TEXT UNIQUE NOT NULL,
  key TEXT UNIQUE NOT NULL,
  algorithm TEXT NOT NULL,
  settings TEXT NOT NULL,
  varies TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'queued',
  failures INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  slot TEXT,
  started_s REAL,
  ended_s REAL,
  result TEXT
);
CREATE INDEX runs_in_turn ON runs (state, failures, id);
CREATE TABLE attempts (
  run INTEGER NOT NULL REFERENCES runs (id),
  number INTEGER NOT NULL,
  started_s REAL NOT NULL,
  ended_s REAL,
  exit_code INTEGER,
  exit_signal INTEGER,
  error TEXT,
  traceback TEXT,
  PRIMARY KEY (run, number)
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be queued; `variants.Variant` says what the fields mean."""

    name: str
    key: str
    algorithm: str
    settings: Mapping[str, Any]
    varies: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run of the database.

    Attributes:
        id: its number; runs are started in this order.
        failures: attempts that failed since it was last queued on purpose.
        result: what it reached; {} before.
    """

    id: int
    name: str
    algorithm: str
    settings: dict[str, Any]
    varies: dict[str, Any]
    state: RunState
    failures: int
    attempts: int
    slot: str | None
    started_s: float | None
    ended_s: float | None
    result: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        result: what the run reached; None: it failed, or was stopped.
        exit_code: of its process, if that returned one.
        exit_signal: that ended its process.
        error: in one line.
        traceback: Python's, or the end of what the process printed.
        stopped: whether it was asked to stop and has a checkpoint to go on from.
    """

    result: dict[str, Any] | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    error: str = ""
    traceback: str = ""
    stopped: bool = field(default=False)


class SweepState:
    """The database of one sweep.

    Args:
        folder: of the sweep.
        create: whether to make the database if there is none.

    Raises:
        SweepStateError: if it is missing, locked, damaged or of another version.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder, self.path = folder, folder / DATABASE
        self._connection: sqlite3.Connection | None = None
        _refuse_links(folder)
        exists = self.path.is_file()
        if not exists and not create:
            raise SweepStateError(
                f"{folder} holds no sweep: it has no {DATABASE}. Give the folder that `redline "
                f"sweep FILE --out DIR` was given."
            )
        with self._named_errors():
            folder.mkdir(parents=True, exist_ok=True)
            # Transactions are begun and ended here, not by the module.
            self._connection = sqlite3.connect(
                **_address(folder), timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            if exists:
                self._check_version()
            else:
                self._create()

    def _create(self) -> None:
        with self._transaction():
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute("INSERT INTO meta VALUES ('format_version', ?)", (FORMAT_VERSION,))

    def _check_version(self) -> None:
        try:
            row = self._db.execute("SELECT value FROM meta WHERE key = 'format_version'").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            row = None
        version = None if row is None else row[0]
        if str(version) != str(FORMAT_VERSION):
            raise SweepStateError(
                f"{self.path} has format_version={version}, this version of Redline reads "
                f"{FORMAT_VERSION}. Use the version of Redline that wrote it, or another folder."
            )

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SweepStateError(f"{self.path} is closed. Open the sweep again.")
        return self._connection

    def close(self) -> None:
        """Close the file. Calling it twice does no harm."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> SweepState:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- what a sweep consists of -------------------------------------------------------------

    def set_meta(self, **values: Any) -> None:
        """Keep plain data by name."""
        with self._transaction():
            for key, value in values.items():
                self._db.execute(
                    "INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value))
                )

    def meta(self, key: str, default: Any = None) -> Any:
        """What `set_meta` kept."""
        with self._named_errors():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return default if row is None else _plain(key, row[0])

    def add(self, runs: Iterable[NewRun]) -> int:
        """Queue the runs that are new; the number of them.

        A run is known by its settings. A name that another run has gets its key behind it: one in
        the database, or one whose directory outlived a lost database.
        """
        added = 0
        with self._transaction():
            known = {row[0] for row in self._db.execute("SELECT key FROM runs")}
            names = {row[0] for row in self._db.execute("SELECT name FROM runs")}
            for run in runs:
                if run.key in known:
                    continue
                taken = run.name in names or is_of_another(self.folder / RUNS / run.name, run.key)
                name = f"{run.name}-{run.key[:8]}" if taken else run.name
                self._db.execute(
                    "INSERT INTO runs (name, key, algorithm, settings, varies) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (name, run.key, run.algorithm, json.dumps(run.settings),
                     json.dumps(run.varies)),
                )  # fmt: skip
                known.add(run.key)
                names.add(name)
                added += 1
        return added

    # -- what becomes of a run ----------------------------------------------------------------

    def next_queued(self) -> QueuedRun | None:
        """The run whose turn it is; those that failed come after the others."""
        with self._named_errors():
            rows = self._rows("WHERE state = 'queued' ORDER BY failures, id LIMIT 1")
        return rows[0] if rows else None

    def started(self, run: QueuedRun, slot: str) -> None:
        """Note that an attempt has begun."""
        now = time.time()
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET state = 'running', attempts = attempts + 1, slot = ?, "
                "started_s = ?, ended_s = NULL WHERE id = ?",
                (slot, now, run.id),
            )
            self._db.execute(
                "INSERT INTO attempts (run, number, started_s) VALUES (?, ?, ?)",
                (run.id, run.attempts + 1, now),
            )

    def ended(self, run_id: int, outcome: Outcome, *, retries: int) -> RunState:
        """Note how an attempt ended; the state that the run is in then.

        Args:
            run_id: of the run.
            outcome: of the attempt.
            retries: how often a run that fails is begun again.
        """
        now = time.time()
        with self._transaction():
            failures, attempts = self._db.execute(
                "SELECT failures, attempts FROM runs WHERE id = ?", (run_id,)
            ).fetchone()
            state: RunState = "done"
            if outcome.stopped:
                state = "queued"
            elif outcome.result is None:
                failures += 1
                state = "failed" if failures > retries else "queued"
            result = None if outcome.result is None else json.dumps(outcome.result)
            self._db.execute(
                "UPDATE runs SET state = ?, failures = ?, ended_s = ?, result = ?, slot = NULL "
                "WHERE id = ?",
                (state, failures, now, result, run_id),
            )
            self._db.execute(
                "UPDATE attempts SET ended_s = ?, exit_code = ?, exit_signal = ?, error = ?, "
                "traceback = ? WHERE run = ? AND number = ?",
                (now, outcome.exit_code, outcome.exit_signal, outcome.error, outcome.traceback,
                 run_id, attempts),
            )  # fmt: skip
        return state

    def requeue(self, *, failed: bool = True) -> int:
        """Queue what a launcher that is gone left running, and the failed runs anew.

        Returns:
            How many runs.
        """
        states = "('running', 'failed')" if failed else "('running')"
        with self._transaction():
            cursor = self._db.execute(
                f"UPDATE runs SET state = 'queued', failures = 0, slot = NULL "
                f"WHERE state IN {states}"
            )
        return cursor.rowcount

    # -- looking ------------------------------------------------------------------------------

    def counts(self) -> dict[RunState, int]:
        """How many runs are in each state."""
        with self._named_errors():
            found = dict(
                self._db.execute("SELECT state, COUNT(*) FROM runs GROUP BY state").fetchall()
            )
        return {state: found.get(state, 0) for state in STATES}

    def runs(self, state: RunState | None = None) -> list[QueuedRun]:
        """All runs in order, or those in a state."""
        with self._named_errors():
            if state is None:
                return self._rows("ORDER BY id")
            return self._rows("WHERE state = ? ORDER BY id", (state,))

    def attempts(self, run_id: int) -> list[dict[str, Any]]:
        """Every attempt of a run: when, exit code and signal, error, traceback."""
        names = ("number", "started_s", "ended_s", "exit_code", "exit_signal", "error", "traceback")
        with self._named_errors():
            rows = self._db.execute(
                f"SELECT {', '.join(names)} FROM attempts WHERE run = ? ORDER BY number", (run_id,)
            ).fetchall()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def last_errors(self) -> dict[int, dict[str, Any]]:
        """The newest failed attempt of each run that had one."""
        names = ("run", "exit_code", "exit_signal", "error", "traceback")
        with self._named_errors():
            rows = self._db.execute(
                f"SELECT {', '.join(names)} FROM attempts WHERE error != '' ORDER BY number"
            ).fetchall()
        return {row[0]: dict(zip(names, row, strict=True)) for row in rows}

    def _rows(self, where: str, values: tuple[Any, ...] = ()) -> list[QueuedRun]:
        names = (
            *("id", "name", "algorithm", "settings", "varies", "state", "failures", "attempts"),
            *("slot", "started_s", "ended_s", "result"),
        )
        rows = self._db.execute(f"SELECT {', '.join(names)} FROM runs {where}", values).fetchall()
        return [_run(_sound(dict(zip(names, row, strict=True)))) for row in rows]

    # -- transactions and errors --------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._named_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, SweepStateError):
                raise
            raise SweepStateError(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        text = str(error)
        again = f"go on with: redline sweep --resume {self.folder}"
        if "locked" in text or "busy" in text:
            return (
                f"{self.path} is locked by another program for more than {_BUSY_S:g} s. End that "
                f"program, then {again}"
            )
        if "full" in text:
            return f"{self.path}: no room on the disk ({text}). Free some, then {again}"
        if "not a database" in text or "malformed" in text:
            return (
                f"{self.path} is damaged ({text}). What the runs reached lies in "
                f"{self.folder / RUNS} and is not lost: move {DATABASE} away and call `redline "
                f"sweep FILE --out {self.folder}` again, which takes finished runs over"
            )
        return (
            f"{self.path} cannot be used ({text}). Check that the folder is there, that it may be "
            f"written and that its disk works, then {again}"
        )


def _run(row: dict[str, Any]) -> QueuedRun:
    """A row as a run, whose name is that of a directory in `runs` and of none elsewhere."""
    name = row["name"]
    if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
        raise SweepStateError(
            f"a run in the database is named {shown(name)}, which is no name of a directory in "
            f"{RUNS}: Redline gives no such names. Do not use this sweep."
        )
    for column in ("settings", "varies", "result"):
        row[column] = json.loads(row[column] or "{}")
        if not isinstance(row[column], dict):
            raise SweepStateError(
                f"{column} of run {shown(name)} in the database is no mapping. Do not use this "
                "sweep."
            )
    return QueuedRun(**row)


def _address(folder: Path) -> dict[str, Any]:
    """What SQLite opens: a database with a write-ahead log may be one that can only be read.

    To open such a one SQLite makes files beside it, unless it is told that nobody changes it.
    """
    path = folder / DATABASE
    if path.is_file() and not os.access(folder, os.W_OK):
        with open(open_plain(path), "rb") as file:
            has_log = file.read(20)[18:] == b"\2\2"  # versions to write and to read it
        if has_log and not path.with_name(f"{DATABASE}-wal").exists():
            return {"database": f"{path.absolute().as_uri()}?immutable=1", "uri": True}
    return {"database": path}


def _refuse_links(folder: Path) -> None:
    """Refuse a database that SQLite would follow to another place."""
    for ending in ("", "-wal", "-shm", "-journal"):
        path = folder / f"{DATABASE}{ending}"
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise SweepStateError(
                f"{path} is no regular file, and could lead elsewhere. Put the file itself in its "
                f"place, or remove it."
            )


class LauncherLock:
    """Held by the launcher of a sweep; the system releases it however that one ends.

    Args:
        folder: of the sweep.

    Raises:
        SweepStateError: on entering, if another launcher is at work there, or if the folder cannot
            be written or locked.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def __enter__(self) -> LauncherLock:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # A little patience: `sweep status` holds it for a moment when it looks.
            self._descriptor = locks.take(self._folder / _LOCK)
        except SweepStateError:
            raise  # there are no locks
        except OSError as error:
            raise SweepStateError(
                f"{self._folder} cannot be written ({error.strerror}). Give a folder you may "
                f"write to as --out"
            ) from error
        if self._descriptor is not None:
            return self
        raise SweepStateError(
            f"{self._folder} has a launcher at work already. Look at it with `redline sweep "
            f"status {self._folder}`, or wait until it has ended"
        )

    def __exit__(self, *exc_info: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def launcher_is_alive(folder: Path) -> bool:
    """Whether a launcher is at work in a sweep's folder."""
    return locks.is_held(folder / _LOCK)


def _sound(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which every column is of its kind.

    Raises:
        SweepStateError: naming the first one that is not.
    """
    for name, kinds in _KINDS.items():
        value = row[name]
        if kinds is dict:
            value = _plain(name, value or "{}")
        if not isinstance(value, kinds) or (name == "state" and value not in STATES):
            raise _odd_value(name, row[name])
    return row


def _plain(name: str, text: Any) -> Any:
    """The plain data that a cell of the database holds as JSON."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _odd_value(name, text) from error


def _odd_value(name: str, value: Any) -> SweepStateError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return SweepStateError(
        f"{DATABASE} holds {name}={shown}, which no launcher wrote. What the runs reached lies in "
        f"{RUNS}: move {DATABASE} away and call `redline sweep FILE` again with the same --out"
    )
