"""What a device can do, asked in one place, and which one a run takes.

| question | answered by |
|---|---|
| can copies to it go on while the host does? | `DeviceKind.pins` |
| can it run a captured graph, and how is one made? | `DeviceKind.captures`, `DeviceKind.graphs` |
| how much memory is free there? | `DeviceKind.free_bytes` |
| where are its global random numbers? | `DeviceKind.rng_states` |
| is it there? | `DeviceKind.why_unusable` |
| does it work? | `DeviceKind.why_failing` |

Code asks `kind_of(device)`, and never compares a device's type with "cuda". A further kind of
device, such as a vendor's own or the stand-in of the tests, is made known by `add_kind`.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from redline.errors import DeviceError
from redline.plain_text import shown

T = TypeVar("T")
NAMES = "auto, cpu, cuda, cuda:N or mps"


class Graph(ABC):
    """Recorded work that is launched as a whole."""

    @abstractmethod
    def replay(self) -> None:
        """Do the work again, on the memory that it was recorded with."""


class Graphs(ABC):
    """How graphs are captured on a device; all of them share their memory."""

    @abstractmethod
    def warm_up(self, function: Callable[[], T]) -> T:
        """Call a function where captures take place, for libraries to get ready."""

    @abstractmethod
    def capture(
        self, function: Callable[[], T], generators: Sequence[torch.Generator]
    ) -> tuple[Graph, T]:
        """Record what a function does; whether it computes, too, is left open.

        Args:
            function: no host reads, fixed shapes; what it reads and writes stays in its place.
            generators: those on the device that it draws from, beside the global one.

        Returns:
            The graph, and what the function returned: every replay writes there.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of all graphs so far, in bytes."""


class DeviceKind:
    """What can be done with one type of device; this one can do nothing beyond tensors.

    Attributes:
        pins: whether it reads pinned host memory while the host goes on.
        captures: whether it runs captured graphs.
        has_float64: whether it computes in doubles.
    """

    pins = False
    captures = False
    has_float64 = True

    def why_unusable(self, device: torch.device) -> str | None:
        """Why a device cannot be used here; None: it can."""
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            return str(error).splitlines()[0]
        return None

    def why_failing(self, device: torch.device) -> str | None:
        """Why the first work on a device that is there fails; None: it does not.

        What it starts there stays until the process ends: not for who only looks at settings.
        """
        del device
        return None

    def describe(self, device: torch.device) -> str:
        """The device in a few words."""
        return str(device)

    def free_bytes(self, device: torch.device) -> int | None:
        """Memory that is free there; None: it does not say."""
        del device
        return None

    def synchronize(self, device: torch.device) -> None:
        """Wait for what the device was given."""
        del device

    def mark(self, device: torch.device) -> Callable[[], None]:
        """What waits until the device has done all that it was given so far."""
        del device
        return lambda: None

    def pinned(self, tensor: Tensor) -> Tensor:
        """A host tensor like this one, in memory that the device copies from by itself."""
        return tensor

    def rng_states(self) -> list[Tensor]:
        """The global generators of all devices of this type that this process has used."""
        return []

    def set_rng_states(self, states: Sequence[Tensor]) -> None:
        """Put them back to what `rng_states` gave."""

    def graphs(self, device: torch.device) -> Graphs:
        """How graphs are captured there.

        Raises:
            DeviceError: if it runs none.
        """
        raise DeviceError(f"{device} runs no captured graphs. Use --accelerate eager.")


class _Mps(DeviceKind):
    has_float64 = False

    def why_unusable(self, device: torch.device) -> str | None:
        if torch.backends.mps.is_available():
            return None
        built = torch.backends.mps.is_built()
        return "none found" if built else "this build of torch has no MPS"


class _Cuda(DeviceKind):
    pins = True
    captures = True

    def __init__(self) -> None:
        self._graphs: dict[torch.device, _CudaGraphs] = {}

    def why_unusable(self, device: torch.device) -> str | None:
        if not torch.cuda.is_available():
            return "this build of torch has no CUDA" if torch.version.cuda is None else "none found"
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            return f"there {'is' if count == 1 else 'are'} {count}, numbered from 0"
        return None

    def why_failing(self, device: torch.device) -> str | None:
        # Another process may hold it or its memory, and this torch may have no kernels for it.
        try:
            torch.zeros(1, device=device).add_(1).cpu()
        except (RuntimeError, AssertionError) as error:
            return str(error).splitlines()[0]
        return None

    def describe(self, device: torch.device) -> str:
        free = torch.cuda.mem_get_info(device)[0] / 2**30
        return f"{torch.cuda.get_device_name(device)}, {free:.0f} GiB free"

    def free_bytes(self, device: torch.device) -> int | None:
        return torch.cuda.mem_get_info(device)[0]

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def mark(self, device: torch.device) -> Callable[[], None]:
        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event.synchronize

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()

    def rng_states(self) -> list[Tensor]:
        # Asking starts CUDA, which takes memory there, and fails in a process that was forked.
        return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def set_rng_states(self, states: Sequence[Tensor]) -> None:
        if torch.cuda.is_available():  # the machine that saved them may have had more
            for index, state in enumerate(states[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, index)

    def graphs(self, device: torch.device) -> Graphs:
        exact = torch.device(
            "cuda", torch.cuda.current_device() if device.index is None else device.index
        )
        if exact not in self._graphs:
            self._graphs[exact] = _CudaGraphs(exact)
        return self._graphs[exact]


class _CudaGraphs(Graphs):
    """CUDA graphs, captured on one side stream, in one pool of memory.

    Graphs of one pool may not run at the same time. They do not: all are launched from one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._nbytes = device, 0
        self._stream: Any = torch.cuda.Stream(device)
        self._pool: Any = None

    def warm_up(self, function: Callable[[], T]) -> T:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = function()
        current.wait_stream(self._stream)
        return result

    def capture(
        self, function: Callable[[], T], generators: Sequence[torch.Generator]
    ) -> tuple[Graph, T]:
        before = torch.cuda.memory_reserved(self._device)
        try:
            graph, result = self._recorded(function, generators)
        except BaseException:
            self._recover(generators)
            raise
        self._nbytes += max(torch.cuda.memory_reserved(self._device) - before, 0)
        return _CudaGraph(graph), result

    def _recorded(
        self, function: Callable[[], T], generators: Sequence[torch.Generator]
    ) -> tuple[Any, T]:
        """The graph of a function, and what it returned; device and stream are as before, then."""
        here = torch.cuda.current_stream(self._device)
        # Up to torch 2.12 the memory of generators is made on the device that is chosen here.
        with torch.cuda.device(self._device), torch.cuda.stream(here):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph: Any = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            # A capture that fails does not leave its stream: the stream above is put back.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                result = function()
        return graph, result

    def _recover(self, generators: Sequence[torch.Generator]) -> None:
        """Let go of what a capture that failed holds on to, so that the process can go on.

        Up to torch 2.11 its pool goes on taking memory, and up to 2.12 its generators go on as if
        they were captured, until a capture that succeeds ends. Later ones do so by themselves.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(RuntimeError, AttributeError):  # it has let go by itself
                torch._C._cuda_endAllocateToPool(self._device.index, pool)
        with contextlib.suppress(RuntimeError):  # the first error is the one to tell
            self._recorded(lambda: torch.zeros(1, device=self._device), generators)
        self._pool = None

    @property
    def nbytes(self) -> int:
        return self._nbytes


class _CudaGraph(Graph):
    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()


_KINDS: dict[str, DeviceKind] = {"cpu": DeviceKind(), "cuda": _Cuda(), "mps": _Mps()}
_OTHER = DeviceKind()


def kind_of(device: torch.device | str) -> DeviceKind:
    """What can be done with a device."""
    return _KINDS.get(torch.device(device).type, _OTHER)


def widest_float(device: torch.device | str) -> torch.dtype:
    """float64, or float32 where a device does not compute in doubles."""
    return torch.float64 if kind_of(device).has_float64 else torch.float32


def kind_of_name(device: str) -> str:
    """The kind of a device by its name: cuda of cuda:1."""
    return device.partition(":")[0]


def add_kind(name: str, kind: DeviceKind) -> None:
    """Make a further type of device known, by torch's name for it."""
    _KINDS[name] = kind


