"""What `redline tune` searches: a range or choices for each setting."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redline.errors import ConfigError
from redline.plain_text import shortened, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Numbers between two bounds, which belong to it.

    Attributes:
        low, high: bounds; whole numbers are drawn where both are whole.
        log: draw the logarithm evenly.
    """

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def checked_values(self) -> tuple[tuple[Any, Any], ...]:
        """Both bounds, each with a value near it that a trial may draw.

        A real number is hardly ever drawn at the bound itself, which may be excluded, as 0 is from
        learning rates.
        """
        if self.whole:
            return (self.low, self.low), (self.high, self.high)
        inside = (self.high - self.low) * 1e-3
        return (self.low, self.low + inside), (self.high, self.high - inside)

    def draw(self, draws: random.Random) -> Any:
        """A value, as a trial may have it."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.whole and not self.log:
            return draws.randint(int(low), int(high))
        value = draws.uniform(low, high)
        value = math.exp(value) if self.log else value
        return round(value) if self.whole else value

    def suggest(self, trial: Any, name: str) -> Any:
        """A value for an Optuna trial."""
        if self.whole:
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    @property
    def checked_values(self) -> tuple[tuple[Any, Any], ...]:
        """Each one, twice, since trials draw it as it is: see `Span.checked_values`."""
        return tuple((value, value) for value in self.values)

    def draw(self, draws: random.Random) -> Any:
        """A value, as a trial may have it."""
        return draws.choice(self.values)

    def suggest(self, trial: Any, name: str) -> Any:
        """A value for an Optuna trial."""
        return trial.suggest_categorical(name, self.values)


_LARGEST = 1e300
"""Of a bound, so that the distance between two is a finite number."""

SearchSpace = Mapping[str, Span | Choice]

_RATE = Span(low=1e-5, high=1e-2, log=True)
_DEFAULTS: dict[str, Span | Choice] = {
    "learning_rate": _RATE,
    "gamma": Choice((0.9, 0.95, 0.98, 0.99, 0.995, 0.999)),
    # of what learns from rollouts
    "gae_lambda": Choice((0.8, 0.9, 0.95, 0.98, 1.0)),
    "entropy_coef": Span(low=1e-8, high=0.1, log=True),
    "clip_range": Choice((0.1, 0.2, 0.3)),
    "num_epochs": Choice((3, 5, 10, 20)),
    # of what learns from replay
    "batch_size": Choice((32, 64, 128, 256)),
    "tau": Choice((0.001, 0.005, 0.01, 0.02)),
    "target_update_interval": Choice((50, 100, 250, 500, 1000)),
    "exploration_noise": Span(low=0.05, high=0.3),
}


def default_space(config: Any) -> dict[str, Span | Choice]:
    """What is searched where the file says nothing.

    Args:
        config: the algorithm's hyperparameters, as every trial starts with them.
    """
    own = {field.name for field in dataclasses.fields(config)}
    own -= _not_searched_of_target(own, config)
    return {name: span for name, span in _DEFAULTS.items() if name in own}


def updates_kept(config: Any, space: SearchSpace, base: Mapping[str, Any]) -> dict[str, float]:
    """What a default space keeps in proportion to the batch size: setting -> its multiple of that.

    Updates per env_step are replay_ratio / batch_size. With a ratio that stays, a search among
    batch sizes is one among numbers of updates: the smallest wins for having the most.

    Args:
        config: the algorithm's hyperparameters, as every trial starts with them.
        space: what is searched.
        base: settings that the caller gave for every trial.
    """
    name = "replay_ratio"
    if "batch_size" not in space or name in base or not hasattr(config, name):
        return {}
    return {name: config.replay_ratio / config.batch_size}


def _not_searched_of_target(own: set[str], config: Any) -> set[str]:
    """Which of the two settings that say how fast a target network follows is not searched.

    Targets either move a little often, and `tau` says how far, or are copied now and then, and
    the interval says when. Drawn together, they make targets that hardly ever move.
    """
    interval = "target_update_interval"
    if interval not in own:
        return set()
    if interval not in getattr(config, "move_intervals", {interval}):  # CrossQ has no target
        return {"tau", interval}
    return {interval} if getattr(config, "tau", 1.0) < 1.0 else {"tau"}


def space_from(data: Mapping[str, Any], mistakes: list[str]) -> dict[str, Span | Choice]:
    """The space that a file's `search` describes; what is wrong is added to `mistakes`.

    Args:
        data: setting -> list of choices, or {low, high, log}.
        mistakes: one sentence each.
    """
    found: dict[str, Span | Choice] = {}
    for name, said in data.items():
        try:
            found[name] = _one(name, said)
        except ConfigError as error:
            mistakes.append(str(error))
    return found


def _one(name: str, said: Any) -> Span | Choice:
    if isinstance(said, Sequence) and not isinstance(said, str) and len(said) > 0:
        return Choice(tuple(map(_as_kept, said)))
    if not isinstance(said, Mapping) or not {"low", "high"} <= set(said) <= {"low", "high", "log"}:
        raise ConfigError(
            f"search: {shortened(name)}={shown(said)} must be a list of choices, or low and high "
            f"with log or without, such as {{low: 0.00001, high: 0.01, log: true}}"
        )
    low, high, log = said["low"], said["high"], bool(said.get("log", False))
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not -_LARGEST <= low < high <= _LARGEST or (log and low <= 0):
        raise ConfigError(
            f"search: {name} from {shown(low)} to {shown(high)} is no range: low must be below "
            f"high, and both finite" + (", and above 0 where log is true" if log else "")
        )
    return Span(low=low, high=high, log=log)


def _as_kept(value: Any) -> Any:
    """A choice as a study gives it back, which keeps it as JSON: with lists for tuples."""
    if isinstance(value, Mapping):
        return {key: _as_kept(each) for key, each in value.items()}
    return [_as_kept(each) for each in value] if isinstance(value, (list, tuple)) else value
