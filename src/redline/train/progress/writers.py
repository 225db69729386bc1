"""Where the rows of a run go: CSV, JSON lines, TensorBoard, Weights & Biases.

Each writer is opened with the number of rows to keep from before and goes on after them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import math
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from redline.errors import ConfigError, MissingExtraError, RunDirectoryError
from redline.plain_files import open_plain, read_json, read_row
from redline.plain_text import shown
from redline.train.checkpoint.atomic_files import atomic_file, write_json_atomic
from redline.train.progress.tags import AXIS, tags_in_order

Row: TypeAlias = "Mapping[str, int | float | None]"

WRITERS = ("csv", "tensorboard", "jsonl", "wandb")
CSV_NAME = "progress.csv"
JSONL_NAME = "progress.jsonl"
TENSORBOARD_NAME = "tensorboard"
_WANDB_NAME = "wandb_run.json"


class RowWriter(ABC):
    """One place that rows go to."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Append a row; it is out of this process when this returns."""

    def set_columns(self, columns: Sequence[str]) -> None:  # noqa: B027 (not all need it)
        """Take further columns, behind those that there are; JSON names them in each row."""

    def sync(self) -> None:  # noqa: B027 (only files need it)
        """Make what was written survive a loss of power, where a resume relies on it."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""


def require_writer(name: str) -> None:
    """Check that a writer's package is there.

    Raises:
        MissingExtraError: if it is not.
    """
    if name == "wandb" and importlib.util.find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases")


def open_writer(
    name: str,
    run_dir: Path,
    *,
    columns: Sequence[str],
    rows: int,
    last_env_steps: int,
    wandb_settings: Mapping[str, Any],
) -> RowWriter:
    """Open a writer so that it goes on after `rows` rows.

    Args:
        name: one of `WRITERS`.
        run_dir: the run directory.
        columns: of progress.csv.
        rows: to keep; what was written after them is cut off.
        last_env_steps: of the last of those rows; -1 if there are none.
        wandb_settings: arguments of `wandb.init`.

    Raises:
        RunDirectoryError: if there are fewer rows, or other columns.
        ConfigError: if W&B lets no session begin.
    """
    if name == "csv":
        return CsvWriter(run_dir / CSV_NAME, columns, rows)
    if name == "jsonl":
        return _JsonLinesWriter(run_dir / JSONL_NAME, rows)
    if name == "tensorboard":
        return _TensorBoardWriter(run_dir / TENSORBOARD_NAME, columns, last_env_steps + 1)
    return _WandbWriter(run_dir, columns, rows, wandb_settings)


class _LineWriter(RowWriter):
    """A text file with one line per row, hashed as it grows."""

    def __init__(self, path: Path, header: str | None, rows: int) -> None:
        self._hash, self._size_bytes = _cut_lines(path, header, rows)
        self._file: IO[str] = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115

    def _append(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        data = f"{line}\n".encode()
        self._hash.update(data)
        self._size_bytes += len(data)

    def entry(self) -> dict[str, Any]:
        """SHA-256 and size of what was written and kept."""
        return {"sha256": self._hash.hexdigest(), "size_bytes": self._size_bytes}

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class CsvWriter(_LineWriter):
    """progress.csv: a header, then one line of numbers per row."""

    def __init__(self, path: Path, columns: Sequence[str], rows: int) -> None:
        super().__init__(path, ",".join(columns), rows)
        self._path, self._num_columns = path, len(columns)

    def set_columns(self, columns: Sequence[str]) -> None:
        """Rewrite the file: a new header, and nothing in the new columns of earlier rows."""
        self._file.close()
        header, further = ",".join(columns), "," * (len(columns) - self._num_columns)
        lines = itertools.chain([f"{header}\n".encode()], _with_cells(self._path, further))
        self._hash, self._size_bytes = _replace_by(self._path, lines)
        self._num_columns = len(columns)
        self._file = open(self._path, "a", encoding="utf-8", newline="")  # noqa: SIM115

    def entry(self) -> dict[str, Any]:
        """Also how many columns there are: more may join, in rows that are hashed here."""
        return super().entry() | {"columns": self._num_columns}

    def write(self, row: Row) -> None:
        """Append a row; None is an empty cell."""
        self._append(",".join("" if value is None else repr(value) for value in row.values()))


class _JsonLinesWriter(_LineWriter):
    def __init__(self, path: Path, rows: int) -> None:
        if _count_lines(path, rows) < rows:  # a resumed run may have had none
            found = _rows_of_csv(path.with_name(CSV_NAME), rows)
            with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
                file.writelines(f"{_json_line(row)}\n" for row in found)
        super().__init__(path, None, rows)

    def write(self, row: Row) -> None:
        self._append(_json_line(row))


def _count_lines(path: Path, most: int) -> int:
    """The whole lines of a file; no more of them are counted than asked for."""
    if not path.exists():
        return 0
    found = 0
    with open(open_plain(path), "rb") as file, contextlib.suppress(OSError):  # no rows from there
        while found < most and read_row(file).endswith(b"\n"):
            found += 1
    return found


def _json_line(row: Row) -> str:
    # JSON knows neither NaN nor infinity.
    finite = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in row.items()
    }
    return json.dumps(finite, allow_nan=False)


def _rows_of_csv(path: Path, rows: int) -> Iterator[dict[str, Any]]:
    """The first rows of progress.csv, as they were written."""
    with open(open_plain(path), "rb") as file:
        names = _cells(read_row(file))
        for _ in range(rows):
            yield dict(zip(names, map(_number_of, _cells(read_row(file))), strict=True))


def _cells(line: bytes) -> list[str]:
    return line.decode().rstrip("\n").split(",")


def _number_of(cell: str) -> int | float | None:
    """What was written as `repr`; an empty cell is None."""
    if not cell:
        return None
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        raise RunDirectoryError(
            f"{CSV_NAME} holds {shown(cell)}, which is no number. Restore the file."
        ) from None


class _TensorBoardWriter(RowWriter):
    """Scalars over env_steps; what an earlier session wrote from `purge_step` on is hidden."""

    def __init__(self, directory: Path, columns: Sequence[str], purge_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        began_before = directory.is_dir() and any(directory.iterdir())
        self._tags = tags_in_order(columns)
        self._writer = SummaryWriter(
            str(directory), purge_step=purge_step if began_before else None
        )
        if not began_before:
            self._writer.add_custom_scalars(_dashboard(self._tags.values()))

    def set_columns(self, columns: Sequence[str]) -> None:
        """Give further columns their tags."""
        self._tags = tags_in_order(columns)

    def write(self, row: Row) -> None:
        step = row[AXIS]
        for column, tag in self._tags.items():
            value = row[column]
            if value is not None:
                self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _dashboard(tags: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """TensorBoard's tab of custom scalars: return first, training and evaluation in one chart."""
    present = set(tags)
    charts = {
        "return": ["episode/return_mean", "eval/return_mean"],
        "episode length (env_steps)": ["episode/steps_mean", "eval/steps_mean"],
        "env_steps per second": ["time/sps"],
    }
    shown = {title: [tag for tag in tags if tag in present] for title, tags in charts.items()}
    return {"Redline": {title: ["Multiline", tags] for title, tags in shown.items() if tags}}


