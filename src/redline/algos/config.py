"""What configs are made of: range checks, and what every off-policy algorithm has.

Imports no torch, as nothing may that a config needs: help must answer at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from redline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OnlyIf:
    """What another setting of the run must be, so that a setting has an effect.

    Attributes:
        name: of the other one. "actions" stands for the kinds of action spaces that the
            environment has, "observations" for those of the numbers that it shows, "environments"
            for the families with settings of their own, "layers" for the kinds of layers that
            the networks have.
        values: those with which it has an effect; empty: all but `never`.
        never: those with which it has none.
        or_given: other settings; one of them that is not empty is enough, too.
    """

    name: str
    values: tuple[Any, ...] = ()
    never: tuple[Any, ...] = ()
    or_given: tuple[str, ...] = ()

    def holds(self, value: Any) -> bool:
        """Whether the other setting is so; it may be a set of kinds, of which one is enough."""
        if isinstance(value, frozenset):
            return not value.isdisjoint(self.values)
        return value in self.values if self.values else value not in self.never

    def __str__(self) -> str:
        if self.name in ("actions", "observations", "environments", "layers"):
            return f"{' or '.join(self.values)} {self.name}"
        if self.values:
            return f"{self.name}={' or '.join(map(repr, self.values))}"
        return f"{self.name} other than {' or '.join(map(repr, self.never))}"


OnlyWith: TypeAlias = Mapping[str, tuple[OnlyIf, ...]]
"""Setting -> all that must hold so that it has an effect: the `only_with` of a config's class.

One that the user changes where it has none is refused. Classes derived from it add to it."""


MOST_LAYERS = 1_000
MOST_UPDATES_PER_STEP = 10_000
MOST_EPOCHS = 10_000


def require_positive(**values: float) -> None:
    """Raise ConfigError for the first value that is not above zero, or infinite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name}={value} must be above 0 and finite. Give such a number.")


def require_not_negative(**values: float) -> None:
    """Raise ConfigError for the first value below zero, or infinite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name}={value} must be finite and not negative. Give 0 or more.")


def require_at_most(**values: tuple[float | None, float]) -> None:
    """Raise ConfigError for the first (value, limit) that is above its limit; None is not."""
    for name, (value, limit) in values.items():
        if value is not None and value > limit:
            raise ConfigError(f"{name}={value} must be at most {limit:,}. Give a smaller number.")


def require_few_layers(**values: Sequence[int] | int) -> None:
    """Raise ConfigError for the first number of layers, or widths of them, beyond `MOST_LAYERS`."""
    for name, value in values.items():
        count = value if isinstance(value, int) else len(value)
        if count > MOST_LAYERS:
            raise ConfigError(
                f"{name} asks for {count:,} layers, and there may be {MOST_LAYERS:,}: making and "
                f"checking a layer takes about a millisecond, and each update as much. Give fewer."
            )


def require_widths(**values: Sequence[int] | None) -> None:
    """Raise ConfigError for the first width of layers that is not above 0; None has no widths."""
    for name, sizes in values.items():
        for size in sizes or ():
            require_positive(**{name: size})


def require_finite(**values: float) -> None:
    """Raise ConfigError for the first value that is infinite or no number."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ConfigError(f"{name}={value} must be a finite number. Give one.")


def require_fraction(**values: float) -> None:
    """Raise ConfigError for the first value outside [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} must lie between 0 and 1, both included.")


def require_noise_color(noise_color: float) -> None:
    """Raise ConfigError for an exponent of the action noise's spectrum outside [0, 2]."""
    if not 0 <= noise_color <= 2:
        raise ConfigError(
            f"noise_color={noise_color} must lie between 0 and 2. Give 0 for white noise, 1 for "
            f"pink or 2 for red."
        )


