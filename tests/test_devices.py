"""Which device a setting stands for, and what is refused with which words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from redline.devices import (
    _CudaGraphs,
    choose_device,
    global_rng_states,
    kind_of,
    require_device,
    widest_float,
)
from redline.errors import DeviceError

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def test_names_that_are_no_devices_are_refused() -> None:
    for asked in ("gpu", "cuda:", "cuda:x", "CPU", ""):
        with pytest.raises(DeviceError, match=r"is no device\. Use auto, cpu, cuda, cuda:N or mps"):
            require_device(asked, "eval_device")


def test_the_cpu_has_no_number() -> None:
    with pytest.raises(DeviceError, match=r"'cpu:1': the CPU has no number\. Use --eval-dev"):
        require_device("cpu:1", "eval_device")
    with pytest.raises(DeviceError, match="Use --set device=cpu"):
        require_device("cpu:0", "device", resumed=True)


def test_the_cpu_and_auto_are_always_there() -> None:
    require_device("cpu", "device")
    require_device("auto", "device")


@no_cuda
@pytest.mark.parametrize("asked", ["cuda", "cuda:1"])
def test_a_missing_device_is_named_with_the_reason_and_the_fix(asked: str) -> None:
    with pytest.raises(DeviceError, match=rf"eval_device='{asked}' was asked for.*no CUDA device"):
        require_device(asked, "eval_device")
    with pytest.raises(DeviceError, match="Use --eval-device cpu, or install a CUDA build"):
        require_device(asked, "eval_device")


@no_cuda
def test_a_resumed_run_is_told_how_to_go_on_elsewhere() -> None:
    """Options of a new run are none beside `--resume`."""
    with pytest.raises(DeviceError, match="Use --set eval_device=cpu, or install a CUDA build"):
        require_device("cuda", "eval_device", resumed=True)


def test_states_of_devices_that_this_machine_has_not_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of a machine with four GPUs could not be resumed on one with two."""
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, i: taken.append((i, int(s[0]))))
    kind_of("cuda").set_rng_states([torch.tensor([n], dtype=torch.uint8) for n in (5, 6, 7, 8)])
    assert taken == [(0, 5), (1, 6)]


@no_cuda
def test_auto_explains_itself() -> None:
    chosen, reason = choose_device("auto")
    assert chosen == "cpu"
    assert reason.startswith("no CUDA device can be used: ")
    assert choose_device("cuda:1") == ("cuda:1", "as asked for")


def test_a_number_beyond_the_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_device("cuda:1", "device")
    with pytest.raises(DeviceError, match=r"there are 2, numbered from 0"):
        require_device("cuda:2", "device")


def test_auto_takes_the_first_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * 2**30, 4 * 2**30))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    assert choose_device("auto") == ("cuda:0", "Some GPU, 3 GiB free")


def test_what_the_cpu_can_do() -> None:
    cpu = kind_of("cpu")
    assert not cpu.captures
    assert not cpu.pins
    assert cpu.has_float64
    assert not kind_of("mps").has_float64
    assert (widest_float("cpu"), widest_float("mps")) == (torch.float64, torch.float32)
    assert kind_of("cuda:3").captures
    with pytest.raises(DeviceError, match="cpu runs no captured graphs"):
        cpu.graphs(torch.device("cpu"))


@no_cuda
def test_without_devices_there_are_no_generators_to_save() -> None:
    assert global_rng_states() == {}


def test_a_cuda_device_that_another_process_holds_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is there, and everything that is asked of it fails: `auto` ended in a traceback."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nCUDA kernel errors ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    monkeypatch.setattr(torch, "zeros", fail)
    reason = "CUDA error: all CUDA-capable devices are busy"
    assert choose_device("auto") == ("cpu", f"no CUDA device can be used: {reason}")
    require_device("cuda", "device")  # of a sweep, whose own process is not to start it
    with pytest.raises(DeviceError, match=rf"\({reason}\)\. Use --device cpu, or free it"):
        require_device("cuda", "device", tried=True)


