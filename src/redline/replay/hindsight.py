"""Hindsight experience replay: transitions learned from as if another goal had been meant.

Andrychowicz et al. 2017, arXiv:1707.01495, strategy "future". A goal environment observes a Dict
with the keys "observation", "achieved_goal" and "desired_goal", and its reward is a function of the
two goals alone. In a share of every batch the desired goal is replaced by a goal that the same
episode achieved later, and the reward is computed again. What was collected is never changed.

| symbol | meaning |
|---|---|
| i | row that was drawn, at time t of environment b |
| e | last row of its episode, or the newest row while the episode goes on |
| f | row drawn from i .. e, each equally likely |

The new goal is what row f achieved: "achieved_goal" of its successor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.data import Array
from redline.envs.spaces.layout import offset_of
from redline.errors import ConfigError
from redline.plain_text import shortened
from redline.replay.buffer import Replay
from redline.replay.config import ReplayConfig
from redline.replay.links import ENDED
from redline.replay.spec import ReplaySpec, dotted

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_ONE_AT_A_TIME = (IndexError, TypeError, ValueError)  # what may be raised where several are given
_OPEN = np.iinfo(np.int64).max  # the episode of this row has not ended

GoalFunction: TypeAlias = Callable[[Array, Array, Any], Any]
"""(achieved [N, ...], desired [N, ...], info) -> [N], as Gymnasium-Robotics defines it."""


class HindsightReplay(Replay):
    """A replay of single transitions that replaces goals when it draws.

    Args:
        config: of plain, uniform one-step transitions.
        spec: with the observations "achieved_goal" and "desired_goal".
        env: a goal environment of the same kind; only `compute_reward` and, if it has one,
            `compute_terminated` are called. Where attributes of the training environments are
            set, this one is to get them too.
        share: of a batch whose goals are replaced, in [0, 1]: k / (k + 1) for k goals beside the
            one that was meant.

    Attributes:
        goal_env: as it was given.

    Raises:
        ConfigError: if the environment has no goals, or `config` asks for what cannot be
            combined with them.
    """

    def __init__(
        self,
        config: ReplayConfig,
        spec: ReplaySpec,
        env: gymnasium.Env[Any, Any],
        *,
        share: float = 0.8,
    ) -> None:
        self.goal_env = env
        self._reward, self._terminated = goal_functions(env)
        self._require_plain(config)
        super().__init__(config, spec)
        _require_goal_arrays(spec)
        if not {(ACHIEVED,), (DESIRED,)} <= self._paired:
            raise ConfigError(
                "replay='her' stores each goal beside its successor, and these goals are larger "
                "than 4096 bytes. Give the environment goals that are vectors."
            )
        self._share = share
        given = cast(spaces.Dict, env.observation_space)
        self._starts = tuple(offset_of(given[key]) for key in (ACHIEVED, DESIRED))
        self._end = np.full((self.ring_rows, self.num_envs), _OPEN)
        self._start = np.zeros(self.num_envs, np.int64)  # first row of the present episode
        self._known = 0  # rows below it have been looked at

    @staticmethod
    def _require_plain(config: ReplayConfig) -> None:
        reasons = {
            "n_step above 1": config.n_step > 1,
            "prioritized": config.prioritized,
            "sequences": config.is_sequential,
            "replay_storage='device'": config.storage == "device" and config.device != "cpu",
            "next_obs=False": not config.next_obs,
        }
        wrong = [name for name, is_so in reasons.items() if is_so]
        if wrong:
            raise ConfigError(
                f"replay='her' computes the reward of one transition anew, in main memory, and "
                f"does not go with {', '.join(wrong)}. Leave that out, or use replay='plain'."
            )

    def sample(
        self,
        batch_size: int,
        rng: np.random.Generator | torch.Generator,
        beta: float | Tensor = 1.0,
        out: Any = None,
    ) -> Any:
        """Draw a batch with replacement; arguments and result as for `Replay.sample`."""
        batch = super().sample(batch_size, rng, beta, out)
        replaced = self._uniform(batch_size, rng).numpy() < self._share
        later = self._uniform(batch_size, rng).numpy()[replaced]
        at = np.flatnonzero(replaced)
        if len(at):
            self._replace_goals(batch, at, self._future_rows(batch["index"].numpy()[at], later))
        return batch

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._forget_ends()

    def load(self, directory: Any, *, of_another_run: bool = False) -> None:
        """As `Replay.load`; where episodes end is read from the rows."""
        super().load(directory, of_another_run=of_another_run)
        self._forget_ends()

    def _replace_goals(self, batch: Any, at: Array, future: Array) -> None:
        """Give rows `at` of a batch the goals that the rows `future` of the ring achieved."""
        achieved_later = self._arena.host(f"next_obs/{ACHIEVED}")
        # In the environment's own numbers: replay counts those of a Discrete goal from 0.
        goal = achieved_later[future % len(achieved_later)] + self._starts[0]
        achieved = batch["next_obs"][ACHIEVED].numpy()[at] + self._starts[0]
        for name in ("obs", "next_obs"):
            batch[name][DESIRED].numpy()[at] = goal - self._starts[1]
        batch["reward"].numpy()[at] = _of_each_row(self._reward, achieved, goal)
        if self._terminated is not None:
            ends = _of_each_row(self._terminated, achieved, goal).astype(bool)
            discount = np.where(ends, np.float32(0.0), np.float32(self.config.gamma))
            batch["discount"].numpy()[at] = discount

    def _future_rows(self, index: Array, uniform: Array) -> Array:
        """[n] a row between each of [n] rows and the end of its episode, by [n] numbers in [0, 1).

        Rows are numbered t * B + b.
        """
        self._find_ends()
        t, b = np.divmod(index, self.num_envs)
        end = np.minimum(self._end[t % self.ring_rows, b], self.head - 1)
        later = t + (uniform * (end - t + 1)).astype(np.int64)
        return later * self.num_envs + b

    def _find_ends(self) -> None:
        """Look at the rows written since the last time."""
        if self._known == self.head:
            return
        oldest = max(self.head - self.ring_rows, 0)
        # One row more than the new ones: a break in the chain marks the row before it afterwards.
        rows = np.arange(max(self._known - 1, oldest), self.head)
        self._end[rows[rows >= self._known] % self.ring_rows] = _OPEN
        flags = self._arena.host("flags").reshape(self.ring_rows, self.num_envs)
        for i, b in np.argwhere((flags[rows % self.ring_rows] & ENDED) != 0):
            last = int(rows[i])
            episode = np.arange(max(int(self._start[b]), oldest), last + 1)
            self._end[episode % self.ring_rows, b] = last
            self._start[b] = last + 1
        self._known = self.head

    def _forget_ends(self) -> None:
        self._end.fill(_OPEN)
        self._start.fill(0)
        self._known = 0


def _require_goal_arrays(spec: ReplaySpec) -> None:
    """Refuse observations whose two goals are no arrays of their own.

    Raises:
        ConfigError: with the parts that there are.
    """
    if {(ACHIEVED,), (DESIRED,)} <= set(spec.obs):
        return
    parts = ", ".join(sorted(dotted(path) for path in spec.obs))
    raise ConfigError(
        f"replay='her' needs {ACHIEVED!r} and {DESIRED!r} as arrays of the observation, and its "
        f"parts are {parts}. Let each goal be one array, not a Dict. Give an action mask in the "
        f'observation, as "action_mask": one in info puts the observation below "obs".'
    )


def _of_each_row(function: GoalFunction, achieved: Array, goal: Array) -> Array:
    """[n] what a goal function says of [n, ...] goals, also if it takes only one at a time."""
    try:
        found = np.asarray(function(achieved, goal, {}))
    except _ONE_AT_A_TIME:
        found = None
    if found is not None and found.shape == (len(goal),):
        return found
    each = [function(a, g, {}) for a, g in zip(achieved, goal, strict=True)]
    return np.array(each).reshape(len(goal))


def require_own_rewards(env: gymnasium.Env[Any, Any], steps: int = 5) -> None:
    """Refuse an environment whose steps pay something else than `compute_reward` says.

    Replaced goals would then be paid on another scale than the others. So is one whose goal
    functions need more than the goals, which would fail at the first update.

    Args:
        env: of its own; it is reset, and steps at random.
        steps: how many to compare.

    Raises:
        ConfigError: with both rewards, or what a goal function raised.
    """
    compute, _ = goal_functions(env)
    env.action_space.seed(0)
    first, _ = env.reset(seed=0)
    seen = [first]
    for _ in range(steps):
        obs, paid, terminated, truncated, info = env.step(env.action_space.sample())
        said = float(compute(obs[ACHIEVED], obs[DESIRED], info))
        if not np.isclose(float(paid), said, rtol=1e-3, atol=1e-5):
            raise ConfigError(
                f"replay='her' needs rewards of the goals alone: {env} paid {float(paid):g} where "
                f"compute_reward says {said:g}. Take the wrapper off that changes rewards, or "
                f"change compute_reward as well."
            )
        seen.append(obs)
        if terminated or truncated:
            env.reset()
    _require_goals_alone(env, seen)


def _require_goals_alone(env: gymnasium.Env[Any, Any], seen: list[Any]) -> None:
    """Call the goal functions as `sample` does, on these observations."""
    achieved, goal = (np.array([obs[key] for obs in seen]) for key in (ACHIEVED, DESIRED))
    names = ("compute_reward", "compute_terminated")
    for name, function in zip(names, goal_functions(env), strict=True):
        try:
            if function is not None:
                _of_each_row(function, achieved, goal)
        except Exception as error:
            raise ConfigError(
                f"replay='her' asks {name} of {env} about other goals, with an empty info, and it "
                f"raised {type(error).__name__}: {shortened(error)}. Let it compute one number "
                f"from the two goals alone, or use replay='plain'."
            ) from error


def goal_functions(env: gymnasium.Env[Any, Any]) -> tuple[GoalFunction, GoalFunction | None]:
    """`compute_reward` and `compute_terminated` of a goal environment; the latter may be missing.

    Without it a transition ends its episode whenever it did when it was collected.

    Raises:
        ConfigError: if the environment is none; says what it lacks.
    """
    space, inner = env.observation_space, env.unwrapped
    keys = set(space.spaces) if isinstance(space, spaces.Dict) else set()
    missing = [f"the observation {key!r}" for key in (ACHIEVED, DESIRED) if key not in keys]
    if not callable(getattr(inner, "compute_reward", None)):
        missing.append("compute_reward(achieved_goal, desired_goal, info)")
    if missing:
        raise ConfigError(
            f"replay='her' needs a goal environment, and {type(inner).__name__} lacks "
            f"{' and '.join(missing)}. Add it (as Gymnasium-Robotics defines it), or use "
            f"replay='plain'."
        )
    terminated = getattr(inner, "compute_terminated", None)
    return inner.compute_reward, terminated if callable(terminated) else None  # type: ignore[attr-defined]
