"""Steps as captured graphs.

A captured step is recorded once, with the memory that it reads and writes, and then launched as a
whole: the host does nothing per operator. What it reads must lie in the same place each time, so
inputs are copied into buffers of the graph's own, unless they always lie in the same place; what
it returns is copied out, for the next launch writes over it.

How a graph is captured is the device's to say (`redline.devices.Graphs`). Everything else, that is
all that can go wrong in an algorithm, is here, and is the same for every device.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from redline.devices import Graph, kind_of
from redline.engines.capture_rules import CaptureWatch
from redline.engines.snapshot import owners_of, restore, snapshot
from redline.engines.watch import NetworksWatch

WARMUP_CALLS = 2  # before a capture: libraries choose their algorithms and get their memory


class CapturedStep:
    """A step as graphs, one for each set of flags and shapes.

    The first call of each kind is tried out before it is captured, and what that changed of the
    algorithm is put back: libraries get ready, and what no graph can contain is named. From then
    on a call copies the inputs into the graph's buffers, launches it, and copies what it returns.
    Nothing waits for the device.

    Args:
        step: no host reads, fixed shapes; every tensor it changes stays where it is.
        algorithm: whose step it is; what it changes.
        borrows: whether inputs may be read where they are at the first call. Those that lie
            elsewhere at a later one are copied there: their owner must not need what was there.
        is_compiled: whether the step is compiled; then it is not watched operator by operator.
        lends: whether results are given as they lie in the graph's memory, until the next call.

    Attributes:
        num_graphs: captured so far.
        launches: graphs launched so far.

    Raises:
        DeviceError: if the algorithm's device runs no graphs.
        CaptureError: at a call, if the step cannot be captured; names the operator.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        algorithm: Any,
        *,
        borrows: bool = False,
        is_compiled: bool = False,
        lends: bool = False,
    ) -> None:
        self.step, self._algorithm, self._lends = step, algorithm, lends
        self._device, self._borrows, self._is_compiled = algorithm.device, borrows, is_compiled
        self._capturing = kind_of(self._device).graphs(self._device)
        self._captured: dict[Any, tuple[Graph, StaticInputs, StaticResult]] = {}
        self._watch = NetworksWatch(algorithm)
        self.launches = 0

    @property
    def num_graphs(self) -> int:
        """Captured so far."""
        return len(self._captured)

    def forget(self) -> None:
        """Drop all graphs: what they read from has moved."""
        self._captured.clear()

    def __call__(self, *inputs: Any) -> Any:
        """Replay, capturing first where these shapes and flags are new, or networks are."""
        if self._watch.changed():
            self.forget()
        tensors: list[Tensor] = []
        key = describe(inputs, tensors)
        if key not in self._captured:
            self._captured[key] = self._capture(inputs)
        else:
            self._captured[key][1].load(tensors)
        graph, _, result = self._captured[key]
        return self._replayed(graph, result)

    def launcher(self, *inputs: Any) -> Callable[[], Any]:
        """What does the same for these inputs until `forget`, without looking at them.

        Args:
            inputs: they stay where they are; only their numbers change. Where the graph of their
                kind reads elsewhere, looking at them cannot be spared.
        """
        tensors: list[Tensor] = []
        key = describe(inputs, tensors)
        if key not in self._captured:
            self._captured[key] = self._capture(inputs)
        graph, held, result = self._captured[key]
        if not held.are_here(tensors):
            return lambda: self(*inputs)
        return lambda: self._replayed(graph, result)

    def _replayed(self, graph: Graph, result: StaticResult) -> Any:
        graph.replay()
        self.launches += 1
        return result.lent() if self._lends else result.taken()

    def _capture(self, inputs: tuple[Any, ...]) -> tuple[Graph, StaticInputs, StaticResult]:
        held, generators = (
            StaticInputs(inputs, borrows=self._borrows),
            generators_of(self._algorithm),
        )

        def call() -> StaticResult:
            return StaticResult(self.step(*held.values), gathers=not self._lends)

        before = snapshot(self._algorithm)
        try:
            for i in range(WARMUP_CALLS):
                is_watched = i == WARMUP_CALLS - 1 and not self._is_compiled
                watch = CaptureWatch(self._device, generators) if is_watched else None
                with watch or contextlib.nullcontext():
                    self._capturing.warm_up(call)
            graph, result = self._capturing.capture(call, generators)
        finally:
            restore(self._algorithm, before)
        return graph, held, result

    def __str__(self) -> str:
        size = self._capturing.nbytes / 2**20
        graphs = f"{self.num_graphs} captured graph{'s' if self.num_graphs != 1 else ''}"
        return f"{graphs} launched {self.launches:,} times, {size:.0f} MiB of graphs' memory"


def generators_of(algorithm: Any) -> list[torch.Generator]:
    """The algorithm's own generators on its device, and those of the algorithms inside it."""
    found = [value for owner in owners_of(algorithm) for value in vars(owner).values()]
    return [
        value
        for value in found
        if isinstance(value, torch.Generator) and value.device.type == algorithm.device.type
    ]