def exact_device(device: torch.device | str) -> torch.device:
    """The device with its number: tensors of "cuda" say that they are on "cuda:0"."""
    return torch.empty(0, device=device).device


def global_rng_states() -> dict[str, list[Tensor]]:
    """Type of device -> the states of its global generators, where it has any."""
    states = {name: kind.rng_states() for name, kind in _KINDS.items()}
    return {name: found for name, found in states.items() if found}


def set_global_rng_states(states: dict[str, list[Tensor]]) -> None:
    """Put them back to what `global_rng_states` gave; a type that is not here is passed over."""
    for name, found in states.items():
        if name in _KINDS:
            _KINDS[name].set_rng_states(found)


def choose_device(asked: str) -> tuple[str, str]:
    """The device that a setting stands for, and why that one.

    "auto" takes the first CUDA device, if there is one that can be used, else the CPU. It does not
    take MPS: that is slower than the CPU for small networks, and captures nothing.

    Args:
        asked: auto, or a device by its name.
    """
    if asked != "auto":
        return asked, "as asked for"
    cuda = torch.device("cuda", 0)
    why_not = kind_of(cuda).why_unusable(cuda) or kind_of(cuda).why_failing(cuda)
    if why_not is None:
        return "cuda:0", kind_of(cuda).describe(cuda)
    return "cpu", f"no CUDA device can be used: {why_not}"


def require_device(asked: str, setting: str, *, resumed: bool = False, tried: bool = False) -> None:
    """Refuse a device that has no such name, or is not there.

    Args:
        asked: by its name; "auto" is always there.
        setting: which setting names it, for the message.
        resumed: whether a run that began there is to go on, likewise.
        tried: whether it is also refused where it does not work. That starts it.

    Raises:
        DeviceError: naming the reason and the fix.
    """
    if asked == "auto":
        return
    option = f"--set {setting}=cpu" if resumed else f"--{setting.replace('_', '-')} cpu"
    known = re.fullmatch(r"([a-z]+)(:\d+)?", asked)
    if known is None or known[1] not in _KINDS:
        raise DeviceError(f"{setting}={shown(asked)} is no device. Use {NAMES}.")
    if known[1] == "cpu" and known[2] is not None:  # torch takes a number, and means the same
        raise DeviceError(f"{setting}={asked!r}: the CPU has no number. Use {option}.")
    device = torch.device(asked)
    reason = kind_of(device).why_unusable(device)
    is_there = reason is None
    if is_there and tried:
        reason = kind_of(device).why_failing(device)
    if reason is None:
        return
    name = {"cuda": "CUDA", "mps": "MPS"}.get(device.type, device.type)
    instead = "use a build of torch and a machine that have it"
    if is_there:
        instead = "free it: another process may hold it or its memory"
    elif device.type == "cuda":
        instead = "install a CUDA build of torch on a machine with an NVIDIA GPU"
    raise DeviceError(
        f"{setting}={asked!r} was asked for, but no {name} device can be used ({reason}). Use "
        f"{option}, or {instead}."
    )
