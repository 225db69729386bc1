"""What callbacks and infos put into rows, and which names they may not take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from redline.algos.config import OffPolicyConfig
from redline.errors import CallbackError, ConfigError
from redline.train.loops.evaluations import EVALUATION_COLUMNS
from redline.train.loops.schedules import scheduled_hyperparameters
from redline.train.progress.progress import BASE_COLUMNS, require_column_name
from redline.train.progress.tags import tag
from redline.train.settings import RunConfig

LATE_COLUMNS = ("success_rate", "eval_success_rate", "worker_restarts")
"""Columns of a run of which nobody knows before they have a value."""

__all__ = [
    "LATE_COLUMNS",
    "LoggedValues",
    "own_columns",
    "require_free_names",
    "require_own_metrics",
]


def own_columns(config: RunConfig) -> set[str]:
    """Columns that a run writes itself beside its metrics, as far as its settings say so."""
    algo = config.algo
    names = {*BASE_COLUMNS, *LATE_COLUMNS, *EVALUATION_COLUMNS}
    names |= scheduled_hyperparameters(algo, 0, config.run.total_env_steps).keys()
    if isinstance(algo, OffPolicyConfig):
        names |= {"replay_ratio"} | ({"priority_beta"} if algo.prioritized else set())
    return names


def require_free_names(log_info: Iterable[str], columns: Collection[str], algorithm: str) -> None:
    """Refuse values of infos under names that columns of the run itself have.

    Args:
        log_info: names of the values.
        columns: of the run.
        algorithm: of the run.

    Raises:
        ConfigError: if there is one, or one that cannot name a column.
    """
    for name in log_info:
        require_column_name(name)
    taken = [name for name in log_info if name in columns]
    if taken:
        raise ConfigError(
            f"log_info={taken[0]!r}: progress.csv has a column of that name, which {algorithm} "
            "writes. Rename the value in info, or leave it out."
        )


def require_own_metrics(
    metrics: Iterable[str], columns: Iterable[str], algorithm: type[Any]
) -> None:
    """Refuse metrics of an update under names that columns of the run itself have.

    Args:
        metrics: their names.
        columns: of the run beside its metrics.
        algorithm: of the run.

    Raises:
        ConfigError: if there is one.
    """
    tags = {tag(column): column for column in columns}
    for name in metrics:
        if tag(name) in tags:
            raise ConfigError(
                f"{algorithm.__name__}.update returns the metric {name!r}: the run itself writes "
                f"{tags[tag(name)]}, which logs would mix up. Give it another name, such as "
                f"my_{name.rpartition('/')[2]}."
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
        self._taken: dict[str, list[str]] = {}

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
        if name not in self.names:
            late = [name] if name in LATE_COLUMNS else []
            if same := late or _same(name, (*BASE_COLUMNS, *columns)):
                raise ConfigError(f"a callback cannot log {name!r}: {_reason(name, same)}")
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

    def take(
        self, columns: Collection[str], before: Collection[str] = ()
    ) -> dict[str, float | None]:
        """The means, None for names without a value since the last row; and start anew.

        Args:
            columns: of the row, in whose place nothing is logged; see `refuse_taken`.
            before: columns of earlier rows: those that stand beside each other go on so.
        """
        totals, self._totals = self._totals, {}
        counts, self._counts = self._counts, {}
        taken: dict[str, list[str]] = {}
        for name in self.names:
            same = _same(name, columns)
            if same and (name in columns or not {name, *same} <= {*before}):
                taken[name] = same
        self._taken = {name: same for name, same in taken.items() if name in totals}
        free = [name for name in self.names if name not in taken]
        return {n: totals[n] / counts[n] if n in totals else None for n in free}

    def refuse_taken(self) -> None:
        """After the row, so that what is saved next is whole.

        Raises:
            CallbackError: if a value was logged under the name of a column of that row, or
                under what TensorBoard and W&B call it.
        """
        for name, same in self._taken.items():
            raise CallbackError(f"a callback logs {name!r}: {_reason(name, same)}")

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


def _same(name: str, columns: Iterable[str]) -> list[str]:
    """Columns that have a name, or that TensorBoard and W&B would mix up with it."""
    own = tag(name)
    return [column for column in columns if tag(column) == own]


def _reason(name: str, same: list[str]) -> str:
    reason = "progress.csv has a column of that name"
    if name not in same:
        reason = f"that is what TensorBoard and W&B call the column {same[0]}"
    return f"{reason}. Choose another one, such as my/{name.rpartition('/')[2]}."