def require_importance_bounds(rho_bar: float, c_bar: float) -> None:
    """Raise ConfigError unless 0 < c_bar <= rho_bar: Espeholt et al. 2018, section 4.1."""
    require_positive(rho_bar=rho_bar, c_bar=c_bar)
    if c_bar > rho_bar:
        raise ConfigError(
            f"c_bar={c_bar} is above rho_bar={rho_bar}: V-trace takes a correction no further "
            f"back than it would count by itself. Use a c_bar of at most {rho_bar}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyConfig:
    """What collection and replay need to know; each algorithm's config adds its own.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "her_share": (OnlyIf("replay", ("her",)),),
        "priority_alpha": (OnlyIf("prioritized", (True,)),),
        "priority_beta": (OnlyIf("prioritized", (True,)),),
    }
    move_intervals: ClassVar[Mapping[str, str]] = {"target_update_interval": "the target network"}
    """Setting that counts updates -> what moves only once in so many. A run too short for a first
    move is refused. Names that a config lacks count for nothing."""

    num_envs: int = 1
    """B, environments stepped in parallel."""
    rollout_length: int = 1
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    batch_size: int = 256
    """Transitions (or sequences) per update. A smaller batch makes more updates: per env_step
    there are replay_ratio / samples per update."""
    gamma: float = 0.99
    """Discount per env_step, in [0, 1]."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    replay_size: int = 1_000_000
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float = 256.0
    """Samples consumed by updates per sample collected: updates per iteration =
    replay_ratio * T * B / samples per update. What is left over is carried on."""
    learning_starts: int = 5_000
    """env_steps collected before the first update."""
    replay: Literal["plain", "her"] = "plain"
    """plain: transitions are learned from as they were collected.
    her: hindsight experience replay, for goal environments; in a share of each batch the goal is
    replaced by one that the same episode reached later (Andrychowicz et al. 2017)."""
    her_share: float = 0.8
    """That share, in [0, 1]: k / (k + 1) for k replaced goals beside each true one."""
    replay_storage: Literal["memory", "memmap", "device"] = "memory"
    """Where transitions lie: main memory, a file in the run directory, or the device."""
    replay_frame_stack: int | None = None
    """Frames on the first axis of an observation, newest last, of which each is stored once.
    None: as the environment is known to stack them (ALE); 1: observations are stored whole."""
    prioritized: bool = False
    """Whether samples are drawn in proportion to their TD error (Schaul et al. 2016)."""
    priority_alpha: float = 0.6
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float = 0.4
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""

    def __post_init__(self) -> None:
        require_positive(
            num_envs=self.num_envs,
            rollout_length=self.rollout_length,
            batch_size=self.batch_size,
            n_step=self.n_step,
            replay_size=self.replay_size,
            replay_ratio=self.replay_ratio,
        )
        require_fraction(
            gamma=self.gamma, priority_beta=self.priority_beta, her_share=self.her_share
        )
        require_not_negative(
            learning_starts=self.learning_starts, priority_alpha=self.priority_alpha
        )
        if self.replay_frame_stack is not None:
            require_positive(replay_frame_stack=self.replay_frame_stack)
        most = MOST_UPDATES_PER_STEP * max(self.samples_per_update, 1)
        if self.replay_ratio > most:
            raise ConfigError(
                f"replay_ratio={self.replay_ratio:g} means more than {MOST_UPDATES_PER_STEP:,} "
                f"updates for each env_step, which would never end. Give at most {most:,}: 1 "
                f"update for each is replay_ratio={self.samples_per_update:g}."
            )
        if self.n_step * self.num_envs >= self.replay_size:
            raise ConfigError(
                f"n_step={self.n_step} rewards never fit into replay_size={self.replay_size} "
                f"transitions of num_envs={self.num_envs}. Use a replay of more than "
                f"{self.n_step * self.num_envs}, or a smaller n_step."
            )
        if self.num_envs * self.rollout_length > self.replay_size:
            raise ConfigError(
                f"replay_size={self.replay_size} is smaller than one iteration: num_envs * "
                f"rollout_length = {self.num_envs} * {self.rollout_length} = "
                f"{self.num_envs * self.rollout_length}. Use a larger replay."
            )

    def expected_updates(self, total_env_steps: int) -> float:
        """Updates of a whole run: those that the iterations from learning_starts on owe."""
        iteration = self.num_envs * self.rollout_length
        iterations = -(-total_env_steps // iteration)
        before = -(-max(self.learning_starts, 1) // iteration) - 1
        collected = max(iterations - before, 0) * iteration
        return collected * self.replay_ratio / self.samples_per_update

    @property
    def samples_per_update(self) -> int:
        """Transitions that one update consumes, of which the replay ratio speaks."""
        return self.batch_size

    def sequence_settings(self) -> dict[str, Any]:
        """What replay is told of sequences, by the names in `ReplayConfig`; {}: transitions."""
        return {}
