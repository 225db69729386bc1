"""A summary as text, for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from redline.profile.advise.iteration import Iteration
from redline.profile.advise.opening import place_of, render_opening
from redline.profile.analyse.stacks import PythonFunction, PythonLine
from redline.profile.analyse.summary import Cell, ProcessRow, Summary
from redline.profile.layout import MAX_DEPTH
from redline.profile.levels import LEVELS

__all__ = ["render_text"]

TOP_FUNCTIONS = 10
TOP_LINES, TOP_OF_OPERATION, TOP_IMPORTS = 9, 3, 5
IMPORTS = "imports"
SHOWN_S = 0.0005  # levels of less in every row are left out of the table
TOP_OF_THREAD, MIN_BUSY_S = 4, 0.01
UNKNOWN_LEVELS = ("python", "backend", "simulator")  # where native calls are not observed


def render_text(summary: Summary, iteration: Iteration | None = None) -> str:
    """What an env step costs; then processes, times, native functions, overhead, problems.

    Args:
        summary: of a session.
        iteration: what its env steps consist of; None where it steps none.
    """
    lines = [
        f"session {summary.session}, mode {summary.mode}, {summary.wall_s:.3f} s, "
        f"{len(summary.processes)} process{'es' * (len(summary.processes) != 1)}",
    ]
    if iteration is not None:
        lines += ["", *render_opening(iteration), "", "the whole run, start-up included:"]
    else:
        lines += _largest(summary)
    lines += _trust(summary)
    for process in summary.processes:
        lines += ["", *_process(process, summary)]
    lines += ["", *_overhead(summary)]
    if summary.attributed == summary.attributed:
        lines.append(f"{100 * summary.attributed:.2f} % of the recorded time has a level")
    if summary.shares:
        lines += ["", *_shares(summary)]
    for problem in summary.problems:
        lines.append(f"note: {problem}")
    advise = f"next: redline advise {summary.session}, or " if iteration else "next: "
    lines.append(f"{advise}redline report {summary.session} --html FILE")
    return "\n".join(lines) + "\n"


def _largest(summary: Summary) -> list[str]:
    """The operation that took most time but waited least, and how long it takes each time."""
    cells = [cell for cell in summary.cells if cell.level not in ("waiting", "ready")]
    busy: dict[tuple[int, str], float] = defaultdict(float)
    for cell in cells:
        busy[cell.pid, cell.operation] += cell.corrected_s
    if not busy:
        return []
    (pid, operation), seconds = max(busy.items(), key=lambda item: item[1])
    (name, *_) = [cell.process for cell in cells if cell.pid == pid]
    said = f"largest operation: {operation} of {name} (pid {pid}), {seconds:.3f} s of work"
    begun = [
        row.begun for row in summary.transitions if (row.pid, row.operation) == (pid, operation)
    ]
    if begun and begun[0]:
        said += f", {1e6 * seconds / begun[0]:,.1f} us each of {begun[0]:,} times"
    return [said]


def _trust(summary: Summary) -> list[str]:
    """What the times below hold of the probe's own."""
    return [
        f"times hold what the {each.probe} probe cost: up to {each.cost_high_s:.3f} s"
        for each in summary.overhead
        if not each.corrected and each.cost_high_s > 0  # also where it is nan
    ]


def _process(process: ProcessRow, summary: Summary) -> list[str]:
    cells = [cell for cell in summary.cells if cell.pid == process.pid]
    has_own = process.recorded_profiler_cpu_s >= 0.001
    lines = [
        f"{process.name} (pid {process.pid}, parent {process.parent_pid}): "
        f"{process.wall_s:.3f} s recorded, {process.recorded_cpu_s:.3f} s CPU"
        + (f" ({process.recorded_profiler_cpu_s:.3f} s of it the profiler's own)" * has_own)
        + (f", {process.steps:,} steps" if process.steps else "")
    ]
    lines += _progress(process)
    is_full = summary.mode == "full"
    for phase in dict.fromkeys(cell.phase for cell in cells):
        if phase:
            lines.append(f"  phase {phase}")
        # What share of the steps belongs to a phase, or to none, is not known.
        steps = 0 if any(cell.phase for cell in cells) else process.steps
        lines += _table([cell for cell in cells if cell.phase == phase], steps, is_full)
    functions = [row for row in summary.functions if row.pid == process.pid][:TOP_FUNCTIONS]
    if functions:
        lines.append("  native functions by time inside them:")
        for row in functions:
            lines.append(
                f"    {row.total_s:10.3f} s {row.calls:10d} calls  {row.level:9s} {row.function}"
            )
    lines += _counters(process, summary)
    lines += _imports(process, summary)
    lines += _threads(process, summary)
    lines += _python(process, summary)
    return lines


