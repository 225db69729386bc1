"""What callbacks and infos put into rows, and which names they may not take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from redline.errors import CallbackError, ConfigError
from redline.train.progress.progress import BASE_COLUMNS, require_column_name

LATE_COLUMNS = ("success_rate", "eval_success_rate", "worker_restarts")
"""Columns of a run of which nobody knows before they have a value."""

__all__ = ["LATE_COLUMNS", "LoggedValues", "require_free_names"]


def require_free_names(log_info: Iterable[str], columns: Collection[str], algorithm: str) -> None:
    """Refuse values of infos under names that columns of the run itself have.

    Args:
        log_info: names of the values.
        columns: of the run.
        algorithm: of the run.

    Raises:
        ConfigError: if there is one.
    """
    taken = [name for name in log_info if name in columns]
    if taken:
        raise ConfigError(
            f"log_info={taken[0]!r}: progress.csv has a column of that name, which {algorithm} "
            "writes. Rename the value in info, or leave it out."
        )


class LoggedValues:
    """Means of what callbacks logged since the last row.

    Attributes:
        names: of all values that were ever logged, in the order in which they came.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._taken: list[str] = []

    def add(self, name: str, value: Any, columns: Collection[str]) -> None:
        """Take in one value.

        Args:
            name: of the column.
            value: a number.
            columns: that the run has already.

        Raises:
            ConfigError: if it is no number, or the name cannot name a column of its own.
        """
        require_column_name(name)
        if name not in self.names and name in (*BASE_COLUMNS, *LATE_COLUMNS, *columns):
            raise ConfigError(
                f"a callback cannot log {name!r}: progress.csv has a column of that name. Choose "
                f"another one, such as my/{name}."
            )
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name}={value!r} cannot be logged: it is no number. Log a number."
            ) from error
        if name not in self.names:
            self.names.append(name)
        if math.isnan(number):
            return
        self._totals[name] = self._totals.get(name, 0.0) + number
        self._counts[name] = self._counts.get(name, 0) + 1

    def take(self, columns: Collection[str]) -> dict[str, float | None]:
        """The means, None for names without a value since the last row; and start anew.

        Args:
            columns: of the row, in whose place nothing is logged; see `refuse_taken`.
        """
        totals, self._totals = self._totals, {}
        counts, self._counts = self._counts, {}
        self._taken = [name for name in columns if name in totals]
        free = [name for name in self.names if name not in columns]
        return {n: totals[n] / counts[n] if n in totals else None for n in free}

    def refuse_taken(self) -> None:
        """After the row, so that what is saved next is whole.

        Raises:
            CallbackError: if a value was logged under the name of a column of that row.
        """
        if self._taken:
            name = self._taken[0]
            raise CallbackError(
                f"a callback logs {name!r}: progress.csv has a column of that name. Choose another "
                f"one, such as my/{name}."
            )

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "names": list(self.names),
            "totals": dict(self._totals),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.names = list(state["names"])
        self._totals, self._counts = dict(state["totals"]), dict(state["counts"])
