"""Recorded episodes as arrays.

| symbol | meaning |
|---|---|
| N | steps of all episodes together, one episode after another |
| E | episodes |

Step t of an episode holds the observation o_t, the action a_t that was taken there, its reward,
and whether that action ended the episode. The observation after the last step belongs to no step:
it stands in `final_obs`. A value is bootstrapped from it where an episode was truncated.
"""

# Leaves are arrays of any kind, which no type here can name more closely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redline.errors import ConfigError
from redline.nested import Array, NestedArray, leaves, map_leaves

NAMES = ("observations", "actions", "rewards", "terminations", "truncations")
"""What every data set has, each [N, ...]."""
SUCCESSORS = ("final_observations", "next_observations")
"""What it may have besides: the last observation of each episode [E, ...], or what follows each
step [N, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedEpisodes:
    """N steps of E whole episodes; `of_arrays` makes and checks one.

    Attributes:
        obs: [N, ...] what was observed before each action.
        action: [N, ...] what was done.
        reward: [N] float32.
        terminated: [N] bool; the action led to a terminal state.
        truncated: [N] bool; the episode was cut after it. The last step of each episode is one of
            the two.
        final_obs: [E, ...] the observation after the last step of each episode; zero where it is
            not known.
        final_known: [E] bool.
    """

    obs: NestedArray
    action: NestedArray
    reward: Array
    terminated: Array
    truncated: Array
    final_obs: NestedArray
    final_known: Array

    @property
    def num_steps(self) -> int:
        """N."""
        return len(self.reward)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        fields = (getattr(self, name) for name in type(self).__dataclass_fields__)
        return sum(leaf.nbytes for field in fields for _, leaf in leaves(field))

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.final_known)

    @property
    def last_steps(self) -> Array:
        """[E] int64, the step with which each episode ends."""
        return np.flatnonzero(self.terminated | self.truncated)

    @property
    def returns(self) -> Array:
        """[E] float64, the sum of each episode's rewards."""
        first = np.concatenate([[0], self.last_steps[:-1] + 1])
        return np.add.reduceat(self.reward.astype(np.float64), first)

    def sha256(self) -> str:
        """A fingerprint of every number: the same data, in whatever file, has the same one."""
        digest = hashlib.sha256()
        for kind in ("obs", "action", "final_obs"):
            for name, leaf in leaves(getattr(self, kind)):
                digest.update(f"{kind}.{name}:{leaf.dtype}{leaf.shape}".encode())
                digest.update(np.ascontiguousarray(leaf).data)
        for name in ("reward", "terminated", "truncated", "final_known"):
            digest.update(np.ascontiguousarray(getattr(self, name)).data)
        return digest.hexdigest()

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any], source: str) -> RecordedEpisodes:
        """From arrays by the names that Minari gives them.

        A data set whose last step ends no episode is cut there, as if it were truncated.

        Args:
            arrays: `NAMES`, and perhaps one of `SUCCESSORS`. Observations and actions may be
                nested mappings or tuples of arrays.
            source: where they come from, for messages.

        Raises:
            ConfigError: if one is missing, or they do not fit together.
        """
        if missing := [name for name in NAMES if name not in arrays]:
            raise ConfigError(
                f"{source} has no {', '.join(missing)}. Recorded episodes are arrays with a row "
                f"for each step: {', '.join(NAMES)}; and final_observations or next_observations "
                f"where they are known."
            )
        reward = _numbers(arrays["rewards"], source)
        steps = len(reward)
        if steps == 0:
            raise ConfigError(f"{source} holds no steps: its arrays are empty. Record some first.")
        terminated, truncated = (_flags(arrays[n], n, source) for n in NAMES[3:])
        obs, action = (_tree(arrays[name], f"{source}: {name}") for name in NAMES[:2])
        _require_rows(steps, source, obs=obs, action=action)
        _require_rows(steps, source, terminations=terminated, truncations=truncated)
        if not (terminated[-1] or truncated[-1]):
            truncated = truncated.copy()
            truncated[-1] = True
        last = np.flatnonzero(terminated | truncated)
        final_obs, known = _final(arrays, obs, last, source)
        return cls(
            obs=obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated & ~terminated,
            final_obs=final_obs,
            final_known=known,
        )

    @classmethod
    def joined(cls, parts: Sequence[RecordedEpisodes]) -> RecordedEpisodes:
        """The episodes of several data sets of the same spaces, in this order."""

        def together(name: str) -> Any:
            first, *rest = (getattr(part, name) for part in parts)
            return map_leaves(lambda *leaf: np.concatenate(leaf), first, *rest)

        return cls(**{name: together(name) for name in cls.__dataclass_fields__})

    def with_successors(self, *, terminal: bool = False) -> RecordedEpisodes:
        """Only steps of which it is known what they led to.

        A step that truncated its episode without a known last observation is left out. The step
        before it then truncates the episode, with the observation of the one left out as the last.

        Args:
            terminal: whether what a terminal step led to must be known as well. No value follows
                it, so that most learn from it either way (see `with_stand_ins`); not where it
                counts as a goal achieved.
        """
        last = self.last_steps
        unknown = ~self.final_known if terminal else self.truncated[last] & ~self.final_known
        if not unknown.any():
            return self
        dropped = np.zeros(self.num_steps, np.bool_)
        dropped[last[unknown]] = True
        first = np.concatenate([[0], last[:-1] + 1])
        remains = ~(unknown & (first == last))  # episodes of more than the step left out
        truncated = self.truncated.copy()
        truncated[last[unknown & remains] - 1] = True
        ends = np.where(unknown, last, 0)

        def final(known: Array, obs: Array) -> Array:
            replaced = known.copy()
            replaced[unknown] = obs[ends][unknown]
            return replaced[remains]

        def kept(leaf: Array) -> Array:
            return leaf[~dropped]

        return RecordedEpisodes(
            obs=map_leaves(kept, self.obs),
            action=map_leaves(kept, self.action),
            reward=kept(self.reward),
            terminated=kept(self.terminated),
            truncated=kept(truncated),
            final_obs=map_leaves(final, self.final_obs, self.obs),
            final_known=(self.final_known | unknown)[remains],
        )

    def with_stand_ins(self, frames: Mapping[str, int]) -> RecordedEpisodes:
        """Let what is like it stand where nobody knows what a terminal step led to.

        No value follows it. But batch normalization sees it, and a stack must go on from the one
        before: it is the last observation of which is known, its newest frame once more.

        Args:
            frames: dotted name of each observation ("" of a bare one) -> frames of its stack.
        """
        unknown = ~self.final_known
        if not unknown.any():
            return self
        last = self.last_steps[unknown]

        def filled(final: Any, obs: Any, name: str = "") -> Any:
            if hasattr(obs, "keys"):
                inside = {key: f"{name}.{key}" if name else str(key) for key in obs}
                return {key: filled(final[key], obs[key], inside[key]) for key in obs}
            before, found = obs[last], final.copy()
            if (stack := frames[name]) > 1:
                width = before.shape[1] // stack
                before = np.concatenate([before[:, width:], before[:, -width:]], axis=1)
            found[unknown] = before
            return found

        return dataclasses.replace(self, final_obs=filled(self.final_obs, self.obs))

    def to_arrays(self) -> dict[str, Any]:
        """What `of_arrays` takes; final_observations only if all are known."""
        values = (self.obs, self.action, self.reward, self.terminated, self.truncated)
        arrays = dict(zip(NAMES, values, strict=True))
        return arrays | ({"final_observations": self.final_obs} if self.final_known.all() else {})