# Arguments of `wandb.init` and W&B's own environment variables for them, which win.
_WANDB_VARIABLES = {
    "project": "WANDB_PROJECT",
    "entity": "WANDB_ENTITY",
    "name": "WANDB_NAME",
    "group": "WANDB_RUN_GROUP",
    "tags": "WANDB_TAGS",
    "notes": "WANDB_NOTES",
    "job_type": "WANDB_JOB_TYPE",
    "mode": "WANDB_MODE",
    "dir": "WANDB_DIR",
    "id": "WANDB_RUN_ID",
    "resume": "WANDB_RESUME",
}


class _WandbWriter(RowWriter):
    """A W&B run whose id is kept in the run directory, so that resuming goes on with it."""

    def __init__(
        self, run_dir: Path, columns: Sequence[str], rows: int, settings: Mapping[str, Any]
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases") from error
        id_file = run_dir / _WANDB_NAME
        if rows > 0 and id_file.is_file():
            run_id = read_json(id_file)["id"]
        else:
            run_id = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex
        given = {
            "project": "redline",
            "name": run_dir.name,
            **settings,
            "dir": str(run_dir),
            "id": run_id,
            "resume": "allow",
        }
        for argument, variable in _WANDB_VARIABLES.items():
            if os.environ.get(variable):
                given.pop(argument, None)
        self._tags = tags_in_order(columns)
        theirs = run_dir / "wandb"
        was_there = theirs.exists()
        try:
            self._run = wandb.init(**given)
        except Exception as error:  # of W&B's own kinds, and of the network's
            if not was_there:
                shutil.rmtree(theirs, ignore_errors=True)
            raise ConfigError(
                f"W&B: no session could be begun ({type(error).__name__}: {error!s:.400}). Log in "
                f"by `wandb login`, set WANDB_MODE=offline, or leave it out: --no-wandb for a new "
                f"run, --set wandb=False with --resume."
            ) from error
        write_json_atomic(id_file, {"id": run_id})
        # W&B's own step counter must rise by ones and cannot be cut back; env_steps can.
        self._run.define_metric(AXIS)
        self._run.define_metric("*", step_metric=AXIS)

    def set_columns(self, columns: Sequence[str]) -> None:
        """Give further columns their tags."""
        self._tags = tags_in_order(columns)

    def write(self, row: Row) -> None:
        numbers = {tag: row[column] for column, tag in self._tags.items()}
        present = {tag: value for tag, value in numbers.items() if value is not None}
        self._run.log({AXIS: row[AXIS], **present})

    def close(self) -> None:
        self._run.finish()


def _cut_lines(path: Path, header: str | None, rows: int) -> tuple[hashlib._Hash, int]:
    """Leave the header and the first `rows` whole lines of a file, replacing it at once.

    Returns:
        The hash and the size of what is left.

    Raises:
        RunDirectoryError: if it has fewer, or another header.
    """
    return _replace_by(path, _kept_lines(path, header, rows))


def _replace_by(path: Path, lines: Iterable[bytes]) -> tuple[hashlib._Hash, int]:
    """Put lines in the place of a file, which they may be read from; their hash and size."""
    digest, size = hashlib.sha256(), 0
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        for line in lines:
            file.write(line)
            digest.update(line)
            size += len(line)
    return digest, size


def _with_cells(path: Path, further: str) -> Iterator[bytes]:
    """The rows of a table with further cells, and without its header."""
    with open(open_plain(path), "rb") as file:
        read_row(file)
        while line := read_row(file):
            yield line.rstrip(b"\n") + further.encode() + b"\n"


def _kept_lines(path: Path, header: str | None, rows: int) -> Iterator[bytes]:
    """Line by line: a run of weeks that logs each second has gigabytes of them."""
    if header is not None:
        yield header.encode() + b"\n"
    if rows == 0:
        return
    found = 0
    try:
        with open(open_plain(path), "rb") as file:
            fields = None if header is None else _fields_to_keep(path, header, read_row(file))
            # A line without its end was torn by a kill in the middle of a write.
            while found < rows and (line := read_row(file)).endswith(b"\n"):
                found += 1
                yield line if fields is None else first_fields(line, fields)
    except OSError as error:
        if isinstance(error, RunDirectoryError):
            raise
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"is unusable ({error})"
        raise RunDirectoryError(
            f"{path} {reason}, but the checkpoint to resume from counts {rows} "
            f"rows in it. Restore the file, or start a new run."
        ) from error
    if found < rows:
        raise RunDirectoryError(
            f"{path} has {found} rows, but the checkpoint to resume from counts {rows}. "
            f"Restore the file, or start a new run."
        )


def _fields_to_keep(path: Path, header: str, line: bytes) -> int | None:
    """How many fields a row had at the checkpoint, if columns have joined since; None: all."""
    found = line.decode(errors="replace").rstrip("\n")
    if found == header:
        return None
    if found.startswith(f"{header},"):  # in rows that are cut off, or had no value
        return header.count(",") + 1
    raise RunDirectoryError(
        f"{path} begins with the columns {shown(found, 200)}, but the checkpoint to "
        f"resume from has {shown(header, 200)}. Restore the file, or start a new run."
    )


def first_fields(line: bytes, count: int) -> bytes:
    """The first fields of a CSV line, none of which holds a comma; its end stays as it is."""
    end = b"\n" if line.endswith(b"\n") else b""
    return b",".join(line.rstrip(b"\n").split(b",")[:count]) + end
