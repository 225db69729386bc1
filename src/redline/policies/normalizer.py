"""Running normalization of observations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor, map_leaves
from redline.data.ranks import are_several, gather_from_ranks
from redline.devices import kind_of, widest_float
from redline.models import leaf_at, leaf_spaces

CLIP = 10.0  # in standard deviations
_EPSILON = 1e-8  # added to the variance, so that a constant number stays finite


class Moments(NamedTuple):
    """Statistics of a set of rows, in float64, or float32 where the device has no doubles.

    Attributes:
        count: [] number of rows.
        mean: [...] mean over the rows.
        squares: [...] sum over the rows of the squared distance to the mean.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor


def moments_of(rows: Tensor, valid: Tensor) -> Moments:
    """Statistics of the valid rows; what the others hold, NaN included, does not matter.

    Args:
        rows: [..., *shape] any float.
        valid: [...] bool.
    """
    # float64: sums of squares over millions of rows leave no digits of float32.
    wide = widest_float(rows.device)
    flat = rows.to(wide).flatten(0, valid.dim() - 1)
    selected = valid.reshape(-1, *([1] * (flat.dim() - 1)))
    count = valid.sum().to(wide)
    zero = flat.new_zeros(())
    mean = torch.where(selected, flat, zero).sum(dim=0) / count.clamp(min=1.0)
    squares = torch.where(selected, flat - mean, zero).square().sum(dim=0)
    return Moments(count, mean, squares)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Statistics of both sets together (Chan et al. 1983, eq. 2.1)."""
    count = a.count + b.count
    share = b.count / count.clamp(min=1.0)
    delta = b.mean - a.mean
    return Moments(
        count, a.mean + delta * share, a.squares + b.squares + delta.square() * a.count * share
    )


def _over_ranks(own: Moments) -> Moments:
    """Statistics of the rows of all ranks, in the ranks' order; with one rank its own."""
    if not are_several():
        return own
    flat = torch.cat([own.count.reshape(1), own.mean.flatten(), own.squares.flatten()])
    merged: Moments | None = None
    for each in gather_from_ranks(flat):
        mean, squares = each[1:].view(2, *own.mean.shape)
        other = Moments(each[0], mean, squares)
        merged = other if merged is None else merge_moments(merged, other)
    return own if merged is None else merged


class RunningMoments(nn.Module):
    """Mean and standard deviation of one leaf so far, and the map that removes them.

    The statistics are float64, or float32 where the device has no doubles; what acting applies
    are float32 buffers derived from them. All are in the state dict, so that a copy made buffer by
    buffer is complete. Before the first row the map is the identity, without the clip.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    offset: Tensor
    factor: Tensor
    limit: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("offset", torch.zeros(shape))
        self.register_buffer("factor", torch.ones(shape))
        self.register_buffer("limit", torch.tensor(torch.inf))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As `to` and the like: a device without doubles refuses to be given one."""
        before, after = kind_of(self.mean.device), kind_of(fn(torch.empty(0)).device)
        if not after.has_float64:
            self._cast(torch.float32)
        super()._apply(fn, recurse)
        if after.has_float64 and not before.has_float64:
            self._cast(torch.float64)
        return self

    def _cast(self, dtype: torch.dtype) -> None:
        for name in Moments._fields:
            setattr(self, name, getattr(self, name).to(dtype))

    def forward(self, leaf: Tensor) -> Tensor:
        """(leaf - mean) / std, clipped; [N, *shape] -> the same shape, float32."""
        return torch.clamp((leaf - self.offset) * self.factor, -self.limit, self.limit)

    def none(self) -> Moments:
        """Statistics of no row."""
        return Moments(*(torch.zeros_like(each) for each in (self.count, self.mean, self.squares)))

    @torch.no_grad()
    def update(self, rows: Tensor, valid: Tensor) -> None:
        """Take rows [..., *shape] in, where `valid` [...]; both may lie on another device."""
        device = self.mean.device
        self.merge(_over_ranks(moments_of(rows.to(device), valid.to(device))))

    @torch.no_grad()
    def merge(self, new: Moments) -> None:
        """Take statistics of other rows in, in place."""
        merged = merge_moments(Moments(self.count, self.mean, self.squares), new)
        self.count.copy_(merged.count)
        self.mean.copy_(merged.mean)
        self.squares.copy_(merged.squares)
        variance = merged.squares / merged.count.clamp(min=1.0)
        seen = merged.count > 0
        self.offset.copy_(merged.mean)
        self.factor.copy_(torch.where(seen, (variance + _EPSILON).rsqrt(), 1.0))
        self.limit.copy_(torch.where(seen, CLIP, torch.inf))


class ObservationNormalizer(nn.Module):
    """Running normalization of the float leaves of an observation.

    Whole numbers, images, one-hot codes of observations and masks pass unchanged; the action before
    and its reward (`observe_previous`) are numbers like others. In evaluation mode
    (`eval()`) the statistics are frozen.

    Args:
        space: the observation space.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self._paths = [
            path
            for path, leaf in leaf_spaces(space)
            if isinstance(leaf, spaces.Box) and np.issubdtype(leaf.dtype, np.floating)
        ]
        shapes = {path: tuple(leaf.shape) for path, leaf in leaf_spaces(space)}
        self.moments = nn.ModuleList(RunningMoments(shapes[path]) for path in self._paths)

    @property
    def has_seen(self) -> bool:
        """Whether there are statistics of anything yet, or nothing to have them of."""
        return all(float(moments.count) > 0 for moments in self._running)

    @property
    def _running(self) -> list[RunningMoments]:
        return cast("list[RunningMoments]", list(self.moments))

    def forward(self, obs: NestedTensor) -> NestedTensor:
        """Normalize [N, ...] observations; the caller's mapping is left as it is."""
        if isinstance(obs, Tensor):
            return self.moments[0](obs) if self._paths else obs
        # New dicts with the same leaves: the caller's stay as they are.
        normalized: Any = map_leaves(lambda leaf: leaf, obs)
        for path, moments in zip(self._paths, self.moments, strict=True):
            leaf_at(normalized, path[:-1])[path[-1]] = moments(leaf_at(obs, path))
        return normalized

    def update(self, obs: NestedTensor, valid: Tensor) -> None:
        """Take observations in, unless in evaluation mode.

        Args:
            obs: [..., *shape] in the space's structure.
            valid: [...] bool, which rows count.
        """
        if not self.training:
            return
        for path, moments in zip(self._paths, self._running, strict=True):
            moments.update(leaf_at(obs, path), valid)

    @torch.no_grad()
    def begin_with(self, parts: Iterable[NestedTensor]) -> None:
        """Take in what a run begins with, part by part; ranks add up theirs once, at the end.

        Args:
            parts: each [N, *shape] in the space's structure.
        """
        found = [each.none() for each in self._running]
        for obs in parts:
            for i, path in enumerate(self._paths):
                rows = leaf_at(obs, path)
                rows = rows.to(found[i].mean.device)
                valid = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
                found[i] = merge_moments(found[i], moments_of(rows, valid))
        for moments, own in zip(self._running, found, strict=True):
            moments.merge(_over_ranks(own))
