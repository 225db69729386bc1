"""How an algorithm's update is run.

An engine is asked for an algorithm and gives a callable that is used in place of
`algorithm.update`: the same batch in, the same metrics out, the same parameters, optimizer memory
and counters changed. It replaces and hooks nothing inside the algorithm.

| engine | runs |
|---|---|
| eager | `algorithm.update`, as it is written |
| cpu | hand-written kernels, for exactly known algorithms and networks on a CPU |
| compile | the written update, its `step` through torch.compile |
| cudagraph | the written update as one captured graph: its `learn`, else its `step` |
| compile+cudagraph | its `step` compiled, then captured |

An engine serves an algorithm or says why not; then the run is eager. Anything that a user changed
is unknown to the kernels, and so runs as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from redline.algos.algorithm import Algorithm
from redline.devices import kind_of
from redline.engines.compile import CompiledStep, untraced_hook
from redline.engines.cudagraph import CapturedStep
from redline.errors import ConfigError

MODES = ("eager", "cpu", "compile", "cudagraph", "compile+cudagraph")
ASKED_FOR = "as asked for"  # why an update is eager that `auto` had no say in
Update: TypeAlias = Callable[[Any], Mapping[str, Any]]
# The first update shows most faults. Others show only once the target network has fallen behind,
# the temperature has changed or a schedule has moved.
_CHECKED_AT = (0, 1, 10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to run an algorithm's update.

    Attributes:
        name: one of `MODES`.
        reason: one sentence, why this one.
        update: batch -> metrics, in place of `algorithm.update`.
        compiled: the compiled step, which says what compiling cost.
        checked_at: updates, counted from 0, that are to be compared with eager ones.
        captured: the captured step, which says how many graphs there are.
        learn: what of a whole update is captured, (batch, turns) -> metrics, with its step
            compiled or not; None: less than that is, or a user's own update is around it.
    """

    name: str
    reason: str
    update: Update
    compiled: CompiledStep | None = None
    checked_at: tuple[int, ...] = ()
    captured: CapturedStep | None = None
    learn: Callable[[Any, Any], dict[str, Any]] | None = None


def choose_engine(
    algorithm: Any, requested: str, *, backend: str = "inductor", borrows: bool = False
) -> Engine:
    """The engine that a run uses.

    "auto" decides by what the algorithm, its networks and its device are, not by a measurement of
    its own: two runs of the same settings on the same kind of machine must take the same path.

    Args:
        algorithm: what learns; it is not changed.
        requested: one of `MODES`, or "auto".
        backend: of torch.compile.
        borrows: whether a captured update may read its batches where they are; see `CapturedStep`.

    Raises:
        ConfigError: if there is no such mode, or it cannot run on the algorithm's device.
    """
    if requested not in (*MODES, "auto"):
        raise ConfigError(
            f"accelerate={requested!r} is not known. Use auto or one of {', '.join(MODES)}."
        )
    device = algorithm.device.type
    captures = kind_of(algorithm.device).captures
    if "cudagraph" in requested and not captures:
        raise ConfigError(
            f"accelerate={requested!r} captures CUDA graphs, and the learner's device is "
            f"{device!r}. Give device='cuda', or accelerate="
            f"{'compile' if 'compile' in requested else 'auto'!r}."
        )
    if requested == "eager":
        return Engine("eager", ASKED_FOR, algorithm.update)
    if requested == "auto" and device != "cpu":
        if not captures:
            reason = f"{device} runs no captured graphs"
            return Engine("eager", reason, algorithm.update)
        requested = "cudagraph"
    if "cudagraph" in requested and _has_learn(algorithm):
        return _with_learn(algorithm, requested, backend, borrows=borrows)
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
    captured = None
    if "cudagraph" in requested:
        step = captured = CapturedStep(step, algorithm, is_compiled=compiled is not None)
    update = twin(algorithm, step=step).update
    reason = f"{name}.step as it is written"
    return Engine(requested, reason, update, compiled, _CHECKED_AT, captured)


def _has_learn(algorithm: Any) -> bool:
    """Whether the whole update can be captured, as `algos/algorithm.py` cuts it."""
    return isinstance(algorithm, Algorithm) and callable(getattr(algorithm, "learn", None))


def _with_learn(algorithm: Any, requested: str, backend: str, *, borrows: bool) -> Engine:
    """The whole update as one graph, its `step` compiled or not."""
    name, body, compiled = type(algorithm).__name__, algorithm, None
    if "compile" in requested:
        core = inner_of(algorithm)
        why_not = _why_not_with_step(core, requested)
        if why_not is not None:
            return Engine("eager", why_not, algorithm.update)
        compiled = CompiledStep(core.step, algorithm.device, backend)
        body = twin(core, step=compiled)
        if core is not algorithm:
            body = twin(algorithm, **{algorithm.inner: body})
    captured = CapturedStep(
        body.learn, algorithm, borrows=borrows, is_compiled=compiled is not None
    )
    reason = f"{name}.learn, the whole update, as one graph"
    learn = None
    if _defined_here(algorithm, "update"):
        learn = body.learn

        def update(batch: Any) -> Mapping[str, Any]:
            return algorithm.reported(captured(batch, algorithm.begin_update()))
    else:  # a user's own, around that of the class it is derived from
        update = twin(algorithm, learn=captured).update
    return Engine(requested, reason, update, compiled, _CHECKED_AT, captured, learn)


def _defined_here(algorithm: Any, method: str) -> bool:
    """Whether a method is Redline's, not a user's in its place."""
    owner = next(cls for cls in type(algorithm).__mro__ if method in vars(cls))
    return owner.__module__.startswith("redline.")


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
    """The algorithm whose update an engine runs: the innermost one."""
    while getattr(algorithm, "inner", ""):
        algorithm = getattr(algorithm, algorithm.inner)
    return algorithm


def _around(algorithm: Any, inner: Engine) -> Engine:
    """The written update of an algorithm that has another one inside, run by an engine."""
    if inner.name == "eager":
        return Engine("eager", inner.reason, algorithm.update)
    part = twin(inner_of(algorithm), update=inner.update)
    update = twin(algorithm, **{algorithm.inner: part}).update
    return Engine(
        inner.name, inner.reason, update, inner.compiled, inner.checked_at, inner.captured
    )


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
