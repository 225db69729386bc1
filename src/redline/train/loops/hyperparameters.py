"""Hyperparameters that change while a run goes on: by schedules, or by callbacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from redline.algos.config import require_finite, require_not_negative
from redline.errors import ConfigError
from redline.train.loops.schedules import are_constant, scheduled_hyperparameters
from redline.train.settings import RunConfig

__all__ = ["Hyperparameters"]


class Hyperparameters:
    """What schedules say, and what callbacks have set in their place.

    Args:
        config: of the run.

    Attributes:
        last: what the algorithm was given last; empty before the first update.
        overrides: what callbacks have set.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._are_constant = are_constant(config.algo)
        self._are_new = False  # what callbacks have set, since the algorithm was given it
        self.last: dict[str, float] = {}
        self.overrides: dict[str, float] = {}

    def at(self, env_steps: int) -> dict[str, float]:
        """Their values after so many env_steps."""
        return self.scheduled(env_steps) | self.overrides

    def scheduled(self, env_steps: int) -> dict[str, float]:
        """What the schedules alone say after so many env_steps."""
        total = self._config.run.total_env_steps
        return scheduled_hyperparameters(self._config.algo, env_steps, total)

    def changed(self, env_steps: int) -> dict[str, float] | None:
        """What the algorithm is to have from now on; None where it has that already."""
        if self.last and self._are_constant and not self._are_new:
            return None
        self._are_new = False
        self.last = self.at(env_steps)
        return self.last

    def set(self, name: str, value: float) -> None:
        """Set one in place of its schedule, from the next update on.

        Raises:
            ConfigError: if it cannot be changed while the run goes on, or is not a number that
                it may have.
        """
        known = self.scheduled(0)
        if name not in known:
            *first, last = sorted(known) or ["nothing"]
            can = f"{', '.join(first)} and {last}" if first else last
            raise ConfigError(
                f"{name} cannot be changed while {self._config.algorithm} runs; "
                f"{can} can. To change another setting, stop "
                f"the run and go on with: redline train --resume RUN --set {name}={value}"
            )
        value = float(value)
        require_finite(**{name: value})
        require_not_negative(**{name: value})
        self.overrides[name] = value
        self._are_new = True  # what a row shows is what the last update had

    def follow(self, overrides: Mapping[str, float]) -> None:
        """Take over what callbacks of another rank have set."""
        if overrides != self.overrides:
            self.overrides, self._are_new = dict(overrides), True

    def give_up(self, names: Collection[str]) -> list[str]:
        """Follow the settings again, not what callbacks had set before.

        Args:
            names: settings that were changed since; "learning_rate_schedule" counts, too.

        Returns:
            One sentence for each that a callback had set.
        """
        given_up = {
            name: value
            for name, value in self.overrides.items()
            if name in names or f"{name}_schedule" in names
        }
        for name in given_up:
            del self.overrides[name]
        return [
            f"{name}: a callback had set it to {value:g}; it follows the changed settings now"
            for name, value in given_up.items()
        ]
