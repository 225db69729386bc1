"""Shapes and dtypes of what a replay buffer stores, and the names of nested entries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.data import Rollout
from redline.errors import ConfigError

Path: TypeAlias = tuple[str, ...]
Bounds: TypeAlias = tuple[Any, Any]
"""Lowest and highest value, each a number or an array that broadcasts over a row's."""


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One tensor of a row.

    Attributes:
        shape: shape of one environment's value, without [T, B].
        dtype: as collected; it is stored unchanged.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec:
    """What one row of B environments consists of; nested entries by their path of keys.

    Attributes:
        num_envs: B.
        obs: path -> leaf; the path of a bare observation is ().
        action: path -> leaf, likewise.
        extras: name -> leaf, the further entries of the rollout to keep.
        state: name -> leaf of the recurrent state; empty for a policy without one.
        bounds: array -> what its values lie between, by which a saved replay is checked.
        choices: path -> what observations that are numbers of a choice lie between, by which the
            replay of another run is checked; an environment may leave its space, and trains.
    """

    num_envs: int
    obs: dict[Path, LeafSpec]
    action: dict[Path, LeafSpec]
    extras: dict[str, LeafSpec]
    state: dict[str, LeafSpec]
    bounds: dict[str, Bounds] = field(default_factory=dict, compare=False)
    choices: dict[Path, Bounds] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for kind in ("obs", "action", "extras", "state"):
            for path, leaf in getattr(self, kind).items():
                if leaf.nbytes == 0:
                    raise ConfigError(
                        f"{kind} {dotted(path)!r} has shape {leaf.shape}: there is nothing to "
                        "store. Leave it out."
                    )

    @classmethod
    def from_rollout(cls, rollout: Rollout, extras: tuple[str, ...] = ()) -> ReplaySpec:
        """The spec of rollouts like this one.

        Raises:
            ConfigError: if the rollout lacks one of `extras`.
        """
        missing = [name for name in extras if name not in rollout.steps.keys()]  # noqa: SIM118
        if missing:
            raise ConfigError(
                f"extras={extras}: the rollout has no {missing}, only "
                f"{sorted(str(key) for key in rollout.steps.keys())}. "  # noqa: SIM118
                "Name entries that the policy puts out."
            )

        def leaf(value: Tensor, leading: int) -> LeafSpec:
            return LeafSpec(tuple(value.shape[leading:]), value.dtype)

        return cls(
            num_envs=rollout.num_envs,
            obs={path: leaf(value, 2) for path, value in flatten(rollout["obs"]).items()},
            action={path: leaf(value, 2) for path, value in flatten(rollout["action"]).items()},
            extras={name: leaf(rollout[name], 2) for name in extras},
            state={name: leaf(value, 1) for name, value in rollout.initial_state.items()},
        )

    @classmethod
    def from_spaces(
        cls,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        num_envs: int,
        *,
        extras: Mapping[str, LeafSpec] | None = None,
        state: Mapping[str, LeafSpec] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
        stored_action_space: gymnasium.Space[Any] | None = None,
    ) -> ReplaySpec:
        """The spec of rollouts collected in these spaces; float64 counts as float32.

        Args:
            observation_space: of one environment.
            action_space: likewise.
            num_envs: B.
            extras: as in the class.
            state: as in the class.
            bounds: further ones, beside those of actions.
            stored_action_space: what the policy's actions lie in, as rollouts hold them. None: in
                that of the environment; an actor's lie in [-1, 1], whatever those bounds are.
        """
        stored = action_space if stored_action_space is None else stored_action_space
        found = {entry_name("action", p): b for p, b in _space_bounds(stored).items()}
        return cls(
            num_envs=num_envs,
            obs=_space_leaves(observation_space),
            action=_space_leaves(action_space),
            extras=dict(extras or {}),
            state=dict(state or {}),
            bounds={**found, **(bounds or {})},
            choices=_space_bounds(observation_space, only_choices=True),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data to compare a saved buffer's spec with."""

        def entries(leaves: Mapping[Any, LeafSpec]) -> dict[str, list[Any]]:
            return {
                dotted(path): [list(leaf.shape), str(leaf.dtype).removeprefix("torch.")]
                for path, leaf in leaves.items()
            }

        return {
            "num_envs": self.num_envs,
            "obs": entries(self.obs),
            "action": entries(self.action),
            "extras": entries(self.extras),
            "state": entries(self.state),
        }


def _space_leaves(space: gymnasium.Space[Any]) -> dict[Path, LeafSpec]:
    if isinstance(space, gymnasium.spaces.Dict):
        children = dict(space.spaces.items())
    elif isinstance(space, gymnasium.spaces.Tuple):
        children = {str(i): sub for i, sub in enumerate(space.spaces)}
    else:
        dtype = np.dtype(space.dtype if space.dtype is not None else np.float32)
        kept = np.dtype(np.float32) if dtype == np.float64 else dtype
        tensor = torch.from_numpy(np.zeros((), dtype=kept))
        return {(): LeafSpec(tuple(space.shape or ()), tensor.dtype)}
    return {
        (key, *path): leaf
        for key, sub in children.items()
        for path, leaf in _space_leaves(sub).items()
    }


def _space_bounds(space: gymnasium.Space[Any], *, only_choices: bool = False) -> dict[Path, Bounds]:
    """Path -> bounds of the leaves, zero-based; `only_choices` leaves out Box."""
    spaces = gymnasium.spaces
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space)
        return {
            (str(key), *path): bound
            for key, sub in parts
            for path, bound in _space_bounds(sub, only_choices=only_choices).items()
        }
    if isinstance(space, spaces.Discrete):
        return {(): (0, int(space.n) - 1)}
    if isinstance(space, spaces.MultiDiscrete):
        return {(): (0, np.asarray(space.nvec, dtype=np.int64) - 1)}
    if isinstance(space, spaces.MultiBinary):
        return {(): (0, 1)}
    if isinstance(space, spaces.Box) and not only_choices:
        return {(): (space.low, space.high)}
    return {}


def dotted(path: Path | str) -> str:
    """A path of keys as one name, for messages and file names."""
    return path if isinstance(path, str) else ".".join(path)


def entry_name(kind: str, path: Path) -> str:
    """Name of the array that holds a leaf, e.g. "obs" or "obs/pose.0"."""
    return f"{kind}/{dotted(path)}" if path else kind


def flatten(tree: Any, prefix: Path = ()) -> dict[Path, Tensor]:
    """The leaves of nested data by their path of keys, in key order of the tree."""
    if isinstance(tree, Tensor) or not isinstance(tree, (Mapping, TensorDictBase)):
        return {prefix: tree}  # what is a tensor is told apart from a mapping only slowly
    return {
        path: leaf
        for key in tree.keys()  # noqa: SIM118 (iterating a TensorDict gives rows, not keys)
        for path, leaf in flatten(tree[key], (*prefix, str(key))).items()
    }


def nest(leaves: Mapping[Path, Tensor], batch_size: tuple[int, ...]) -> Any:
    """The inverse of `flatten`: a bare tensor, or a TensorDict of `batch_size`."""
    if set(leaves) == {()}:
        return leaves[()]
    tree = TensorDict({}, batch_size=list(batch_size))
    for path, leaf in leaves.items():
        tree.set(path, leaf)
    return tree
