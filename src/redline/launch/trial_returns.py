"""The returns of a trial's run while it goes on, each row read once."""

from __future__ import annotations

import math
from pathlib import Path

from redline.train.progress.growing_table import GrowingTable

_MOST_STEPS = 2**53  # that a float still counts one by one


class TrialReturns:
    """Follows the progress.csv of a run.

    Args:
        run_dir: of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._table = GrowingTable(run_dir / "progress.csv")
        self._columns: list[str] = []
        self._last: list[tuple[int, float]] = []

    def read(self) -> list[tuple[int, float]]:
        """The (env_steps, return) of rows that are new, behind the newest one of the last reading.

        What a trial reports of a step without a row depends on the row before. Rows without a
        return are left out, and so are damaged ones.
        """
        is_anew, lines = self._table.read()
        if is_anew:
            self._columns, self._last = next(lines, []), []
        rows = [*self._last]
        for cells in lines:
            row = self._row(cells)
            if row is not None:
                rows.append(row)
        has_new = len(rows) > len(self._last)
        self._last = rows[-1:]
        return rows if has_new else []

    def _row(self, cells: list[str]) -> tuple[int, float] | None:
        try:
            row = dict(zip(self._columns, cells, strict=True))
            env_steps, value = float(row["env_steps"]), float(row["return_mean"] or math.nan)
        except (ValueError, KeyError):
            return None
        is_row = 0 <= env_steps <= _MOST_STEPS and not math.isnan(value)
        return (int(env_steps), value) if is_row else None