def test_generators_of_cuda_that_was_never_used_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a child that was forked off a process with CUDA, the first checkpoint ended the run."""

    def fail() -> Any:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", fail)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert kind_of("cuda").rng_states() == []
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.ones(2)])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert kind_of("cuda").rng_states()[0].tolist() == [1.0, 1.0]


class OldCapture:
    """What a capture of torch 2.11 does to its process, on two pretended GPUs.

    Attributes:
        device: the current one.
        streams: GPU -> its current stream.
        recording: pools that take memory.
        capturing: generators that draw for a graph.
        registered_on: the current device whenever a generator was registered.
    """

    def __init__(self) -> None:
        self.device, self.streams = 0, {0: "main", 1: "main"}
        self.recording: list[tuple[int, int]] = []
        self.capturing: set[Any] = set()
        self.registered_on: list[int] = []
        self.pools: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def at(self, device: torch.device) -> Iterator[None]:
        before, self.device = self.device, device.index
        try:
            yield
        finally:
            self.device = before

    def stream(self, stream: tuple[int, str]) -> Any:
        return _Within(self, *stream)

    def new_pool(self) -> tuple[int, int]:
        self.pools.append((0, len(self.pools) + 1))
        return self.pools[-1]

    def end(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError("not currently recording to mempool_id")
        self.recording.remove(pool)

    def graph(self, graph: Any, pool: tuple[int, int], stream: tuple[int, str]) -> Any:
        return _Capture(self, graph.generators, pool, self.stream(stream))

    def new_graph(self) -> Any:
        graph = SimpleNamespace(generators=[], replay=lambda: None)

        def register(generator: Any) -> None:
            self.registered_on.append(self.device)
            graph.generators.append(generator)

        graph.register_generator_state = register
        return graph

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.cuda, "Stream", lambda device: (device.index, "side"))
        patch.setattr(torch.cuda, "current_stream", lambda d: (d.index, self.streams[d.index]))
        patch.setattr(torch.cuda, "device", self.at)
        patch.setattr(torch.cuda, "stream", self.stream)
        patch.setattr(torch.cuda, "graph", self.graph)
        patch.setattr(torch.cuda, "CUDAGraph", self.new_graph)
        patch.setattr(torch.cuda, "graph_pool_handle", self.new_pool)
        patch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", self.end, raising=False)
        patch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))


class _Within:
    def __init__(self, cuda: OldCapture, device: int, name: str) -> None:
        self._cuda, self._device, self._name = cuda, device, name

    def __enter__(self) -> None:
        cuda = self._cuda
        self._before = (cuda.device, cuda.streams[self._device])
        cuda.device, cuda.streams[self._device] = self._device, self._name

    def __exit__(self, *_: object) -> None:
        self._cuda.device, self._cuda.streams[self._device] = self._before


class _Capture:
    """Ends by an error after an error within, and leaves all as it is then."""

    def __init__(self, cuda: OldCapture, generators: list[Any], pool: Any, within: Any) -> None:
        self._cuda, self._generators, self._pool, self._within = cuda, generators, pool, within

    def __enter__(self) -> None:
        if self._cuda.recording:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self._within.__enter__()
        self._cuda.recording.append(self._pool)
        self._cuda.capturing.update(self._generators)

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            raise RuntimeError("operation failed due to a previous error during capture")
        self._cuda.recording.remove(self._pool)
        self._cuda.capturing.difference_update(self._generators)
        self._within.__exit__()


def _fail() -> Any:
    raise RuntimeError("operation not permitted when stream is capturing")


def test_generators_are_registered_on_the_device_that_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to torch 2.12 their state is made on the current device, which stayed cuda:0."""
    cuda = OldCapture()
    cuda.install(monkeypatch)
    seen: list[tuple[int, str]] = []
    generator: Any = object()
    graphs = _CudaGraphs(torch.device("cuda:1"))
    graphs.capture(lambda: seen.append((cuda.device, cuda.streams[1])), [generator])
    assert cuda.registered_on == [1]
    assert seen == [(1, "side")]
    assert (cuda.device, cuda.streams) == (0, {0: "main", 1: "main"})


def test_a_capture_that_fails_lets_go_of_all_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream stayed the graph's, draws failed outside of graphs, and so did every capture."""
    cuda = OldCapture()
    cuda.install(monkeypatch)
    generator: Any = object()
    graphs = _CudaGraphs(torch.device("cuda:1"))
    graphs.capture(lambda: None, [generator])
    graphs.capture(lambda: None, [generator])
    assert len(cuda.pools) == 1  # which graphs share
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graphs.capture(_fail, [generator])
    assert (cuda.device, cuda.streams) == (0, {0: "main", 1: "main"})
    assert cuda.capturing == set()
    assert cuda.recording == []
    used: list[tuple[int, int]] = []
    graphs.capture(lambda: used.extend(cuda.recording), [generator])
    assert used == [cuda.pools[-1]] != [cuda.pools[0]]


@pytest.mark.parametrize("number", [0, 1])
def test_a_gpu_goes_on_after_a_capture_that_failed(number: int) -> None:
    """Draws outside of graphs, the graph before and one after it all give the same numbers."""
    if torch.cuda.device_count() <= number:
        pytest.skip("no such GPU")
    device = torch.device("cuda", number)
    generator, total = torch.Generator(device), torch.zeros(4, device=device)
    graphs = kind_of(device).graphs(device)

    def draw() -> torch.Tensor:
        return total.copy_(torch.rand(4, device=device, generator=generator))

    graphs.warm_up(draw)
    before, _ = graphs.capture(draw, [generator])
    place = (torch.cuda.current_device(), torch.cuda.current_stream(device))
    with pytest.raises(RuntimeError):
        graphs.capture(lambda: draw().sum().item(), [generator])
    assert (torch.cuda.current_device(), torch.cuda.current_stream(device)) == place
    torch.rand(1, device=device)  # of the global generator, which every graph has
    after, _ = graphs.capture(draw, [generator])
    drawn: list[list[float]] = []
    for launch in (draw, before.replay, after.replay):
        generator.manual_seed(5)
        total.zero_()
        launch()
        drawn.append(total.tolist())
    assert drawn[0] == drawn[1] == drawn[2] != [0.0] * 4