class StaticResult:
    """What a captured step returned, in memory that every replay writes to.

    Numbers [] of one type are gathered into one tensor inside the graph, so that taking all of an
    update's metrics is one launch.

    Args:
        result: tensors in dicts, lists and tuples; anything else is given back as it is.
        gathers: whether numbers are put side by side, for `taken`.
    """

    def __init__(self, result: Any, *, gathers: bool = True) -> None:
        leaves, self._structure = tree_flatten(result)
        self._leaves: list[Any] = leaves
        numbers: dict[torch.dtype, list[int]] = {}
        for i, leaf in enumerate(leaves):
            if gathers and isinstance(leaf, Tensor) and leaf.dim() == 0:
                numbers.setdefault(leaf.dtype, []).append(i)
        self._gathered = [
            (places, torch.stack([leaves[i] for i in places])) for places in numbers.values()
        ]
        self._is_gathered = {i for places, _ in self._gathered for i in places}

    def lent(self) -> Any:
        """The result of the last replay, where it lies."""
        return tree_unflatten(self._leaves, self._structure)

    def taken(self) -> Any:
        """The result of the last replay, in memory of its own."""
        taken = [
            leaf.clone() if isinstance(leaf, Tensor) and i not in self._is_gathered else leaf
            for i, leaf in enumerate(self._leaves)
        ]
        for places, together in self._gathered:
            for i, number in zip(places, together.clone().unbind(), strict=True):
                taken[i] = number
        return tree_unflatten(taken, self._structure)


class StaticInputs:
    """Inputs in memory that stays, for a captured step to read from.

    Args:
        inputs: the first ones, which are copied; tensors, and whatever `describe` looks into.
        borrows: whether they are kept as they are instead of copied.

    Attributes:
        values: of the same structure; `load` changes their tensors.
    """

    def __init__(self, inputs: tuple[Any, ...], *, borrows: bool = False) -> None:
        self._borrows = borrows
        self._tensors: list[Tensor] = []
        self.values: tuple[Any, ...] = rebuild(inputs, self._hold)

    def load(self, tensors: list[Tensor]) -> None:
        """Copy other inputs in, as `describe` found them; those that lie here stay."""
        both = zip(self._tensors, tensors, strict=True)
        pairs = [(own, new) for own, new in both if not _same_memory(own, new)]
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, new in pairs:  # one launch for all of one type
            to, source = by_dtype.setdefault(own.dtype, ([], []))
            to.append(own)
            source.append(new)
        for to, source in by_dtype.values():
            torch._foreach_copy_(to, source, non_blocking=True)  # pyright: ignore

    def are_here(self, tensors: list[Tensor]) -> bool:
        """Whether these are the graph's own, as `describe` found them: nothing is to be copied."""
        return all(map(_same_memory, self._tensors, tensors))

    def _hold(self, tensor: Tensor) -> Tensor:
        # What inference mode made cannot be written to outside of it.
        borrows = self._borrows and not tensor.is_inference()
        self._tensors.append(tensor if borrows else tensor.clone())
        return self._tensors[-1]


def rebuild(value: Any, place: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with other tensors.

    Args:
        value: as for `describe`; of a dataclass, what is no tensor is left out.
        place: what to put in each tensor's place; asked in the order of `describe`.
    """
    if isinstance(value, Tensor):
        return place(value)
    if isinstance(value, TensorDictBase):
        held = {key: rebuild(value.get(key), place) for key in _keys(value)}
        return TensorDict(held, batch_size=value.batch_size)
    if isinstance(value, Mapping):
        return {key: rebuild(value[key], place) for key in _keys(value)}
    if isinstance(value, (list, tuple)):
        parts = [rebuild(item, place) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value):
        # What is no data, such as the episodes of a rollout, no step may depend on.
        return type(value)(**{name: rebuild(part, place) for name, part in _data(value)})
    return value


def _same_memory(own: Tensor, new: Tensor) -> bool:
    """Of two tensors of one shape and type; views are made anew each time."""
    address = own.data_ptr()  # 0 of a tensor whose data lie elsewhere, which says nothing
    if own is new or not own.numel():
        return True
    return address != 0 and address == new.data_ptr() and own.stride() == new.stride()


def describe(value: Any, tensors: list[Tensor]) -> Any:
    """What decides whether two inputs can share a graph, as something to look up by.

    Args:
        value: tensors, numbers and flags in dicts, lists, tuples, TensorDicts and dataclasses.
        tensors: every tensor is appended, in an order that depends on the result alone.

    Returns:
        The structure, the tensors' shapes and dtypes, and everything else as it is.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return (value.shape, value.dtype)
    if isinstance(value, (TensorDictBase, Mapping)):
        return tuple((key, describe(value.get(key), tensors)) for key in _keys(value))
    if isinstance(value, (list, tuple)):
        return (type(value), *(describe(item, tensors) for item in value))
    if dataclasses.is_dataclass(value):
        return (type(value), *(describe(part, tensors) for _, part in _data(value)))
    return value


def _keys(value: Any) -> list[Any]:
    return sorted(value.keys())


def _data(value: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that hold tensors, by themselves or nested."""
    kinds = (Tensor, TensorDictBase, Mapping)
    parts = [(part.name, getattr(value, part.name)) for part in dataclasses.fields(value)]
    return [(name, part) for name, part in parts if isinstance(part, kinds)]
