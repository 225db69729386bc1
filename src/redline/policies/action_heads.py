"""From an action space to the distribution over it: how many outputs, how much noise.

| action space | outputs | stored action | the environment receives |
|---|---|---|---|
| Discrete(n) | n logits | [N] int64, zero-based | the same |
| MultiDiscrete(nvec) | sum(nvec) logits | [N, *nvec.shape] int64, zero-based | the same |
| MultiBinary(n) | n logits | [N, n] int8 | the same |
| Box, gaussian | mean (, log std) | [N, *shape] float32 as drawn | clipped to the bounds |
| Box, squashed | mean (, log std) | [N, *shape] float32 before tanh | tanh, scaled to the bounds |
| Dict, Tuple | those of the parts | a mapping | a mapping |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import Array
from redline.errors import SpaceError, UnknownNameError
from redline.free_memory import require_memory
from redline.policies.distributions import (
    LARGEST_TANH,
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
    gauss_hermite,
)

DISTRIBUTION_NAMES = ("auto", "gaussian", "squashed")
# A network can drive its own standard deviation to 0 or infinity within one update.
_LOG_STD_RANGE = (-20.0, 2.0)
# The least uniform number: the middle of the generator's first interval, so that no
# inverse distribution function is asked for its value at 0.
_LEAST_UNIFORM = 2.0**-54


class ActionHead(nn.Module, ABC):
    """What one action space asks of a network, and the distribution over it.

    Attributes:
        num_outputs: how many numbers the network gives for one environment.
        noise_size: how many noise numbers one action takes.
        mask_size: length of the action mask, 0 if the space has no choices to mask.
    """

    num_outputs: int
    noise_size: int
    mask_size: int = 0

    @abstractmethod
    def distribution(self, outputs: Tensor, mask: Any = None) -> Distribution:
        """The distribution that `outputs` [N, num_outputs] stand for.

        Args:
            outputs: [N, num_outputs] of the network.
            mask: [N, mask_size], nonzero where a choice is allowed; for a Dict or Tuple
                space a mapping that may leave parts out.
        """

    @abstractmethod
    def noise(self, uniform: Array) -> Array:
        """Uniform numbers [L, noise_size] in (0, 1) to the noise that `sample` expects."""

    @abstractmethod
    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """The same of float32 tensors [..., noise_size], on their own device."""

    def env_action(self, action: Any) -> Any:
        """What the environment receives for the stored `action`, numpy or tensor."""
        return action

    def stored_action(self, action: Any) -> Any:
        """The inverse of `env_action`, for numpy arrays; see `Policy.stored_action`."""
        return action

    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """[length, noise_size] float32.

        By inversion, one generator number per noise number in row order: drawing 7 rows
        and then 5 gives the same as drawing 12.
        """
        # In double precision: the tails of the inverse would be coarse in single.
        uniform = np.maximum(rng.random((length, self.noise_size)), _LEAST_UNIFORM)
        return self.noise(uniform).astype(np.float32)


class CategoricalHead(ActionHead):
    """Discrete(n)."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.num_outputs = self.noise_size = self.mask_size = int(space.n)

    def distribution(self, outputs: Tensor, mask: Any = None) -> Categorical:
        """Over [N] int64."""
        return Categorical(outputs, mask)

    def noise(self, uniform: Array) -> Array:
        """Gumbel(0, 1)."""
        return -np.log(-np.log(uniform))

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """Gumbel(0, 1)."""
        return -torch.log(-torch.log(uniform))


_PLACE_BYTES = 17  # an index, what it is computed from, and whether it is there


