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

import contextlib
import dataclasses
import inspect
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.engines.cpu.derive import derived
from redline.engines.cpu.own_step import OwnStep
from redline.errors import ConfigError

MODES = ("eager", "derived", "compile", "cudagraph", "compile+cudagraph")
_WARMUP_CALLS = 3  # before a capture: libraries choose their algorithms and get their memory


class CompiledStep(OwnStep):
    """A step through torch.compile, which counts what that cost.

    Args:
        step: what to compile.
        whole: whether it must be one graph; else graph breaks are counted.
        backend: of torch.compile.

    Attributes:
        compile_s: seconds of the calls in which something was compiled.
        graphs: graphs compiled so far.
        graph_breaks: places where compilation gave way to Python.
        recompilations: times that inputs of shapes and flags seen before were compiled again.
    """

    def __init__(self, step: Callable[..., Any], *, whole: bool, backend: str = "inductor") -> None:
        from torch._dynamo.utils import counters
        from torch._inductor import config

        # The compiler's pool of processes takes longer to start than one step to compile, and
        # on a busy machine has been seen to wait for ever.
        config.compile_threads = 1
        keep_compiled_code()
        self._counters = counters
        self._step = torch.compile(step, fullgraph=whole, dynamic=False, backend=backend)
        self.compile_s, self.graphs, self.graph_breaks, self.recompilations = 0.0, 0, 0, 0
        self._seen: set[Any] = set()

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
            key = describe(inputs, [])
            self.recompilations += key in self._seen
            self._seen.add(key)
        return result

    def __str__(self) -> str:
        return (
            f"compiled {self.graphs} graphs in {self.compile_s:.1f} s, "
            f"{self.graph_breaks} graph breaks, {self.recompilations} recompilations"
        )


def keep_compiled_code() -> None:
    """Let compiled code outlive a restart of the machine, for the next run to start quickly.

    TORCHINDUCTOR_CACHE_DIR, where it is set, says where; else it is the user's cache directory,
    or where that cannot be written the temporary one that the compiler takes by itself.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base) / "redline" / "compiled"
    if not directory.is_absolute():  # a user without a home
        return
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)


class CapturedStep(OwnStep):
    """A step as CUDA graphs, one for each set of flags, with input buffers of their own.

    The first calls run eagerly on a side stream, as capturing asks for; they are real steps.
    A replay copies the inputs into the graph's buffers and launches it; nothing waits for the
    device. What it returns is overwritten by the next replay.

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
            return result
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] <= _WARMUP_CALLS:
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
        return result


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


def compiled_step(algorithm: Any) -> CompiledStep | None:
    """What an accelerated algorithm's step compiles, which says what that cost; None if nothing."""
    step = getattr(algorithm, "learner", algorithm).step
    if isinstance(step, CapturedStep):
        step = step.step
    return step if isinstance(step, CompiledStep) else None


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
        raise _unknown(requested)
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


def _unknown(mode: str) -> ConfigError:
    return ConfigError(f"accelerate={mode!r} is not known. Use auto or one of {', '.join(MODES)}.")


def _set_hooks(algorithm: Any, by_hand: Any, mode: str) -> None:
    """Let an on-policy algorithm prepare its rollouts, and make its passes, as a mode wants."""
    if hasattr(algorithm, "prepare"):
        algorithm.prepare = getattr(by_hand, "prepare", None)
    if hasattr(algorithm, "accelerated_passes"):
        passes = getattr(by_hand, "passes", None)
        algorithm.accelerated_passes = passes if mode == "derived" else None


def accelerate(update: Any, mode: str, *, backend: str = "inductor") -> Any:
    """Make an update faster.

    Args:
        update: a learner, or its `update`: the learner's `step` is replaced, in place. Or a
            function of one's own, of tensors and flags in the structures that `describe` looks
            into; to be captured it must not read from the device, nor draw what changes from call
            to call by anything but torch's own generator.
        mode: one of `MODES`, or "auto". Of a function nothing is known: it has no derived
            gradients, and "auto" leaves it as it is.
        backend: of torch.compile.

    Returns:
        Of a learner the new `step`; a `CompiledStep` says what compiling cost. Of its `update` the
        same method. Of a function what to call in its place.

    Raises:
        ConfigError: if the mode cannot serve the device, the networks or the function.
    """
    learner = getattr(update, "__self__", update)
    learner = getattr(learner, "learner", learner)
    if not (hasattr(learner, "step") and hasattr(learner, "update")):
        return _accelerated_function(update, mode, backend)
    step = _accelerated_step(learner, mode, backend)
    return update if inspect.ismethod(update) else step


def _accelerated_function(function: Callable[..., Any], mode: str, backend: str) -> Any:
    if mode not in (*MODES, "auto"):
        raise _unknown(mode)
    if mode == "derived":
        raise ConfigError(
            f"accelerate='derived' is for learners whose gradients Redline has by hand, and "
            f"{function!r} is a function. Use 'compile', or 'cudagraph' on CUDA."
        )
    if "cudagraph" in mode and not torch.cuda.is_available():
        raise ConfigError(
            f"accelerate={mode!r} captures CUDA graphs, and there is no CUDA device. Use "
            f"{'compile' if 'compile' in mode else 'eager'!r}."
        )
    if "compile" in mode:
        function = CompiledStep(function, whole=False, backend=backend)
    if "cudagraph" in mode:
        function = CapturedStep(function, torch.device("cuda", torch.cuda.current_device()))
    return function


def _accelerated_step(algorithm: Any, mode: str, backend: str) -> Any:
    mode, _ = choose_mode(algorithm, mode)
    step, by_hand = algorithm.step, None if mode == "eager" else derived(algorithm)
    _set_hooks(algorithm, by_hand, mode)
    if mode == "eager":
        return step
    if by_hand is not None:
        step = by_hand.step
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
