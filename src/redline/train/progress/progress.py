"""The rows of a run: episode statistics, and `progress.csv` with its companions.

One row per logging interval. `progress.csv` is what resuming, plots and tests rely on: its
columns are fixed by the first row, floats are written so that they read back exactly, and
an interrupted run that is resumed ends with the same rows as one that never stopped, but
for the columns in `TIME_COLUMNS` and the shares of time of a profiled run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from redline.data import EpisodeRecord, EpisodeTable
from redline.errors import ConfigError, RunDirectoryError, UnknownNameError
from redline.plain_text import csv_cell
from redline.train.progress.writers import (
    CSV_NAME,
    WRITERS,
    CsvWriter,
    RowWriter,
    open_writer,
    require_writer,
)

Number: TypeAlias = "int | float"

BASE_COLUMNS = (
    "iteration",
    "env_steps",
    "frames",
    "optimizer_steps",
    "wall_time_s",
    "sps",
    "return_mean",
    "return_std",
    "return_min",
    "return_max",
    "episode_length_mean",
    "episodes",
)
TIME_COLUMNS = ("wall_time_s", "sps")


RECENT_EPISODES = 100
"""Episodes that the moving mean covers."""


class EpisodeStatistics:
    """Statistics of the episodes that ended since the last row, and a moving mean.

    Args:
        window: episodes that the moving mean covers.
        info_names: of the values in the episodes' last infos whose means are columns.
    """

    def __init__(self, window: int = RECENT_EPISODES, info_names: Sequence[str] = ()) -> None:
        self._infos: dict[str, list[float]] = {name: [] for name in info_names}
        self._successes: list[bool] = []
        self._ended = 0  # episodes since the last rate
        self._says_success = False  # whether any episode has said so far if it was one
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._recent: deque[float] = deque(maxlen=window)

    def add(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Take finished episodes in."""
        if isinstance(episodes, EpisodeTable):
            returns = episodes.return_.tolist()
            self._returns += returns
            self._lengths += episodes.length.tolist()
            self._ended += len(returns)
            self._recent.extend(returns[-(self._recent.maxlen or 0) :])
            return
        for episode in episodes:
            self._returns.append(float(episode.return_))
            self._lengths.append(int(episode.length))
            self._recent.append(float(episode.return_))
            self._ended += 1
            if episode.success is not None:
                self._successes.append(episode.success)
                self._says_success = True
            for name, value in episode.info.items():
                self._infos[name].append(value)

    @property
    def recent(self) -> int:
        """How many episodes the moving mean covers by now."""
        return len(self._recent)

    @property
    def moving_statistics(self) -> tuple[float | None, float | None]:
        """The moving mean, and the population standard deviation over the same episodes."""
        mean = self.moving_mean
        if mean is None:
            return None, None
        squares = math.fsum((value - mean) ** 2 for value in self._recent)
        return mean, math.sqrt(squares / len(self._recent))

    @property
    def moving_mean(self) -> float | None:
        """Mean return of the last `window` episodes; None before the first."""
        return math.fsum(self._recent) / len(self._recent) if self._recent else None

    def take_row(self) -> dict[str, Number | None]:
        """The columns from return_mean to episodes, those of infos, and a new beginning.

        The standard deviation is the population's. All but `episodes`, their number since
        the last row, are None if none ended. The success rate is left; it has its own method.
        """
        infos = {name: _mean(values) for name, values in self._infos.items()}
        self._infos = {name: [] for name in self._infos}
        returns, lengths = self._returns, self._lengths
        self._returns, self._lengths = [], []
        count = len(returns)
        if count == 0:
            empty = ("return_mean", "return_std", "return_min", "return_max", "episode_length_mean")
            return {**dict.fromkeys(empty), "episodes": 0, **infos}
        mean = math.fsum(returns) / count
        variance = math.fsum((value - mean) ** 2 for value in returns) / count
        return {
            "return_mean": mean,
            "return_std": math.sqrt(variance),
            "return_min": min(returns),
            "return_max": max(returns),
            "episode_length_mean": sum(lengths) / count,
            "episodes": count,
            **infos,
        }

    def take_success_rate(self) -> float | None:
        """Share of successes among the episodes, and a new beginning.

        None if none ended, or if no episode so far has said whether it was one. From then on an
        episode that says nothing is none, as in evaluations.
        """
        successes, ended = self._successes.count(True), self._ended
        self._successes, self._ended = [], 0
        return successes / ended if ended and self._says_success else None

    def state_dict(self) -> dict[str, Any]:
        """What has gathered since the last row, and the moving mean's window."""
        return {
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "recent": list(self._recent),
            "successes": list(self._successes),
            "ended": self._ended,
            "says_success": self._says_success,
            "infos": {name: list(values) for name, values in self._infos.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._returns = list(state["returns"])
        self._lengths = list(state["lengths"])
        self._recent = deque(state["recent"], maxlen=self._recent.maxlen)
        self._successes = [bool(said) for said in state.get("successes", ())]
        # Version 0.2 saved neither of the two.
        self._ended = int(state.get("ended", len(self._successes)))
        self._says_success = bool(state.get("says_success", self._successes))
        for name, values in state.get("infos", {}).items():
            self._infos[name] = list(values)


class ProgressLogger:
    """Writes rows to `progress.csv` and to the other writers chosen.

    Nothing is touched before the first row, `begin` or `load_state_dict`. A logger without a loaded
    state begins the files anew.

    Args:
        run_dir: the run directory.
        writers: besides "csv", which is always there: "tensorboard", "jsonl", "wandb".
        wandb_settings: further arguments of `wandb.init`, such as project and config.

    Raises:
        UnknownNameError: if there is no such writer.
        MissingExtraError: if one needs a package that is not installed.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        writers: Sequence[str] = ("csv", "tensorboard"),
        wandb_settings: Mapping[str, Any] | None = None,
    ) -> None:
        for name in writers:
            if name not in WRITERS:
                raise UnknownNameError(
                    f"there is no progress writer {name!r}. Choose from: {', '.join(WRITERS)}."
                )
            require_writer(name)
        self._run_dir = Path(run_dir)
        self._names = ["csv", *(name for name in writers if name != "csv")]
        self._wandb_settings = dict(wandb_settings or {})
        self._writers: list[RowWriter] = []
        self._begun: RowWriter | None = None
        self._columns: tuple[str, ...] = ()
        self._last_env_steps = -1
        self.rows = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns; empty before the first row."""
        return self._columns

    def write(
        self, row: Mapping[str, Any], *, late: Sequence[str] = ()
    ) -> dict[str, Number | None]:
        """Write a row and flush it.

        Args:
            row: column -> number, None where there is no value; 0-d tensors and numpy scalars
                are read here. The first row fixes the columns: `BASE_COLUMNS`, then its others
                in their order. A base column that is not given has no value.
            late: columns that may also join later; earlier rows have no value there.

        Returns:
            The row as written.

        Raises:
            ConfigError: if a key is not among the columns, or a value is not a number.
            RunDirectoryError: if a file cannot be written.
        """
        if not self._columns:
            self._columns = _columns_of(row)
        with self._writing():
            self._add_columns([name for name in late if name not in self._columns])
        unknown = [name for name in row if name not in self._columns]
        if unknown:
            raise ConfigError(
                f"progress row {self.rows + 1} has the new column {unknown[0]!r}. The first row "
                f"fixes the columns: give it there, as None if it has no value yet."
            )
        numbers = {name: _number(name, row.get(name)) for name in self._columns}
        if numbers["env_steps"] is None:
            raise ConfigError(f"progress row {self.rows + 1} has no env_steps. Give it a number.")
        with self._writing():
            self._open()
            for writer in self._writers:
                writer.write(numbers)
        self.rows += 1
        self._last_env_steps = int(numbers["env_steps"])
        return numbers

    def _add_columns(self, names: Sequence[str]) -> None:
        """Let columns join at the end."""
        if not names:
            return
        for name in names:
            require_column_name(name)
        self._open()
        self._columns = (*self._columns, *names)
        for writer in self._writers:
            writer.set_columns(self._columns)

    def state_dict(self) -> dict[str, Any]:
        """How far the files go. What it counts is on disk when this returns.

        Raises:
            RunDirectoryError: if a file cannot be written.
        """
        with self._writing():
            for writer in self._writers:
                writer.sync()
        return {
            "rows": self.rows,
            "columns": list(self._columns),
            "last_env_steps": self._last_env_steps,
        }

    def run_files(self) -> dict[str, Any]:
        """SHA-256 and size of progress.csv as it now is, by its name; empty before a row."""
        csv = next((each for each in self._writers if isinstance(each, CsvWriter)), None)
        return {} if csv is None else {CSV_NAME: csv.entry()}

    def begin(self) -> None:
        """Begin what may refuse a new run: a session of W&B.

        Raises:
            ConfigError: if it cannot be begun.
        """
        if "wandb" in self._names and self._begun is None and not self._writers:
            with self._writing():
                self._run_dir.mkdir(parents=True, exist_ok=True)
                self._begun = self._opened("wandb")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Cut the files back to the rows that `state` counts, and go on from there.

        Raises:
            RunDirectoryError: if a file has fewer rows, or other columns, or cannot be written.
            ConfigError: if W&B lets no session begin.
        """
        self.close()
        self.rows = int(state["rows"])
        self._columns = tuple(state["columns"])
        self._last_env_steps = int(state["last_env_steps"])
        with self._writing():
            self._open()
        self.begin()  # where no row has been written yet

    def close(self) -> None:
        """Close all files. Calling it twice does no harm.

        Raises:
            RunDirectoryError: if a file cannot be written; the others are closed all the same.
        """
        with self._writing(), ExitStack() as closing:
            writers, self._writers = self._writers, []
            if self._begun is not None:
                closing.callback(self._begun.close)
                self._begun = None
            for writer in reversed(writers):
                closing.callback(writer.close)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except RunDirectoryError:
            raise  # it is an OSError, and says all of this
        except OSError as error:
            raise RunDirectoryError(
                f"cannot write progress in {self._run_dir}: {error.strerror or error}. Check that "
                f"it is writable and that the disk has room."
            ) from error

    def __enter__(self) -> ProgressLogger:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        try:
            self.close()
        except RunDirectoryError:
            if kind is None:  # else the first failure tells more: what it left unwritten comes here
                raise

    def _open(self) -> None:
        if self._writers or not self._columns:
            return
        self._run_dir.mkdir(parents=True, exist_ok=True)
        for name in self._names:
            begun = self._begun if name == "wandb" else None
            if begun is None:
                self._writers.append(self._opened(name))
            else:
                begun.set_columns(self._columns)
                self._writers.append(begun)
                self._begun = None

    def _opened(self, name: str) -> RowWriter:
        return open_writer(
            name,
            self._run_dir,
            columns=self._columns,
            rows=self.rows,
            last_env_steps=self._last_env_steps,
            wandb_settings=self._wandb_settings,
        )


def _columns_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    own = tuple(name for name in row if name not in BASE_COLUMNS)
    for name in own:
        require_column_name(name)
    return (*BASE_COLUMNS, *own)


def require_column_name(name: str) -> None:
    """Raise ConfigError for what cannot name a column of progress.csv."""
    if not name or not name.isprintable() or "," in name or '"' in name or csv_cell(name) != name:
        raise ConfigError(
            f"the metric {name!r} cannot name a column of progress.csv. Use letters, digits, "
            f"'_' and '/'."
        )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _number(name: str, value: Any) -> Number | None:
    """A plain number; reading a tensor waits for its device."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None:
        return None
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    raise ConfigError(
        f"{name}={value!r} cannot be logged: it is a {type(value).__name__}, not a number. Log a "
        f"number, a 0-d tensor or None."
    )