def _progress(process: ProcessRow) -> list[str]:
    """How far the program says it is."""
    if not process.progress_total > 0:  # also where it is nan
        return []
    done, total = process.progress_done, process.progress_total
    said = f"  progress: {100 * done / total:.1f}% done ({done:,.6g} of {total:,.6g})"
    if process.progress_per_s > 0:
        said += (
            f", {process.progress_per_s:,.6g} a second while recorded: "
            f"{process.progress_whole_s:,.1f} s for all of it"
        )
    return [said]


def _counters(process: ProcessRow, summary: Summary) -> list[str]:
    """What the processor and the kernel counted, the operations with most of it first."""
    rows = [row for row in summary.counters if row.pid == process.pid]
    names = list(dict.fromkeys(row.counter for row in rows))
    by_operation: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        by_operation[row.operation][row.counter] = row.count
    if not rows:
        return []
    width = max(9, *map(len, by_operation))
    head = "".join(f" {name:>{max(len(name), 15)}s}" for name in names)
    lines = ["  counters by operation:", f"    {'operation':{width}s}{head}"]
    for operation, counts in sorted(by_operation.items(), key=lambda item: -item[1][names[0]]):
        cells = (f" {counts[name]:{max(len(name), 15)},.0f}" for name in names)
        lines.append(f"    {operation:{width}s}{''.join(cells)}")
    return lines


def _threads(process: ProcessRow, summary: Summary) -> list[str]:
    """Where each thread's time went that did something but wait."""
    rows = [row for row in summary.threads if row.pid == process.pid]
    lines: list[str] = []
    for number in dict.fromkeys(row.thread for row in rows):
        own = [row for row in rows if row.thread == number]
        busy = [row for row in own if row.level not in ("waiting", "ready")]
        if sum(row.raw_s for row in busy) < MIN_BUSY_S:
            continue
        parts = [f"{row.operation} {row.level} {row.raw_s:.3f} s" for row in own[:TOP_OF_THREAD]]
        lines.append(f"    thread {number:3d}: {', '.join(parts)}")
    return ["  threads, each by itself:", *lines] if len(lines) > 1 else []


def _python(process: ProcessRow, summary: Summary) -> list[str]:
    """The hottest Python functions and lines, as they were sampled, some of each operation."""
    functions = [row for row in summary.python_functions if row.pid == process.pid]
    hottest = [row for row in summary.python_lines if row.pid == process.pid]
    lines: list[str] = []
    for title, rows in (("functions", functions), ("lines", hottest)):
        if rows:
            lines.append(f"  Python {title} of the main thread (own time, with calls, operation):")
        for row in _some_of_each(rows):
            lines.append(
                f"    {row.self_s:10.3f} s {row.total_s:10.3f} s  {row.operation:16s} "
                f"{row.function} ({place_of(row.file, row.line)})"
            )
    return lines


def _some_of_each(
    rows: Sequence[PythonFunction | PythonLine],
) -> list[PythonFunction | PythonLine]:
    """The first ones, at most some of any operation."""
    found: list[PythonFunction | PythonLine] = []
    for row in rows:
        of_it = sum(row.operation == each.operation for each in found)
        if of_it < TOP_OF_OPERATION and row.self_s >= SHOWN_S and len(found) < TOP_LINES:
            found.append(row)
    return found


def _imports(process: ProcessRow, summary: Summary) -> list[str]:
    """The costliest imports that the program itself makes."""
    rows = [row for row in summary.imports if row.pid == process.pid and row.total_s >= SHOWN_S]
    lines = ["  costliest imports, with all that they import:"] if rows else []
    return lines + [
        f"    {row.total_s:10.3f} s  {row.module or '?'} ({place_of(row.file, row.line)})"
        for row in rows[:TOP_IMPORTS]
    ]


def _table(cells: list[Cell], steps: int, is_full: bool) -> list[str]:
    """Operations by time; in other modes than full the levels of running code are not known."""
    table = _rows(cells)
    shown = [
        level for level in LEVELS if any(row.by_level.get(level, 0.0) >= SHOWN_S for row in table)
    ]
    if not is_full:
        shown = [*UNKNOWN_LEVELS, *(level for level in shown if level not in UNKNOWN_LEVELS)]
    widths = {
        level: max(len(level), *(len(row.level(level, is_full)) for row in table))
        for level in shown
    }
    total = sum(row.seconds for row in table)
    width = max(9, *(len(row.operation) for row in table), 0)
    lines = [
        f"  {'operation':{width}s} {'s':>9s} {'+-':>7s} {'%':>6s}"
        + (f" {'us/step':>10s}" if steps else "")
        + "".join(f" {level:>{widths[level]}s}" for level in shown)
    ]
    for row in table:
        lines.append(
            f"  {row.operation:{width}s} {row.seconds:9.3f} {row.half} "
            f"{100 * row.seconds / max(total, 1e-12):6.1f}"
            + (f" {1e6 * row.seconds / steps:10.1f}" if steps else "")
            + "".join(f" {row.level(level, is_full):>{widths[level]}s}" for level in shown)
        )
    return lines


