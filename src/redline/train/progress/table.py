"""The rows of a run as a table: columns by their names, and a text that people can read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from redline.data import Array
from redline.errors import MissingExtraError
from redline.train.progress.curves import load_progress

_SHOWN = ("env_steps", "wall_time_s", "sps", "return_mean", "return_std", "episodes")
_ROWS_AT_EACH_END = 5


class ProgressTable(Mapping[str, Array]):
    """What `progress.csv` holds; `table["return_mean"]` is a column.

    Args:
        columns: name -> [rows] float64, NaN where a cell is empty.
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(cls, run_dir: Path) -> ProgressTable:
        """The table of a run directory.

        Raises:
            RunDirectoryError: if there is no progress.csv, or no row in it.
        """
        return cls(load_progress(run_dir))

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self._columns.values()), ()))

    def rows(self) -> list[dict[str, float]]:
        """Row by row, column -> number; cells without a value are left out."""
        return [
            {
                name: float(column[i])
                for name, column in self._columns.items()
                if not math.isnan(column[i])
            }
            for i in range(self.num_rows)
        ]

    def to_pandas(self) -> Any:
        """A pandas DataFrame.

        Raises:
            MissingExtraError: without pandas, which no extra of Redline brings.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtraError("pandas", None, "a data frame of the rows") from error
        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        names = [name for name in _SHOWN if name in self._columns]
        total = self.num_rows
        kept = np.arange(total)
        if total > 2 * _ROWS_AT_EACH_END + 1:
            kept = np.r_[:_ROWS_AT_EACH_END, total - _ROWS_AT_EACH_END : total]
        table = [[_cell(self._columns[name][i]) for name in names] for i in kept]
        if len(kept) < total:
            table.insert(_ROWS_AT_EACH_END, ["..."] * len(names))
        widths = [max(map(len, column)) for column in zip(names, *table, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in [names, *table]
        ]
        more = len(self._columns) - len(names)
        return "\n".join([*lines, f"{total} rows, {more} further columns"])


def _cell(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.1f}"
