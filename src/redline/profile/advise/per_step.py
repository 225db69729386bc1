"""Time per step of the process that matters, whatever the program counts: for comparing sessions.

Per env step where the session holds any (see `iteration`), else per `profile.step()` of the process
that calls it most. Then the first of 20 equal stretches of steps is left out as start-up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.errors import ProfileError
from redline.profile import layout
from redline.profile.advise.iteration import Part, Time, parts_between, read_iteration
from redline.profile.advise.steady import STRETCHES
from redline.profile.analyse.slices import Outline, outline, slices_of
from redline.profile.analyse.summary import summarize
from redline.profile.reader import Session

__all__ = ["PerStep", "inferred_operations", "read_per_step"]


@dataclass(frozen=True, slots=True)
class PerStep:
    """What a step costs."""

    unit: str  # "env step" or "step"
    process: str
    pid: int
    steps: int  # in the steady state
    total: Time
    parts: dict[str, Part]  # by operation
    mode: str = "full"
    inferred: frozenset[str] = frozenset()  # operations that full mode alone sees


def read_per_step(session: Session) -> PerStep:
    """Find the steps, and what each consists of.

    Raises:
        ProfileError: if there are too few of either kind to know how much they vary.
    """
    try:
        it = read_iteration(session)
    except ProfileError:
        found = _by_marks(session)
    else:
        found = PerStep("env step", it.process, it.pid, it.env_steps, it.total, it.parts)
    return replace(found, mode=session.mode, inferred=inferred_operations(session))


def inferred_operations(session: Session) -> frozenset[str]:
    """Operations known from Python code and native calls, not from marks, once it was analysed."""
    names = (name for process in session.processes for name in process.names.values())
    return frozenset(name.name for name in names if name.kind == "inferred")


def _by_marks(session: Session) -> PerStep:
    outlines = outline(session.processes)
    steps = _step_times(outlines)
    place = max(range(len(steps)), key=lambda i: len(steps[i]), default=None)
    if place is None or len(steps[place]) < 2 * STRETCHES:
        raise ProfileError(
            f"{session.directory} holds neither env steps nor {2 * STRETCHES} steps. Call "
            "profile.step() once per step of the program, or record longer"
        )
    own = steps[place]
    at = np.linspace(0, len(own) - 1, STRETCHES + 1).astype(np.int64)[1:]
    counts = np.diff(at)
    parts, total = parts_between(outlines[place], summarize(session), own[at], counts)
    process = session.processes[place]
    return PerStep("step", process.name, process.pid, int(counts.sum()), total, parts)


def _step_times(outlines: list[Outline]) -> list[NDArray[np.int64]]:
    """Per process when it called `profile.step()`, in order, ns since its base."""
    found = [[np.empty(0, np.int64)] for _ in outlines]
    for step in slices_of(outlines):
        for place, timeline in zip(step.places, step.timelines, strict=True):
            for each in timeline.threads:
                found[place].append(each.special_times[each.special_codes == layout.CODE_STEP])
    return [np.sort(np.concatenate(times)) for times in found]