class MultiCategoricalHead(ActionHead):
    """MultiDiscrete(nvec), of any shape.

    Raises:
        ConfigError: if there are more choices than memory holds.
    """

    _index: Tensor
    _present: Tensor | None

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        # One table of places serves all components, so that their number does not show in
        # the number of operations.
        sizes = space.nvec.reshape(-1).astype(np.int64)
        self.num_outputs = self.noise_size = self.mask_size = sum(map(int, sizes))
        self._shape = tuple(space.nvec.shape)
        most = int(sizes.max())
        require_memory(
            len(sizes) * most * _PLACE_BYTES,
            f"MultiDiscrete actions with {len(sizes):,} parts of up to {most:,} choices: a table "
            f"of {len(sizes):,} x {most:,} x {_PLACE_BYTES} bytes",
            "Declare fewer choices, or a Box of numbers.",
        )
        starts = np.cumsum(sizes) - sizes
        place = np.arange(most)
        present = place[None, :] < sizes[:, None]
        index = np.where(present, starts[:, None] + place[None, :], 0)
        # Not persistent: the space gives them again, and checkpoints stay without them.
        self.register_buffer("_index", torch.from_numpy(index), persistent=False)
        surplus = None if present.all() else torch.from_numpy(present)
        self.register_buffer("_present", surplus, persistent=False)

    def distribution(self, outputs: Tensor, mask: Any = None) -> MultiCategorical:
        """Over [N, *shape] int64."""
        return MultiCategorical(outputs, self._index, self._present, mask, self._shape)

    def noise(self, uniform: Array) -> Array:
        """Gumbel(0, 1)."""
        return -np.log(-np.log(uniform))

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """Gumbel(0, 1)."""
        return -torch.log(-torch.log(uniform))


class BernoulliHead(ActionHead):
    """MultiBinary(n), of any shape."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self._shape = tuple(int(n) for n in space.shape)
        self.num_outputs = self.noise_size = int(np.prod(self._shape))

    def distribution(self, outputs: Tensor, mask: Any = None) -> Bernoulli:
        """Over [N, *shape] int8."""
        return Bernoulli(outputs, self._shape)

    def noise(self, uniform: Array) -> Array:
        """Logistic(0, 1)."""
        return np.log(uniform) - np.log1p(-uniform)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """Logistic(0, 1)."""
        return torch.log(uniform) - torch.log1p(-uniform)


class GaussianHead(ActionHead):
    """Box, with the drawn numbers clipped to the bounds on their way to the environment.

    Args:
        space: a Box of floats, with or without bounds in each dimension.
        initial_log_std: where the log of the standard deviation starts.
        state_dependent_std: whether the network gives the log of the standard deviation
            (added to `initial_log_std` and kept within [-20, 2]), instead of one parameter
            per dimension.
    """

    _low: Tensor
    _high: Tensor

    def __init__(
        self, space: spaces.Box, initial_log_std: float = 0.0, state_dependent_std: bool = False
    ) -> None:
        super().__init__()
        self._space = space
        self._shape = tuple(int(n) for n in space.shape)
        self._size = int(np.prod(self._shape))
        self.noise_size = self._size
        self.num_outputs = self._size * (2 if state_dependent_std else 1)
        self._initial_log_std = initial_log_std
        # None, and not absent: `distribution` asks for it to tell the two kinds apart.
        self.log_std = None
        if not state_dependent_std:
            self.log_std = nn.Parameter(torch.full((self._size,), float(initial_log_std)))
        bounds = (torch.as_tensor(limit, dtype=torch.float32) for limit in (space.low, space.high))
        low, high = bounds
        self.register_buffer("_low", low, persistent=False)
        self.register_buffer("_high", high, persistent=False)
        self._has_bounds = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())

    def distribution(self, outputs: Tensor, mask: Any = None) -> Gaussian | SquashedGaussian:
        """Over [N, *shape] float32."""
        return Gaussian(*self._mean_log_std(outputs), self._shape)

    def noise(self, uniform: Array) -> Array:
        """Normal(0, 1)."""
        return torch.special.ndtri(torch.from_numpy(uniform)).numpy()

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """Normal(0, 1)."""
        return torch.special.ndtri(uniform)

    def env_action(self, action: Any) -> Any:
        """Clipped to the bounds; a numpy array also gets the space's dtype."""
        if isinstance(action, Tensor):
            return torch.clamp(action, self._low, self._high) if self._has_bounds else action
        # In the space's own dtype: a float64 bound rounded to float32 may lie outside.
        action = np.asarray(action).astype(self._space.dtype, copy=False)
        if not self._has_bounds:
            return action
        # Two operations in place of `np.clip`, whose call takes longer than both.
        return np.maximum(np.minimum(action, self._space.high), self._space.low)

    def _mean_log_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.log_std is not None:
            return outputs, self.log_std
        # Added, so that a network whose outputs begin near 0 begins at the initial value.
        mean, log_std = outputs.split(self._size, dim=1)
        return mean, (log_std + self._initial_log_std).clamp(*_LOG_STD_RANGE)


