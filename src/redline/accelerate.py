"""The only place for torch.compile and CUDA graphs.

| mode | the update's `step` runs |
|---|---|
| eager | as written, differentiated by autograd |
| derived | with gradients derived by hand, where the networks are plain perceptrons |
| compile | through torch.compile; the derived one, in one graph, where there is one |
| cudagraph | eagerly three times, then as one captured CUDA graph |
| compile+cudagraph | compiled, then captured |

`step` is the part of an update that depends on nothing but tensors and flags: what is random
is drawn before it, counts are kept outside. All modes change the same parameters and
optimisers, in the same way to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from redline.algos.derived import derived
from redline.data import map_leaves
from redline.errors import ConfigError

MODES = ("eager", "derived", "compile", "cudagraph", "compile+cudagraph")
_WARMUP_CALLS = 3  # before a capture: libraries choose their algorithms and get their memory


class CompiledStep:
    """A step through torch.compile, which counts what that cost.

    Args:
        step: what to compile.
        whole: whether it must be one graph; else graph breaks are counted.
        backend: of torch.compile.

    Attributes:
        compile_s: seconds of the calls in which something was compiled.
        graphs: graphs compiled so far; more than one per set of flags is a recompilation.
        graph_breaks: places where compilation gave way to Python.
    """

    def __init__(self, step: Callable[..., Any], *, whole: bool, backend: str = "inductor") -> None:
        from torch._dynamo.utils import counters
        from torch._inductor import config

        # The compiler's pool of processes takes longer to start than one step to compile, and
        # on a busy machine has been seen to wait for ever.
        config.compile_threads = 1
        self._counters = counters
        self._step = torch.compile(step, fullgraph=whole, dynamic=False, backend=backend)
        self.compile_s, self.graphs, self.graph_breaks = 0.0, 0, 0

    def __call__(self, *inputs: Any) -> Any:
        """Run, compiling first where these shapes and flags are new."""
        graphs = self._counters["stats"]["unique_graphs"]
        breaks = self._counters["graph_break"].total()
        begin = time.perf_counter()
        result = self._step(*inputs)
        compiled = self._counters["stats"]["unique_graphs"] - graphs
        if compiled:
            self.compile_s += time.perf_counter() - begin
            self.graphs += compiled
            self.graph_breaks += self._counters["graph_break"].total() - breaks
        return result


class CapturedStep:
    """A step as CUDA graphs, one for each set of flags, with input buffers of their own.

    The first calls run eagerly on a side stream, as capturing asks for; they are real steps.
    A replay copies the inputs into the graph's buffers and launches it; nothing waits for the
    device. What it returns is overwritten by the next replay.

    Args:
        step: no host reads, fixed shapes; every tensor it changes stays where it is.
        device: a CUDA device.
    """

    def __init__(self, step: Callable[..., Any], device: torch.device) -> None:
        self._step, self._device = step, device
        self._stream = torch.cuda.Stream(device)
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}
        self._pool: Any = None

    def __call__(self, *inputs: Any) -> Any:
        """Run eagerly, capture, or replay."""
        tensors, key = _split(inputs)
        if key in self._graphs:
            graph, buffers, result = self._graphs[key]
            torch._foreach_copy_(buffers, tensors, non_blocking=True)  # pyright: ignore
            graph.replay()
            return result
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] <= _WARMUP_CALLS:
            return self._on_side_stream(inputs)
        return self._capture(key, inputs)

    def _on_side_stream(self, inputs: tuple[Any, ...]) -> Any:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._step(*inputs)
        current.wait_stream(self._stream)
        return result

    def _capture(self, key: Any, inputs: tuple[Any, ...]) -> Any:
        buffers: list[Tensor] = []
        held = tuple(_held(value, buffers) for value in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = self._step(*held)
        self._pool = self._pool or graph.pool()
        self._graphs[key] = (graph, buffers, result)
        graph.replay()  # capturing records; only this computes
        return result


def _split(inputs: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    """All tensors in the inputs, and a key of their shapes and of everything else."""
    flat, spec = pytree.tree_flatten(_plain(inputs))
    tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
    rest = tuple(tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in flat)
    return tensors, (spec, rest)


def _held(value: Any, buffers: list[Tensor]) -> Any:
    """A copy of the inputs in memory that stays; its tensors are appended to `buffers`."""

    def hold(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        buffers.append(leaf.clone())
        return buffers[-1]

    return pytree.tree_map(hold, _plain(value))


def _plain(value: Any) -> Any:
    """TensorDicts as dicts, at any depth of lists and tuples."""
    if isinstance(value, (list, tuple)):
        parts = [_plain(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return map_leaves(lambda leaf: leaf, value)


def choose_mode(algorithm: Any, requested: str) -> tuple[str, str]:
    """The mode that a run uses, and why.

    "auto" decides by what the algorithm's networks and device are, not by a measurement of its
    own: two runs of the same settings on the same kind of machine must take the same path.
    benchmarks/results/train holds the measurements behind it.

    Args:
        algorithm: the learner.
        requested: one of `MODES`, or "auto".

    Raises:
        ConfigError: if the mode cannot serve this device or these networks.
    """
    algorithm = getattr(algorithm, "learner", algorithm)
    device = algorithm.device
    has_derived = derived(algorithm) is not None
    if requested == "auto":
        if device.type == "cuda":
            return "eager", "captured graphs have not been proved on a GPU; ask for cudagraph"
        if has_derived:
            return "derived", "the networks are plain perceptrons on a CPU"
        return "eager", "on a CPU large layers dominate, and compiling them gains nothing"
    if requested not in MODES:
        raise ConfigError(
            f"accelerate={requested!r} is not known. Use auto or one of {', '.join(MODES)}."
        )
    if "cudagraph" in requested and device.type != "cuda":
        raise ConfigError(
            f"accelerate={requested!r} captures CUDA graphs, and the learner's device is "
            f"{device.type!r}. Use --device cuda, or --accelerate "
            f"{'compile' if 'compile' in requested else 'auto'}."
        )
    if requested == "derived" and not has_derived:
        raise ConfigError(
            "accelerate='derived' needs plain perceptrons (ReLU or tanh, no dropout, layer "
            "normalization, recurrence or convolution), and this algorithm's networks are not. "
            "Use --accelerate auto."
        )
    return requested, "as asked for"


def accelerate(algorithm: Any, mode: str, *, backend: str = "inductor") -> Any:
    """Make an algorithm's update faster, in place.

    Args:
        algorithm: the learner; its `step` is replaced.
        mode: one of `MODES`.
        backend: of torch.compile.

    Returns:
        The new `step`; a `CompiledStep` says what compiling cost.

    Raises:
        ConfigError: if the mode cannot serve the device or the networks.
    """
    mode, _ = choose_mode(algorithm, mode)
    algorithm = getattr(algorithm, "learner", algorithm)
    step = algorithm.step
    if mode == "eager":
        return step
    by_hand = derived(algorithm)
    if by_hand is not None:
        step = by_hand.step
        if hasattr(by_hand, "prepare"):
            algorithm.prepare = by_hand.prepare
    if "compile" in mode:
        if by_hand is not None:
            # Made anew in the graph: memory made outside, seen as whole and in parts, is
            # what the compiler cannot follow.
            kind: Any = type(by_hand)

            def step(*inputs: Any) -> Any:
                return kind.of(algorithm).step(*inputs)

        step = CompiledStep(step, whole=by_hand is not None, backend=backend)
    if "cudagraph" in mode:
        step = CapturedStep(step, algorithm.device)
    algorithm.step = step
    return step
