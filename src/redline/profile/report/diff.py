"""Two sessions side by side: what got slower, what faster."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from redline.profile.advise.iteration import Part, Time
from redline.profile.advise.per_step import PerStep
from redline.profile.analyse.summary import Summary

REST = "all else"
# Around or beside what full mode infers, so they mean something else in other modes.
SHIFTED = frozenset({"other", "learning", "collection", "startup"})
KNOWN_LEVELS = ("waiting", "ready")  # in every mode

__all__ = [
    "DiffRow",
    "StepDiff",
    "diff_steps",
    "diff_summaries",
    "render_diff",
    "render_step_diff",
]


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One (operation, level), summed over processes and phases; corrected seconds."""

    operation: str
    level: str
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        """Seconds more than before."""
        return self.after_s - self.before_s


def diff_summaries(
    before: Summary, after: Summary, inferred: frozenset[str] = frozenset()
) -> list[DiffRow]:
    """All (operation, level) that both sessions know, the largest change first.

    Args:
        before: a session.
        after: another.
        inferred: operations that are known in full mode only, of both sessions.
    """
    apart = before.mode != after.mode
    folded = _folded(inferred) if apart else frozenset[str]()
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side, summary in enumerate((before, after)):
        for cell in summary.cells:
            operation = REST if cell.operation in folded else cell.operation
            level = "running" if apart and cell.level not in KNOWN_LEVELS else cell.level
            totals[operation, level][side] += cell.corrected_s
    rows = [DiffRow(*key, *seconds) for key, seconds in totals.items()]
    return sorted(rows, key=lambda row: (-abs(row.change_s), row.operation, row.level))


@dataclass(frozen=True, slots=True)
class StepDiff:
    """One operation, per step of each session; us with half widths of 95% intervals."""

    operation: str  # "all" for the sum
    before: Time
    after: Time

    @property
    def change_us(self) -> float:
        """Us per step more than before."""
        return self.after.us - self.before.us

    @property
    def half_us(self) -> float:
        """Half width of the change's 95% interval: the sessions' noises are independent."""
        return math.hypot(self.before.half_us, self.after.half_us)

    @property
    def significant(self) -> bool:
        """Whether the interval of the change leaves out 0."""
        return abs(self.change_us) > self.half_us


def _folded(inferred: frozenset[str]) -> frozenset[str]:
    """What cannot be compared across modes one by one, only as a sum."""
    return inferred | SHIFTED if inferred else frozenset[str]()


def _common(parts: dict[str, Part], folded: frozenset[str]) -> dict[str, Time]:
    times = {name: part.time for name, part in parts.items() if name not in folded}
    rest = [part.time for name, part in parts.items() if name in folded]
    return times | {REST: sum(rest, Time(0.0))} if rest else times


def diff_steps(before: PerStep, after: PerStep) -> list[StepDiff]:
    """The whole step, then its operations that both know, the largest change first."""
    apart = before.mode != after.mode
    folded = _folded(before.inferred | after.inferred) if apart else frozenset[str]()
    a, b = _common(before.parts, folded), _common(after.parts, folded)
    nothing = Time(0.0)
    rows = [StepDiff(name, a.get(name, nothing), b.get(name, nothing)) for name in {*a, *b}]
    rows.sort(key=lambda row: (-abs(row.change_us), row.operation))
    return [StepDiff("all", before.total, after.total), *rows]


def render_step_diff(before: PerStep, after: PerStep) -> str:
    """The differences per step as a text table, what noise explains marked as such."""
    if before.unit != after.unit:
        return (
            f"A counts {before.unit}s, B {after.unit}s: their times per step are not comparable\n"
        )
    rows = diff_steps(before, after)
    width = max([9, *(len(row.operation) for row in rows)])
    lines = [
        *_modes(before.mode, after.mode),
        f"per {before.unit} in the steady state, us, with 95% intervals",
        f"A: {before.process} (pid {before.pid}), {before.steps:,} {before.unit}s",
        f"B: {after.process} (pid {after.pid}), {after.steps:,} {after.unit}s",
        "",
        f"{'operation':{width}s} {'A us':>10s} {'+-':>8s} {'B us':>10s} {'+-':>8s} "
        f"{'change us':>10s} {'+-':>8s} {'change %':>9s}",
    ]
    for row in rows:
        a, b = row.before, row.after
        share = f"{100 * row.change_us / a.us:+9.1f}" if a.us else "      new"
        lines.append(
            f"{row.operation:{width}s} {a.us:10.1f} {a.half_us:8.1f} {b.us:10.1f} "
            f"{b.half_us:8.1f} {row.change_us:+10.1f} {row.half_us:8.1f} {share}"
            + ("" if row.significant else "  noise")
        )
    return "\n".join(lines) + "\n"


def _modes(before: str, after: str) -> list[str]:
    """What the difference of modes, if any, leaves to compare."""
    if before == after:
        return []
    return [
        f"note: A was recorded in mode {before}, B in mode {after}. Only what both know is "
        "compared;",
        f"      the rest is one row ({REST}), and the modes cost the program differently",
    ]


def _notes(before: Summary, after: Summary) -> list[str]:
    """What else than the program differs."""
    steps = _steps(before), _steps(after)
    modes = before.mode, after.mode
    corrected = [any(each.corrected for each in summary.overhead) for summary in (before, after)]
    notes: list[str] = []
    if steps[0] != steps[1]:
        notes.append(
            f"note: A has {steps[0]:,} steps, B {steps[1]:,}: the seconds are of different amounts "
            "of work"
        )
    if modes[0] == modes[1] and corrected[0] != corrected[1]:
        side = "A" if corrected[0] else "B"
        notes.append(f"note: the profiler's cost is taken out of {side} only")
    return notes


def _steps(summary: Summary) -> int:
    return sum(process.steps for process in summary.processes)


def _heading(side: str, summary: Summary, seconds: float) -> str:
    steps = _steps(summary)
    each = f" in {steps:,} steps, {1e6 * seconds / steps:,.1f} us each" if steps else ""
    return f"{side}: {summary.session}, {seconds:.3f} s over all processes{each}"


def render_diff(before: Summary, after: Summary, inferred: frozenset[str] = frozenset()) -> str:
    """The differences as a text table; see `diff_summaries`."""
    rows = diff_summaries(before, after, inferred)
    width = max([9, *(len(row.operation) for row in rows)])
    lines = [
        *_modes(before.mode, after.mode),
        _heading("A", before, sum(row.before_s for row in rows)),
        _heading("B", after, sum(row.after_s for row in rows)),
        *_notes(before, after),
        "",
        f"{'operation':{width}s} {'level':12s} {'A s':>10s} {'B s':>10s} {'change s':>10s}"
        f" {'change %':>9s}",
    ]
    for row in rows:
        share = f"{100 * row.change_s / row.before_s:+9.1f}" if row.before_s else "      new"
        lines.append(
            f"{row.operation:{width}s} {row.level:12s} {row.before_s:10.3f} {row.after_s:10.3f}"
            f" {row.change_s:+10.3f} {share}"
        )
    return "\n".join(lines) + "\n"