class SquashedGaussianHead(GaussianHead):
    """Box with two finite bounds in each dimension, reached through tanh.

    Raises:
        SpaceError: if a dimension lacks a bound.
    """

    _log_half_width: Tensor
    _quadrature: Tensor
    _center: Tensor
    _half_width: Tensor

    def __init__(
        self, space: spaces.Box, initial_log_std: float = 0.0, state_dependent_std: bool = False
    ) -> None:
        super().__init__(space, initial_log_std, state_dependent_std)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise SpaceError(
                f"distribution='squashed' needs finite bounds with low < high in every dimension, "
                f"but the action space is {space}. Use distribution='gaussian', or rescale the "
                f"actions with gymnasium.wrappers.RescaleAction."
            )
        self._center_array, self._half_width_array = (high + low) / 2.0, (high - low) / 2.0
        for name, array in (
            ("_center", self._center_array),
            ("_half_width", self._half_width_array),
            ("_log_half_width", np.log(self._half_width_array).reshape(-1)),
        ):
            buffer = torch.as_tensor(array, dtype=torch.float32)
            self.register_buffer(name, buffer, persistent=False)
        self.register_buffer("_quadrature", gauss_hermite(), persistent=False)

    def distribution(self, outputs: Tensor, mask: Any = None) -> SquashedGaussian:
        """Over [N, *shape] float32, before tanh."""
        mean, log_std = self._mean_log_std(outputs)
        return SquashedGaussian(mean, log_std, self._log_half_width, self._shape, self._quadrature)

    def env_action(self, action: Any) -> Any:
        """Tanh, scaled to the bounds; clipped too, against rounding past them."""
        # numpy keeps double precision, in which a bound of the space is exact.
        if isinstance(action, Tensor):
            squashed = self._center + self._half_width * torch.tanh(action)
        else:
            squashed = self._center_array + self._half_width_array * np.tanh(action)
        return super().env_action(squashed)

    def stored_action(self, action: Any) -> Any:
        """u, of which `action` is the scaled tanh; of a bound, that of a place just inside it."""
        inside = (np.asarray(action, np.float64) - self._center_array) / self._half_width_array
        return np.arctanh(np.clip(inside, -LARGEST_TANH, LARGEST_TANH)).astype(np.float32)


class JointHead(ActionHead):
    """Dict or Tuple of spaces; a Tuple's names are "0", "1", ..."""

    def __init__(self, parts: Mapping[str, ActionHead]) -> None:
        super().__init__()
        # A list: names of a space may hold dots, which names of modules may not.
        self._names = list(parts)
        self.parts = nn.ModuleList(parts.values())
        self._output_sizes = [head.num_outputs for head in parts.values()]
        self._noise_sizes = [head.noise_size for head in parts.values()]
        self.num_outputs = sum(self._output_sizes)
        self.noise_size = sum(self._noise_sizes)

    def named_parts(self) -> dict[str, ActionHead]:
        """Name -> head, in the space's order."""
        return dict(zip(self._names, self.parts, strict=True))  # pyright: ignore[reportReturnType]

    def distribution(self, outputs: Tensor, mask: Any = None) -> Joint:
        """Over a mapping of the parts' actions."""
        columns = outputs.split(self._output_sizes, dim=1)
        masks = {} if mask is None else {name: mask[name] for name in mask.keys()}  # noqa: SIM118
        parts = {
            name: head.distribution(column, masks.get(name))
            for (name, head), column in zip(self.named_parts().items(), columns, strict=True)
        }
        return Joint(parts, self._noise_sizes)

    def noise(self, uniform: Array) -> Array:
        """Each part's noise, side by side."""
        columns = np.split(uniform, np.cumsum(self._noise_sizes)[:-1], axis=1)
        parts = zip(self.named_parts().values(), columns, strict=True)
        return np.concatenate([head.noise(column) for head, column in parts], axis=1)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """Each part's noise, side by side."""
        columns = uniform.split(self._noise_sizes, dim=-1)
        parts = zip(self.named_parts().values(), columns, strict=True)
        return torch.cat([head.noise_from_uniform(column) for head, column in parts], dim=-1)

    def env_action(self, action: Any) -> dict[str, Any]:
        """Each part's."""
        return {name: head.env_action(action[name]) for name, head in self.named_parts().items()}

    def stored_action(self, action: Any) -> dict[str, Any]:
        """Each part's."""
        parts = self.named_parts().items()
        return {name: head.stored_action(action[name]) for name, head in parts}


