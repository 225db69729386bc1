"""The rows of a run: what is summed up between two of them, and how one is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from redline.algos.algorithm import OffPolicyAlgorithm, OnPolicyAlgorithm, metrics_of
from redline.collect import Collector
from redline.train.loops.collector_columns import CollectorColumns
from redline.train.loops.divergence import DivergenceCheck
from redline.train.loops.evaluations import Evaluations
from redline.train.loops.hyperparameters import Hyperparameters
from redline.train.loops.logged_values import (
    LoggedValues,
    own_columns,
    require_free_names,
    require_own_metrics,
)
from redline.train.loops.metric_means import MetricMeans
from redline.train.progress.console import Console
from redline.train.progress.operation_shares import COLUMNS, PREFIX, OperationShares
from redline.train.progress.progress import EpisodeStatistics, ProgressLogger
from redline.train.ranks import Ranks
from redline.train.settings import RunConfig

_STEPS = "optimizer_steps"

__all__ = ["Counters", "Rows"]


@dataclass(slots=True)
class Counters:
    """Where a run stands.

    Attributes:
        iteration: collections finished, with their updates.
        env_steps: decisions taken, summed over environments.
        wall_time_s: time spent training, summed over the run's sessions.
    """

    iteration: int = 0
    env_steps: int = 0
    wall_time_s: float = 0.0


class Rows:
    """What a run writes to `progress.csv`, to the console and to other logs.

    Args:
        config: all settings of the run.
        algorithm: whose updates return metrics.
        logger: writes rows.
        console: shows them, and messages.
        ranks: the processes that learn together.
        episodes: of training.
        evaluations: of the run.
        hyperparameters: which schedules and callbacks change.
        divergence: looks at each row's metrics.
        frame_skip: simulator frames per env_step.

    Attributes:
        metrics: of the updates since the last row.
        logged: what callbacks logged since then.
        of_collector: what the collector did since then.
        metric_names: of the updates, where they are known before the first. The first row fixes
            the columns, and it may come before the first update.
        env_steps: of the last row.
        wall_time_s: likewise.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: OnPolicyAlgorithm | OffPolicyAlgorithm,
        logger: ProgressLogger,
        console: Console,
        *,
        ranks: Ranks,
        episodes: EpisodeStatistics,
        evaluations: Evaluations,
        hyperparameters: Hyperparameters,
        divergence: DivergenceCheck,
        frame_skip: int,
    ) -> None:
        self._config, self._algorithm = config, algorithm
        self._logger, self._console, self._ranks = logger, console, ranks
        self._episodes, self._evaluations = episodes, evaluations
        self._hyperparameters, self._divergence = hyperparameters, divergence
        self._frame_skip = frame_skip
        self.metrics = MetricMeans()
        self.logged = LoggedValues()
        self.of_collector = CollectorColumns()
        self.metric_names: tuple[str, ...] = ()
        self.env_steps = 0
        self.wall_time_s = 0.0
        self._shares: OperationShares | None = None
        self._metrics_are_known = self._has_looked_for_infos = self._is_new = False

    def begin(self, collector: Collector) -> None:
        """Before the first iteration of a session.

        Raises:
            ConfigError: if metrics have names of other columns.
        """
        self._shares = self._begin_shares()
        self._is_new = not self._logger.columns  # what older runs wrote goes on as it was
        self._require_own_metrics(getattr(self._algorithm, "metric_names", ()), collector)

    def _begin_shares(self) -> OperationShares | None:
        """The shares of operations, if the profiler records this run."""
        shares = OperationShares()
        if not shares.recording:
            return None
        columns = self._logger.columns
        if columns and COLUMNS[0] not in columns:
            self._console.message(
                "progress.csv was begun without shares of operations: they are shown, not logged"
            )
        return shares

    # -- between two rows -----------------------------------------------------------------

    def add_metrics(self, found: Mapping[str, Any], collector: Collector) -> None:
        """Take in what one update returned."""
        if not self._metrics_are_known:
            self._require_own_metrics(metrics_of(self._algorithm, found), collector)
            self._metrics_are_known = True
        self.metrics.add({name: value for name, value in found.items() if name != "priority"})

    def log(self, name: str, value: float) -> None:
        """Log a number of a callback's in the next row."""
        self.logged.add(name, value, self._logger.columns)

    def sps(self, counters: Counters) -> float:
        """env_steps per second since the last row."""
        elapsed_s = max(counters.wall_time_s - self.wall_time_s, 1e-9)
        return (counters.env_steps - self.env_steps) / elapsed_s

    # -- a row ----------------------------------------------------------------------------

    def write(
        self,
        counters: Counters,
        collector: Collector,
        *,
        own: Mapping[str, float | None],
        tensors: Mapping[str, Tensor],
        worker_restarts: int,
    ) -> None:
        """Write a row, and begin the sums of the next.

        Args:
            counters: where the run stands.
            collector: that gathers at present.
            own: further columns.
            tensors: further columns as tensors [], to be read with the metrics.
            worker_restarts: so far.

        Raises:
            ConfigError: if metrics or values of `log_info` have names of other columns.
            CallbackError: if callbacks logged values under such names.
            DivergenceError: if a metric is not finite, unless `on_divergence="warn"`.
        """
        steps_there = self._algorithm.steps_on_device()
        read = dict(tensors) if steps_there is None else {_STEPS: steps_there, **tensors}
        metrics, numbers = self.metrics.take_with(read)
        metrics, steps = self._ranks.mean(metrics), numbers.pop(_STEPS, None)
        self._require_own_metrics(metrics, collector, also=numbers)
        further: dict[str, Any] = {**dict.fromkeys(self.metric_names), **metrics}
        further |= self._hyperparameters.last | {**own} | numbers
        further |= self.of_collector.take(collector)
        row = self._counted(counters, steps) | further | dict(self._evaluations.columns())
        shares = self._shares.take() if self._shares is not None else {}
        if self._shares is not None and COLUMNS[0] in (self._logger.columns or COLUMNS):
            row |= dict.fromkeys(COLUMNS) | {PREFIX + name: each for name, each in shares.items()}
        columns, late = self._logger.columns, self._late_columns(worker_restarts)
        late |= self.logged.take(row | late, columns)
        # Of the first update, or of one that returns more than those before.
        new = [name for name in (*self.metric_names, *metrics) if name not in columns]
        if columns:  # a resumed run may evaluate or schedule what it did not before
            schedules = self._hyperparameters.last
            late |= {n: row[n] for n in row if n.startswith("eval_") or n in schedules}
            late |= {name: row[name] for name in new}
        self._console.row(self._logger.write(row | late, late=tuple(late)), shares)
        self._warn_of_missing_infos(row)
        self.env_steps, self.wall_time_s = counters.env_steps, counters.wall_time_s
        self._divergence.check_row(metrics, counters.env_steps)
        self.logged.refuse_taken()
        if new or not columns:
            require_free_names(self._config.run.log_info, further, self._config.algorithm)

    def _counted(self, counters: Counters, steps: float | None) -> dict[str, float | int | None]:
        """The columns that every row begins with.

        Args:
            counters: where the run stands.
            steps: of the optimizers, if they are counted on a device.
        """
        return {
            "iteration": counters.iteration,
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._frame_skip,
            "optimizer_steps": self._algorithm.optimizer_steps() if steps is None else int(steps),
            "wall_time_s": counters.wall_time_s,
            "sps": self.sps(counters),
            **self._episodes.take_row(),
        }

    def _require_own_metrics(
        self, metrics: Iterable[str], collector: Collector, also: Iterable[str] = ()
    ) -> None:
        """Refuse metrics that would stand in the place of the run's own columns.

        Args:
            metrics: their names.
            collector: that gathers at present.
            also: further columns of the run.
        """
        if self._is_new:
            columns = (*own_columns(self._config), *self.of_collector.names(collector), *also)
            require_own_metrics(metrics, columns, type(self._algorithm))

    def _warn_of_missing_infos(self, row: Mapping[str, Any]) -> None:
        """Say once, when episodes have ended, what of `log_info` none of them had."""
        if self._has_looked_for_infos or not row["episodes"]:
            return
        self._has_looked_for_infos = True
        missing = [name for name in self._config.run.log_info if row.get(name) is None]
        if missing:
            self._console.warning(
                f"log_info: the last info of no episode so far has {' or '.join(missing)}. Report "
                f"it in the info of the step that ends an episode."
            )

    def _late_columns(self, worker_restarts: int) -> dict[str, float | None]:
        """Columns of which nobody knows before they have a value.

        They join `progress.csv` when they first have one, and stay.
        """
        rates = {
            "success_rate": self._episodes.take_success_rate(),
            "eval_success_rate": self._evaluations.last.get("eval_success_rate"),
        }
        known = self._logger.columns
        found = {n: value for n, value in rates.items() if value is not None or n in known}
        if worker_restarts:
            found["worker_restarts"] = worker_restarts
        return found

    # -- checkpoints ----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain data: parts of the loop's. Waits for the device."""
        return {
            "logger": self._logger.state_dict(),
            "episodes": self._episodes.state_dict(),
            "metrics": self.metrics.state_dict(),
            "staleness": list(self.of_collector.staleness),
        }

    def load_state_dict(self, state: Mapping[str, Any], collector: Collector) -> None:
        """Go on from the loop's state, whose collector is there already."""
        self.env_steps = state["counters"]["row_env_steps"]
        self.wall_time_s = state["counters"]["row_wall_time_s"]
        self._logger.load_state_dict(state["logger"])
        self._episodes.load_state_dict(state["episodes"])
        self.metrics = MetricMeans.from_state(state["metrics"])
        self.of_collector.restore(state["staleness"], collector)
