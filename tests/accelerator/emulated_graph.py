"""What a captured graph means, emulated: operators are recorded, and run again on the same memory.

Behind the interface that CUDA graphs are behind (`redline.devices.Graphs`), so the code under test
is the code that runs on CUDA. Python does not run again at a replay. So what breaks on CUDA breaks
here: outputs kept by reference, counts kept in Python, tensors made anew, branches on values; and
what CUDA refuses while capturing is refused: read-backs, host memory, unknown generators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from redline.devices import DeviceKind, Graph, Graphs, add_kind, kind_of
from tests.accelerator import stand_in
from tests.accelerator.stand_in import StandInTensor, leaves

T = TypeVar("T")
_READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2")


class EmulatedGraph(TorchDispatchMode, Graph):
    """Records what is called below it."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.operators: list[tuple[Callable[[], Any], list[Any]]] = []
        self.nbytes = 0
        self._registered = {generator._cdata for generator in generators}
        self._in_inference = False

    def require_registered(self, generator: Any, name: str) -> None:
        """Refuse what would draw the same numbers at every replay."""
        if generator._cdata not in self._registered:
            raise RuntimeError(f"{name}: a generator that is not registered with the graph")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() in _READS:
            raise RuntimeError(f"{func.name()}: not permitted while a graph is captured")
        if kwargs.get("generator") is not None:
            self.require_registered(kwargs["generator"], func.name())
        self._in_inference |= torch.is_inference_mode_enabled()
        result = func(*args, **kwargs)
        made = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        # What was looked at when it was recorded is not looked at again: on the numbers alone.
        raw = stand_in.raw_call(func, args, kwargs)
        again = partial(func, *args, **kwargs) if raw is None else partial(func, *raw[0], **raw[1])
        self.operators.append((again, made))
        self.nbytes += sum(leaf.nbytes for leaf in made)
        return result

    def replay(self) -> None:
        """Run all operators again, and let their results be where they were."""
        stand_in.device.launch("graph")
        mode = torch.inference_mode() if self._in_inference else torch.no_grad()
        with mode, _quiet():
            for again, results in self.operators:
                tensors = [leaf for leaf in leaves(again()) if isinstance(leaf, Tensor)]
                for kept, made in zip(results, tensors, strict=True):
                    if kept is not made:
                        _put(_raw(kept), _raw(made))


def _raw(tensor: Tensor) -> Tensor:
    return tensor.raw if isinstance(tensor, StandInTensor) else tensor


def _put(kept: Tensor, made: Tensor) -> None:
    if kept.data_ptr() != made.data_ptr():
        kept.copy_(made)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The host launches nothing while a graph runs."""
    before, stand_in.device.replaying = stand_in.device.replaying, True
    try:
        yield
    finally:
        stand_in.device.replaying = before


@contextlib.contextmanager
def _host_reads_refused() -> Iterator[None]:
    """A CPU tensor's numbers are read without any operator, which no graph would record."""

    def refuse(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"numbers of {tuple(tensor.shape)} read while a graph is captured")

    names = ("tolist", "numpy", "__array__")
    own = {name: vars(torch.Tensor)[name] for name in names if name in vars(torch.Tensor)}
    for name in names:
        setattr(torch.Tensor, name, refuse)
    try:
        yield
    finally:
        for name in names:
            setattr(torch.Tensor, name, own[name]) if name in own else delattr(torch.Tensor, name)


class EmulatedGraphs(Graphs):
    """Captures by recording, on whatever device the tensors are."""

    def __init__(self) -> None:
        self._nbytes = 0

    def warm_up(self, function: Callable[[], T]) -> T:
        return function()

    def capture(
        self, function: Callable[[], T], generators: Sequence[torch.Generator]
    ) -> tuple[Graph, T]:
        graph = EmulatedGraph(generators)
        stand_in.device.capture = graph
        try:
            with graph, _host_reads_refused():
                result = function()
        finally:
            stand_in.device.capture = None
        self._nbytes += graph.nbytes
        return graph, result

    @property
    def nbytes(self) -> int:
        return self._nbytes


class EmulatedKind(DeviceKind):
    """A device that captures and pins, as CUDA does."""

    pins = True
    captures = True

    def __init__(self) -> None:
        self._graphs = EmulatedGraphs()

    def synchronize(self, device: torch.device) -> None:
        stand_in.device.note("a wait for the device")

    def graphs(self, device: torch.device) -> Graphs:
        return self._graphs


@contextlib.contextmanager
def installed() -> Iterator[stand_in.StandInDevice]:
    """The stand-in accelerator, with emulated graphs."""
    stand_in.install()
    add_kind(stand_in.NAME, EmulatedKind())
    with stand_in.own_generators():
        yield stand_in.device


@contextlib.contextmanager
def capturing_on_the_cpu() -> Iterator[None]:
    """Let the CPU capture for a while, where numbers can be compared to the bit."""
    before = kind_of("cpu")
    kind = EmulatedKind()
    kind.pins = False
    add_kind("cpu", kind)
    try:
        yield
    finally:
        add_kind("cpu", before)