def make_action_head(
    space: spaces.Space[Any],
    distribution: str = "auto",
    *,
    initial_log_std: float = 0.0,
    state_dependent_std: bool = False,
) -> ActionHead:
    """The head for an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, Box, or Dict or Tuple of these.
        distribution: for Box parts: "gaussian", "squashed", or "auto", which is "gaussian".
        initial_log_std: of Box parts.
        state_dependent_std: of Box parts.

    Raises:
        SpaceError: if the space cannot be served; names it, the reason and the fix.
        UnknownNameError: if the distribution is not known.
    """
    if distribution not in DISTRIBUTION_NAMES:
        close = get_close_matches(distribution, DISTRIBUTION_NAMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(
            f"distribution={distribution!r} is not known.{hint} "
            f"Use one of {', '.join(DISTRIBUTION_NAMES)}."
        )
    head = _make_head(space, distribution, initial_log_std, state_dependent_std)
    if distribution != "auto" and not any(isinstance(m, GaussianHead) for m in head.modules()):
        raise SpaceError(
            f"distribution={distribution!r} is for Box actions, but the action space {space} has "
            f"none. Use distribution='auto'."
        )
    return head


def _make_head(
    space: spaces.Space[Any], distribution: str, initial_log_std: float, state_dependent_std: bool
) -> ActionHead:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        subspaces = (
            space.spaces
            if isinstance(space, spaces.Dict)
            else {str(i): sub for i, sub in enumerate(space.spaces)}
        )
        if not subspaces:
            raise SpaceError(f"the action space {space} is empty. Give it at least one part.")
        return JointHead(
            {
                name: _make_head(sub, distribution, initial_log_std, state_dependent_std)
                for name, sub in subspaces.items()
            }
        )
    if isinstance(space, spaces.Box):
        return _make_box_head(space, distribution, initial_log_std, state_dependent_std)
    return _make_discrete_head(space)


def _make_box_head(
    space: spaces.Box, distribution: str, initial_log_std: float, state_dependent_std: bool
) -> ActionHead:
    if space.dtype not in (np.float32, np.float64):
        raise SpaceError(
            f"the action space {space} is a Box of {space.dtype}; only Boxes of float32 and "
            f"float64 can be served. Use a MultiDiscrete space for whole numbers, or "
            f"gymnasium.wrappers.TransformAction for another precision."
        )
    if int(np.prod(space.shape)) == 0:
        raise SpaceError(f"the action space {space} has no dimensions. Give it at least one.")
    head = SquashedGaussianHead if distribution == "squashed" else GaussianHead
    return head(space, initial_log_std, state_dependent_std)


def _make_discrete_head(space: spaces.Space[Any]) -> ActionHead:
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    raise SpaceError(
        f"the action space {space} cannot be served: only Discrete, MultiDiscrete, MultiBinary, "
        f"Box and Dict or Tuple of these can. Wrap the environment to one of them."
    )
