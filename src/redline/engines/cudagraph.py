"""Steps as captured CUDA graphs.

A captured step is recorded once, with the memory that it reads and writes, and then launched as a
whole: the host does nothing per operator. What it reads must lie in the same place each time, so
inputs are copied into buffers of its own; what it returns is copied out, for the next launch
writes over it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map

WARMUP_CALLS = 3  # before a capture: libraries choose their algorithms and get their memory


class CapturedStep:
    """A step as CUDA graphs, one for each set of flags, with input buffers of their own.

    The first calls run eagerly on a side stream, as capturing asks for; they are real steps.
    A replay copies the inputs into the graph's buffers and launches it, then copies what it
    returns; nothing waits for the device.

    Args:
        step: no host reads, fixed shapes; every tensor it changes stays where it is.
        device: a CUDA device.
    """

    def __init__(self, step: Callable[..., Any], device: torch.device) -> None:
        self.step, self._device = step, device
        self._stream = torch.cuda.Stream(device)
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, StaticInputs, Any]] = {}
        self._pool: Any = None

    def __call__(self, *inputs: Any) -> Any:
        """Run eagerly, capture, or replay."""
        tensors: list[Tensor] = []
        key = describe(inputs, tensors)
        if key in self._graphs:
            graph, held, result = self._graphs[key]
            held.load(tensors)
            graph.replay()
            return _copied(result)
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] <= WARMUP_CALLS:
            return self._on_side_stream(inputs)
        return self._capture(key, inputs)

    def _on_side_stream(self, inputs: tuple[Any, ...]) -> Any:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self.step(*inputs)
        current.wait_stream(self._stream)
        return result

    def _capture(self, key: Any, inputs: tuple[Any, ...]) -> Any:
        held = StaticInputs(inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = self.step(*held.values)
        self._pool = self._pool or graph.pool()
        self._graphs[key] = (graph, held, result)
        graph.replay()  # capturing records; only this computes
        return _copied(result)


def _copied(result: Any) -> Any:
    """Results in memory that no replay writes to."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, result)


class StaticInputs:
    """Inputs in memory that stays, for a captured step to read from.

    Args:
        inputs: the first ones, which are copied; tensors, and whatever `describe` looks into.

    Attributes:
        values: of the same structure; `load` changes their tensors.
    """

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self._tensors: list[Tensor] = []
        self.values: tuple[Any, ...] = tuple(self._hold(value) for value in inputs)

    def load(self, tensors: list[Tensor]) -> None:
        """Copy other inputs in, as `describe` found them."""
        torch._foreach_copy_(self._tensors, tensors, non_blocking=True)  # pyright: ignore

    def _hold(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self._tensors.append(value.clone())
            return self._tensors[-1]
        if isinstance(value, TensorDictBase):
            held = {key: self._hold(value.get(key)) for key in _keys(value)}
            return TensorDict(held, batch_size=value.batch_size)
        if isinstance(value, Mapping):
            return {key: self._hold(value[key]) for key in _keys(value)}
        if isinstance(value, (list, tuple)):
            parts = [self._hold(item) for item in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if dataclasses.is_dataclass(value):
            # What is no data, such as the episodes of a rollout, no step may depend on.
            return type(value)(**{name: self._hold(part) for name, part in _data(value)})
        return value


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