def _final(
    arrays: Mapping[str, Any], obs: NestedArray, last: Array, source: str
) -> tuple[NestedArray, Array]:
    """The last observations [E, ...], and which of them are known."""
    given = [name for name in SUCCESSORS if name in arrays]
    if not given:
        zeros = map_leaves(lambda leaf: np.zeros((len(last), *leaf.shape[1:]), leaf.dtype), obs)
        return zeros, np.zeros(len(last), np.bool_)
    found = _tree(arrays[given[0]], f"{source}: {given[0]}")
    rows = len(last) if given[0] == "final_observations" else len(arrays["rewards"])
    if given[0] == "final_observations":
        why = f"one for each of the {rows} episodes; one that is under way at the end counts"
        _require_rows(rows, source, why, **{given[0]: found})
    else:
        _require_rows(rows, source, **{given[0]: found})
    mine, other = ([name for name, _ in leaves(tree)] for tree in (obs, found))
    if mine != other:
        raise ConfigError(
            f"{source}: observations consist of {mine}, and {given[0]} of {other}. Both must have "
            f"the same parts."
        )
    if given[0] == "next_observations":
        found = map_leaves(lambda leaf: leaf[last], found)
    return found, np.ones(len(last), np.bool_)


def _tree(value: Any, name: str) -> Any:
    """Arrays in mappings; a tuple becomes a mapping with the keys "0", "1", ..."""
    if isinstance(value, Mapping):
        return {str(key): _tree(each, f"{name} {key!r}") for key, each in value.items()}
    if isinstance(value, tuple):
        return {str(index): _tree(each, f"{name} {index}") for index, each in enumerate(value)}
    return _array(value, name)


def _array(value: Any, name: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ConfigError(f"{name} is no array ({error}). Give rows of one shape.") from error
    except (TypeError, RuntimeError) as error:  # a tensor on a device, or one with gradients
        raise ConfigError(
            f"{name} is no array ({error}). Give a numpy array; a tensor as "
            f"tensor.detach().cpu().numpy()."
        ) from error


def _is_column(array: Array) -> bool:
    """Whether there is one value in each row."""
    return array.ndim > 0 and array.size == len(array)


def _numbers(value: Any, source: str) -> Array:
    """[N] float32 rewards."""
    reward = _array(value, f"{source}: rewards")
    if reward.dtype.kind not in "buif" or not _is_column(reward):
        raise ConfigError(
            f"{source}: rewards is {reward.dtype} of shape {reward.shape}, and must be one number "
            f"for each step."
        )
    reward = reward.reshape(-1).astype(np.float32)
    if not np.isfinite(reward).all():
        step = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise ConfigError(f"{source}: the reward of step {step} is {reward[step]}. Remove it.")
    return reward


def _flags(value: Any, name: str, source: str) -> Array:
    """[N] bool."""
    flags = _array(value, f"{source}: {name}")
    is_flag = flags.dtype.kind in "bui" and bool(((flags == 0) | (flags == 1)).all())
    if not is_flag or not _is_column(flags):
        raise ConfigError(
            f"{source}: {name} is {flags.dtype} of shape {flags.shape}, and must be one truth for "
            f"each step."
        )
    return flags.reshape(-1).astype(np.bool_)


def _require_rows(
    rows: int, source: str, why: str = "as rewards has one for each step", **trees: Any
) -> None:
    for kind, tree in trees.items():
        for name, leaf in leaves(tree):
            if leaf.ndim == 0 or len(leaf) != rows:
                label = f"{kind}.{name}" if name else kind
                raise ConfigError(
                    f"{source}: {label} has shape {leaf.shape}, and {rows} rows were expected, "
                    f"{why}."
                )
