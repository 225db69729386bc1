"""Whether a run still computes with finite numbers, and what is said where it does not.

Nothing is read back from a device for it but what is read anyway: the metrics of a row, and
the state that is about to be saved. Parameters are looked at only then, and once something is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from redline.algos.algorithm import OffPolicyAlgorithm, OnPolicyAlgorithm
from redline.errors import DivergenceError
from redline.replay.priorities import UnsoundPriorityError
from redline.train.checkpoint.store import CheckpointStore
from redline.train.progress.console import Console
from redline.train.settings import RunConfig


class DivergenceCheck:
    """Stops a run, or warns once, when a metric or a parameter is no longer a finite number.

    A parameter that is infinite before the first update is meant so, as the log of a temperature
    of 0 or a mask among a network's buffers: it is left out.

    Args:
        config: all settings of the run.
        algorithm: as it is made, before it learns.
        store: keeps checkpoints; the message names the newest.
        console: shows the warning.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: OnPolicyAlgorithm | OffPolicyAlgorithm,
        store: CheckpointStore,
        console: Console,
    ) -> None:
        self._config, self._algorithm = config, algorithm
        self._store, self._console = store, console
        self._action: Literal["stop", "warn"] = config.run.on_divergence
        self._is_over = False  # it has warned
        self._infinite = frozenset(
            name for name, leaf in self._parameters(algorithm.state_dict()) if not _is_finite(leaf)
        )

    def check_row(self, metrics: Mapping[str, float], env_steps: int) -> None:
        """Look at what a row has of the updates.

        Args:
            metrics: name -> number, those that the algorithm gave.
            env_steps: where the run stands.

        Raises:
            DivergenceError: if one is not finite, and the run is to stop then.
        """
        if not self._is_over and (metric := _first_metric(metrics)):
            self._found(metric, self._first_parameter(), env_steps)

    def check_state(
        self, state: Mapping[str, Any], totals: Mapping[str, Any], env_steps: int
    ) -> None:
        """Look at what is about to be saved, so that a broken state never replaces a good one.

        Args:
            state: the algorithm's.
            totals: sums of the metrics since the last row.
            env_steps: where the run stands.

        Raises:
            DivergenceError: as for `check_row`.
        """
        if self._is_over:
            return
        metric, parameter = _first_metric(totals), self._first_parameter(state)
        if metric or parameter:
            self._found(metric, parameter, env_steps)

    def explain(
        self, error: Exception, totals: Callable[[], Mapping[str, float]], env_steps: int
    ) -> None:
        """Say so if an error comes from numbers that are not finite, else do nothing.

        An environment refuses actions that are no numbers, and replay such priorities, but
        neither knows of their cause.

        Args:
            error: what came out of an iteration.
            totals: reads the sums of the metrics since the last row. With on_divergence="warn"
                a metric may be NaN, and says nothing of an error.
            env_steps: where the run stands.

        Raises:
            DivergenceError: from `error`, also where the run would only have warned.
        """
        if isinstance(error, DivergenceError):
            return
        is_priority = isinstance(error, UnsoundPriorityError)
        metric = _first_metric(totals()) if is_priority or self._action == "stop" else None
        if is_priority and metric is None:
            metric = "a priority for replay is NaN or infinite"
        parameter = self._first_parameter()
        if metric or parameter:
            text = self._message(metric, parameter, env_steps)
            ended = "" if is_priority else f" It ended in a {type(error).__name__}."
            raise DivergenceError(f"{text}{ended}") from error

    def _found(self, metric: str | None, parameter: str | None, env_steps: int) -> None:
        text = self._message(metric, parameter, env_steps)
        if self._action == "stop":
            raise DivergenceError(text)
        self._is_over = True
        self._console.warning(f"{text} The run goes on, as on_divergence='warn' says.")

    def _first_parameter(self, state: Mapping[str, Any] | None = None) -> str | None:
        """The first one that is not finite, and what it holds."""
        state = self._algorithm.state_dict() if state is None else state
        for name, leaf in self._parameters(state):
            if name not in self._infinite and not _is_finite(leaf):
                strange = leaf[~leaf.isfinite()].flatten()[0].item() if leaf.dim() else leaf.item()
                return f"the parameter {name} holds {strange}"
        return None

    def _parameters(self, state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
        """Name -> what gradients change, as the algorithm saves it."""
        for part in self._algorithm.saved_parameters:
            yield from _floats(part, state.get(part))

    def _message(self, metric: str | None, parameter: str | None, env_steps: int) -> str:
        if metric and parameter:
            what = f"{metric}, and {parameter}"
        elif metric:
            what = f"{metric}; all parameters are finite still"
        else:
            what = str(parameter)
        earlier = self._store.list()
        kept = (
            f"The newest checkpoint is from before: {earlier[-1]}."
            if earlier
            else "No checkpoint had been written before."
        )
        name = self._config.algorithm
        return f"{name} diverged: at {env_steps:,} env_steps {what}. {kept} {self._advice()}"

    def _advice(self) -> str:
        """What usually helps, of the settings that this run has."""
        algo = self._config.algo
        helps = []
        if (rate := getattr(algo, "learning_rate", None)) is not None:
            helps.append(f"a smaller learning_rate (it is {rate:g})")
        if (norm := getattr(algo, "max_grad_norm", None)) is not None:
            helps.append(
                f"a smaller max_grad_norm (it is {norm:g})"
                if norm > 0.0
                else "a max_grad_norm, such as 0.5 (gradients are not clipped)"
            )
        if getattr(algo, "scale_reward", None) is False:
            helps.append("scale_reward")
        elif not hasattr(algo, "scale_reward"):
            helps.append("rewards of a size near 1")
        if not self._config.policy.normalize_obs:
            helps.append("normalize_obs")
        return f"What usually helps: {', '.join(helps)}."


def _first_metric(metrics: Mapping[str, Any]) -> str | None:
    for name, value in metrics.items():
        number = float(value)
        if not math.isfinite(number):
            return f"the metric {name} is {number}"
    return None


def _is_finite(leaf: Tensor) -> bool:
    return bool(torch.isfinite(leaf).all())


def _floats(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of floats in a tree, each with its path."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _floats(f"{name}.{key}", inner)