@dataclass(frozen=True, slots=True)
class _Row:
    """One operation of a process."""

    operation: str
    seconds: float
    half_s: float  # half width of the 95% interval; nan: not known
    by_level: dict[str, float]

    @property
    def half(self) -> str:
        """As text, of 7 columns."""
        return f"{self.half_s:7.3f}" if self.half_s == self.half_s else f"{'-':>7s}"

    def level(self, name: str, is_full: bool) -> str:
        """Seconds of a level as text; of running code they are known in full mode only."""
        if not is_full and name in UNKNOWN_LEVELS:
            return "-"
        return f"{self.by_level.get(name, 0.0):.3f}"


def _rows(cells: list[Cell]) -> list[_Row]:
    """Operations by time, imports last: they are start-up, whatever they take."""
    rows: list[_Row] = []
    for operation in dict.fromkeys(cell.operation for cell in cells):
        own = [cell for cell in cells if cell.operation == operation]
        by_level: dict[str, float] = defaultdict(float)
        for cell in own:
            by_level[cell.level] += cell.corrected_s
        # The cells of an operation share its probe's cost, so their errors add as they are.
        half_s = sum(cell.ci_high_s - cell.ci_low_s for cell in own) / 2
        rows.append(_Row(operation, sum(by_level.values()), half_s, dict(by_level)))
    return sorted(rows, key=lambda row: (row.operation == IMPORTS, -row.seconds))


def _shares(summary: Summary) -> list[str]:
    """What the sampler saw, beside what was measured."""
    lines: list[str] = []
    for pid in dict.fromkeys(row.pid for row in summary.shares):
        rows = [row for row in summary.shares if row.pid == pid]
        lines += [
            f"{rows[0].process} (pid {pid}) as {rows[0].samples} samples saw it, % of its time:",
            f"  {'':9s} {'':24s} {'measured':>9s} {'sampled':>9s} {'+-':>5s} {'difference':>11s}",
        ]
        for row in rows:
            known = row.measured == row.measured
            lines.append(
                f"  {row.kind:9s} {row.name:24s} "
                + (f"{100 * row.measured:9.1f}" if known else f"{'-':>9s}")
                + f" {100 * row.sampled:9.1f} {100 * row.standard_error:5.1f}"
                + (f" {100 * row.difference:+11.1f}" if known else "")
            )
    return lines


def _overhead(summary: Summary) -> list[str]:
    lines: list[str] = []
    for estimate in summary.overhead:
        head = f"overhead of the {estimate.probe} probe: {estimate.count} callbacks"
        if estimate.corrected:
            lines.append(
                f"{head} of {estimate.unit_ns:.0f} ns "
                f"(95% {estimate.ci_low_ns:.0f} to {estimate.ci_high_ns:.0f}) and "
                f"{100 * estimate.slowdown:.1f}% of interpreted time "
                f"({100 * estimate.slowdown_low:.1f} to {100 * estimate.slowdown_high:.1f}): "
                f"{estimate.cost_s:.3f} s ({estimate.cost_low_s:.3f} to "
                f"{estimate.cost_high_s:.3f}) taken out of the times above"
            )
        else:
            lines.append(f"{head}, not corrected for: {estimate.reason}")
        if estimate.lasting_s > 0:
            lines.append(
                f"{estimate.lasting_s:.3f} s of Python taken out of the times above: Python 3.12 "
                "runs code that was once observed a little slower for good"
            )
        if estimate.threads_s > 0:
            lines.append(
                f"{estimate.threads_s:.3f} s taken out of the times above: the profiler's own "
                "threads, which share the program's only core"
            )
    if summary.too_deep_events:
        lines.append(
            f"{summary.too_deep_events} events were dropped: they were nested deeper than "
            f"{MAX_DEPTH:,} marks and native calls"
        )
    if summary.dropped_events > summary.too_deep_events:
        lines.append(
            f"{summary.dropped_events - summary.too_deep_events} events were dropped: "
            "the rings were full. Profile a shorter window, or give more memory"
        )
    return lines
