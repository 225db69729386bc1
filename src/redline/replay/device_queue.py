"""Writes to a device's memory, gathered: one copy brings what they write, one graph makes them.

A rollout of a few transitions is written to six arrays and more. One by one, each is two launches
of the host, which take longer than the writes. Here they wait until all are known. What they read
lies in main memory, is put side by side there, and crosses by one copy; then the writes are made,
in the order in which they came. What is asked for again in the same shapes is captured as a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from redline.devices import Graph, kind_of

_ALIGNMENT = 64  # bytes, of each tensor within the block
_MOST_BLOCKS = 16  # kinds of work that are remembered; others are done one by one


class _Work(NamedTuple):
    """What is to be done.

    Attributes:
        name: the same for work that does the same to the same memory.
        function: does it, in place, with `inputs` on the device; doing it twice does no harm.
        inputs: in main memory, or on the device.
    """

    name: Hashable
    function: Callable[..., None]
    inputs: tuple[Tensor, ...]


class _Block:
    """Places for so many tensors, side by side in main memory and on the device.

    Attributes:
        there: the places on the device.
        graph: does the work from there; None until it was done once.
    """

    def __init__(self, inputs: Sequence[Tensor], device: torch.device) -> None:
        starts, size = [], 0
        for tensor in inputs:
            starts.append(size)
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._kind, self._device = kind_of(device), device
        self._host = self._kind.pinned(torch.empty(size, dtype=torch.uint8))
        self._whole = torch.empty(size, dtype=torch.uint8, device=device)
        self._near = _places(self._host, starts, inputs)
        self.there = _places(self._whole, starts, inputs)
        self.graph: Graph | None = None
        self._have_left: Callable[[], None] = lambda: None

    def load(self, inputs: Sequence[Tensor]) -> None:
        """Bring other tensors of the same shapes to the places."""
        self._have_left()  # of the copy before this one, which is over by now
        for place, tensor in zip(self._near, inputs, strict=True):
            place.copy_(tensor)
        self._whole.copy_(self._host, non_blocking=True)
        self._have_left = self._kind.mark(self._device)


def _places(block: Tensor, starts: Sequence[int], inputs: Sequence[Tensor]) -> list[Tensor]:
    return [
        block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, inputs, strict=True)
    ]


class DeviceQueue:
    """Work on a device's memory.

    Args:
        device: not the CPU.

    Attributes:
        captures: whether work that comes again is captured as a graph; eager runs do without.
        is_open: whether there is a `gathered` block, whose work waits for its end.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.captures, self.is_open = device, False, False
        self._work: list[_Work] = []
        self._blocks: dict[Hashable, _Block] = {}

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Do all work that comes in this block at its end."""
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False
            self.flush()

    def put(self, name: Hashable, function: Callable[..., None], *inputs: Tensor) -> None:
        """Do something in place, with what else comes until `flush`.

        Args:
            name: the same for work that does the same to the same memory.
            function: called with `inputs` on the device; doing it twice does no harm.
            inputs: in main memory, or on the device.
        """
        # Dense, so that they can be put side by side.
        self._work.append(_Work(name, function, tuple(each.contiguous() for each in inputs)))

    @torch.inference_mode(False)  # what that mode makes could not be written to outside of it
    @torch.no_grad()
    def flush(self) -> None:
        """Do what was put off so far."""
        work, self._work = self._work, []
        if not work:
            return
        inputs = [each for one in work for each in one.inputs]
        key = tuple((one.name, *((each.shape, each.dtype) for each in one.inputs)) for one in work)
        block, is_new = self._blocks.get(key), key not in self._blocks
        if is_new and len(self._blocks) < _MOST_BLOCKS and all(each.is_cpu for each in inputs):
            block = self._blocks[key] = _Block(inputs, self._device)
        if block is None:
            _do(work, [each.to(self._device) for each in inputs])
            return
        block.load(inputs)
        if block.graph is not None:
            block.graph.replay()
        elif is_new or not self.captures:  # what comes once needs no graph
            _do(work, block.there)
        else:
            self._capture(block, work)

    def _capture(self, block: _Block, work: Sequence[_Work]) -> None:
        """Do work from a block, and record it as the block's graph; without, where that fails."""
        graphs = kind_of(self._device).graphs(self._device)
        graphs.warm_up(lambda: _do(work, block.there))  # which does it
        try:
            block.graph = graphs.capture(lambda: _do(work, block.there), ())[0]
        except RuntimeError as error:
            self.captures = False
            warnings.warn(
                f"cannot capture what is written to replay on {self._device}: {error}. Each array "
                f"is written by a launch of its own, which is right and slower.",
                stacklevel=2,
            )


def _do(work: Sequence[_Work], inputs: Sequence[Tensor]) -> None:
    given = iter(inputs)
    for one in work:
        one.function(*(next(given) for _ in one.inputs))


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device brought to main memory together, by one copy; those there stay."""
    away = [each for each in tensors if not each.is_cpu]
    if not away:
        return list(tensors)
    flat = [each.detach().contiguous().view(-1).view(torch.uint8) for each in away]
    parts = torch.cat(flat).cpu().split([each.numel() for each in flat])
    # Copies: within the block their numbers need not be aligned.
    near = iter(
        part.clone().view(each.dtype).view(each.shape)
        for part, each in zip(parts, away, strict=True)
    )
    return [each if each.is_cpu else next(near) for each in tensors]
