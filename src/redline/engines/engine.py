"""How an algorithm's update is run.

An engine is asked for an algorithm and gives a callable that is used in place of
`algorithm.update`: the same batch in, the same metrics out, the same parameters, optimizer memory
and counters changed. It replaces and hooks nothing inside the algorithm.

| engine | runs |
|---|---|
| eager | `algorithm.update`, as it is written |
| cpu | hand-written kernels, for exactly known algorithms and networks on a CPU |
| compile | the written update, its `step` through torch.compile |
| cudagraph | the written update, its `step` as a captured CUDA graph |
| compile+cudagraph | compiled, then captured |

An engine serves an algorithm or says why not; then the run is eager. Anything that a user changed
is unknown to the kernels, and so runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from redline.engines.compile import CompiledStep, untraced_hook
from redline.engines.cudagraph import WARMUP_CALLS, CapturedStep
from redline.errors import ConfigError

MODES = ("eager", "cpu", "compile", "cudagraph", "compile+cudagraph")
Update: TypeAlias = Callable[[Any], Mapping[str, Any]]
# The first update shows most faults. Others show only once the target network has fallen behind,
# the temperature has changed or a schedule has moved.
_CHECKED_AT = (0, 1, 10, 100, 1000)
_NOT_CAPTURED_YET = 4 * WARMUP_CALLS  # updates after which every kind of step has been captured


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to run an algorithm's update.

    Attributes:
        name: one of `MODES`.
        reason: one sentence, why this one.
        update: batch -> metrics, in place of `algorithm.update`.
        compiled: the compiled step, which says what compiling cost.
        checked_at: updates, counted from 0, that are to be compared with eager ones.
    """

    name: str
    reason: str
    update: Update
    compiled: CompiledStep | None = None
    checked_at: tuple[int, ...] = ()


def choose_engine(algorithm: Any, requested: str, *, backend: str = "inductor") -> Engine:
    """The engine that a run uses.

    "auto" decides by what the algorithm, its networks and its device are, not by a measurement of
    its own: two runs of the same settings on the same kind of machine must take the same path.

    Args:
        algorithm: what learns; it is not changed.
        requested: one of `MODES`, or "auto".
        backend: of torch.compile.

    Raises:
        ConfigError: if there is no such mode, or it cannot run on the algorithm's device.
    """
    if requested not in (*MODES, "auto"):
        raise ConfigError(
            f"accelerate={requested!r} is not known. Use auto or one of {', '.join(MODES)}."
        )
    device = algorithm.device.type
    if "cudagraph" in requested and device != "cuda":
        raise ConfigError(
            f"accelerate={requested!r} captures CUDA graphs, and the learner's device is "
            f"{device!r}. Use --device cuda, or --accelerate "
            f"{'compile' if 'compile' in requested else 'auto'}."
        )
    if requested == "auto" and device != "cpu":
        reason = "captured graphs have not been proved on a GPU; ask for cudagraph"
        return Engine("eager", reason, algorithm.update)
    if requested == "eager":
        return Engine("eager", "as asked for", algorithm.update)
    if inner_of(algorithm) is not algorithm:
        return _around(algorithm, choose_engine(inner_of(algorithm), requested, backend=backend))
    if requested in ("auto", "cpu"):
        return _cpu(algorithm, requested)
    return _with_step(algorithm, requested, backend)


def _cpu(algorithm: Any, requested: str) -> Engine:
    try:
        from redline.engines.cpu import update_for
    except ImportError:
        update, reason = None, "the CPU kernels are not installed"
    else:
        update, reason = update_for(algorithm)
    if update is not None:
        return Engine("cpu", reason, update, checked_at=_CHECKED_AT)
    if requested == "auto" and _why_not_with_step(algorithm, "compile") is None:
        reason += "; --accelerate compile may be quicker (docs/speed.md)"
    return Engine("eager", reason, algorithm.update)


def _with_step(algorithm: Any, requested: str, backend: str) -> Engine:
    """The written update, its `step` compiled, captured or both."""
    name, why_not = type(algorithm).__name__, _why_not_with_step(algorithm, requested)
    if why_not is not None:
        return Engine("eager", why_not, algorithm.update)
    step: Any = algorithm.step
    compiled = None
    if "compile" in requested:
        step = compiled = CompiledStep(step, algorithm.device, backend)
    if "cudagraph" in requested:
        step = CapturedStep(step, algorithm.device)
    checked_at = (*_CHECKED_AT, _NOT_CAPTURED_YET) if "cudagraph" in requested else _CHECKED_AT
    update = twin(algorithm, step=step).update
    return Engine(requested, f"{name}.step as it is written", update, compiled, checked_at)


def _why_not_with_step(algorithm: Any, requested: str) -> str | None:
    """Why the `step` of an algorithm cannot be compiled or captured; None: it can."""
    name = type(algorithm).__name__
    if not callable(getattr(algorithm, "step", None)):
        return f"{name} has no `step` that could be compiled or captured"
    hook = untraced_hook(algorithm) if "compile" in requested else None
    if hook is not None:
        return f"{hook}, which torch.compile does not trace"
    try:
        twin(algorithm)
    except TypeError as error:  # such as an __init_subclass__ that wants arguments
        return f"no class can be derived from {name} ({error})"
    return None


def inner_of(algorithm: Any) -> Any:
    """The algorithm whose update an engine runs: the one inside, where there is one."""
    return getattr(algorithm, algorithm.inner) if getattr(algorithm, "inner", "") else algorithm


def _around(algorithm: Any, inner: Engine) -> Engine:
    """The written update of an algorithm that has another one inside, run by an engine."""
    if inner.name == "eager":
        return Engine("eager", inner.reason, algorithm.update)
    part = twin(inner_of(algorithm), update=inner.update)
    update = twin(algorithm, **{algorithm.inner: part}).update
    return Engine(inner.name, inner.reason, update, inner.compiled, inner.checked_at)


def twin(algorithm: Any, **parts: Any) -> Any:
    """An object with the same state as an algorithm, and other parts.

    The two share one dictionary of attributes: whatever either changes, both have changed. A part
    is found before the state is looked at, and cannot be set.

    Args:
        algorithm: what is written; it is not changed.
        parts: name -> what takes that name's place in the twin.
    """
    cls = type(algorithm)
    properties = {name: property(lambda _, part=part: part) for name, part in parts.items()}
    other = object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__, **properties}))
    other.__dict__ = algorithm.__dict__
    return other
