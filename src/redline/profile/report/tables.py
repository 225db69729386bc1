"""The report's tables as CSV: one row per entry, units in the column names, floats in full."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any, TextIO, cast

from redline.errors import ConfigError
from redline.plain_text import csv_cell, printable
from redline.profile.analyse.summary import Summary

__all__ = ["table_names", "write_table", "write_tables"]


def table_names(summaries: list[Summary]) -> list[str]:
    """The fields of a summary that hold rows, those with any first seen row first."""
    names = [field.name for field in dataclasses.fields(Summary)]
    return [name for name in names if _rows(name, summaries)]


def write_table(name: str, summaries: list[Summary], file: TextIO) -> None:
    """Write one table; with several sessions a first column `session` says whose row it is.

    Args:
        name: `cells`, `processes`, `functions`, `overhead`, ...
        summaries: of the sessions.
        file: open for writing text.
    """
    rows = _rows(name, summaries)
    if not rows:
        return
    columns = [field.name for field in dataclasses.fields(rows[0][1])]
    head = ["session"] if len(summaries) > 1 else []
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*head, *columns])
    for session, row in rows:
        named = [printable(session)] if head else []
        values = [_plain(getattr(row, column)) for column in columns]
        writer.writerow([csv_cell(each) for each in named + values])


def write_tables(summaries: list[Summary], directory: Path) -> list[Path]:
    """Write each table that has rows to a file of its own.

    Args:
        summaries: of the sessions.
        directory: made if it is not there; files of the same names are replaced.

    Returns:
        What was written.

    Raises:
        ConfigError: if the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {directory}: {error}. Give another directory") from error
    written: list[Path] = []
    for name in table_names(summaries):
        path = directory / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            write_table(name, summaries, file)
        written.append(path)
    return written


def _rows(name: str, summaries: list[Summary]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for summary in summaries:
        value = getattr(summary, name)
        if isinstance(value, list):
            rows = cast(list[Any], value)
            found += [(summary.session, row) for row in rows if dataclasses.is_dataclass(row)]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    return "" if isinstance(value, float) and value != value else value
