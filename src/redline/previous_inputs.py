"""The action before and its reward as parts of an observation: their names and their form.

| key | shape | holds |
|---|---|---|
| previous_action | [K] float32 | the action that led here; zeros at the start of an episode |
| previous_reward | [1] float32 | its reward, as the learner sees it; 0 at the start of an episode |

An action becomes one vector: Discrete and MultiDiscrete one-hot, MultiBinary and Box as the
numbers that the environment received, the parts of a Dict or Tuple side by side. An observation
that is no Dict lies under the key "observed". Environments write these parts
(`envs/previous_inputs.py`), networks read them (`models/previous_inputs.py`). Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from redline.errors import SpaceError

ACTION, REWARD, PLAIN = "previous_action", "previous_reward", "observed"


class PreviousSpace(spaces.Dict):
    """A space that `with_previous` made: an environment may use the names of its entries, too."""


def with_previous(observation_space: Space[Any], action_space: Space[Any]) -> PreviousSpace:
    """The observation space with the action before and its reward beside.

    Args:
        observation_space: as carried; a Dict keeps its entries where they are.
        action_space: as carried.

    Raises:
        SpaceError: if the observation has entries of these names itself.
    """
    nested = isinstance(observation_space, spaces.Dict)
    entries = dict(observation_space.spaces) if nested else {PLAIN: observation_space}
    taken = sorted({ACTION, REWARD, PLAIN} & set(entries)) if nested else []
    if taken:
        raise SpaceError(
            f"the observation has entries {taken} of its own, where observe_previous puts what it "
            f"adds. Rename them, or leave observe_previous out."
        )
    size = ActionColumns(action_space).size
    added = {
        ACTION: spaces.Box(-np.inf, np.inf, (size,), np.float32),
        REWARD: spaces.Box(-np.inf, np.inf, (1,), np.float32),
    }
    return PreviousSpace({**entries, **added})


def has_previous(observation_space: Space[Any]) -> bool:
    """Whether `with_previous` made this space."""
    return isinstance(observation_space, PreviousSpace)


def without_previous(observation_space: Space[Any]) -> Space[Any]:
    """The space that `with_previous` was given, or what was left of it; another one as it is."""
    if not isinstance(observation_space, PreviousSpace):
        return observation_space
    rest = {k: sub for k, sub in observation_space.spaces.items() if k not in (ACTION, REWARD)}
    return rest[PLAIN] if PLAIN in rest else spaces.Dict(rest)


class ActionColumns:
    """Writes actions [B, ...] into rows of one vector each.

    Arrays and tensors are indexed and compared alike, so one rule serves both.

    Args:
        action_space: as carried: zero-based, a Tuple as a Dict.
        place: what puts the two small arrays of each part where the actions are.

    Attributes:
        size: K, length of a vector.
    """

    def __init__(
        self, action_space: Space[Any], place: Callable[[Any], Any] = lambda array: array
    ) -> None:
        self._parts: list[tuple[tuple[str, ...], slice, Any, Any]] = []
        self.size = 0
        for path, leaf in _leaves(action_space):
            sizes = _choices(leaf)
            if sizes is None:
                width, component, choice = int(np.prod(leaf.shape or ())), None, None
            else:
                width = int(sizes.sum())
                component = place(np.repeat(np.arange(len(sizes)), sizes))
                choice = place(np.concatenate([np.arange(size) for size in sizes]))
            columns = slice(self.size, self.size + width)
            self._parts.append((path, columns, component, choice))
            self.size += width

    def write(self, target: Any, action: Any) -> None:
        """Write actions.

        Args:
            target: [B, K] float32.
            action: [B, ...] in the action space's structure, on the same device.
        """
        for path, columns, component, choice in self._parts:
            leaf = action
            for key in path:
                leaf = leaf[key]
            flat = leaf.reshape(len(leaf), -1)
            target[:, columns] = flat if component is None else flat[:, component] == choice


def _choices(leaf: Space[Any]) -> np.ndarray[Any, Any] | None:
    """Number of choices of each component that is one of several; None: plain numbers."""
    if isinstance(leaf, spaces.Discrete):
        return np.array([int(leaf.n)])
    if isinstance(leaf, spaces.MultiDiscrete):
        return np.asarray(leaf.nvec, dtype=np.int64).reshape(-1)
    return None


def _leaves(
    space: Space[Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from _leaves(sub, (*path, str(key)))
    elif isinstance(space, spaces.Tuple):
        for number, sub in enumerate(space.spaces):
            yield from _leaves(sub, (*path, str(number)))
    else:
        yield path, space
