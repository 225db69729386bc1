"""What the host collected, brought to a device by one copy, always into the same memory.

A rollout is ten tensors and more. Copied one by one, each is a launch, and from memory that is not
pinned each waits. Here they are put side by side in pinned memory first. That they always arrive
in the same place spares a captured update to copy them into its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from redline.devices import exact_device, kind_of
from redline.engines.cudagraph import describe, rebuild

_ALIGNMENT = 64  # bytes, of each tensor within the block


class StagedCopies:
    """Nested tensors of the host on a device.

    Args:
        device: where to.
        is_awaited: whether whoever calls waits for the device before the next call. Then no copy
            is under way when its memory is written to again, and none has to be marked.
    """

    def __init__(self, device: torch.device, *, is_awaited: bool = False) -> None:
        self._device, self._kind = exact_device(device), kind_of(device)
        self._is_awaited = is_awaited
        self._key: Any = None
        self._host = self._there = torch.empty(0)
        self._staged: list[Tensor] = []
        self._places: list[Tensor] = []
        self._arrived: Any = None
        self._have_left: Callable[[], None] = lambda: None

    def __call__(self, value: Any) -> Any:
        """The same on the device; it holds until the next call.

        Args:
            value: tensors in dicts, TensorDicts and dataclasses; of a dataclass, what is no
                tensor is left out.
        """
        tensors: list[Tensor] = []
        key = describe(value, tensors)
        if all(tensor.device == self._device for tensor in tensors):
            return value
        if key != self._key:
            self._key = key
            self._make_room(value, tensors)
        self._have_left()  # of the copy before this one, which is over by now
        for place, tensor in zip(self._staged, tensors, strict=True):
            if tensor.is_cpu:
                place.copy_(tensor)
        self._there.copy_(self._host, non_blocking=True)
        if not self._is_awaited:
            self._have_left = self._kind.mark(self._device)
        for place, tensor in zip(self._places, tensors, strict=True):
            if not tensor.is_cpu:  # such as the state of a recurrent policy that acts there
                place.copy_(tensor)
        return self._arrived

    @torch.inference_mode(False)  # what that mode makes could not be written to outside of it
    def _make_room(self, value: Any, tensors: list[Tensor]) -> None:
        self._have_left()
        starts, size = [], 0
        for tensor in tensors:
            starts.append(size)
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._host = self._kind.pinned(torch.empty(size, dtype=torch.uint8))
        self._there = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._staged = places_in(self._host, starts, tensors)
        self._places = places_in(self._there, starts, tensors)
        places = iter(self._places)
        self._arrived = rebuild(value, lambda _: next(places))


def places_in(block: Tensor, starts: list[int], tensors: list[Tensor]) -> list[Tensor]:
    """Views of a block of bytes, one like each tensor."""
    return [
        block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=True)
    ]
