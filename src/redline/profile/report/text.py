"""A summary as text, for a terminal."""

from __future__ import annotations

from collections import defaultdict

from redline.profile.analyse.summary import Cell, ProcessRow, Summary
from redline.profile.layout import MAX_DEPTH
from redline.profile.levels import LEVELS

__all__ = ["render_text"]

TOP_FUNCTIONS = 10
TOP_LINES = 8
TOP_OF_THREAD, MIN_BUSY_S = 4, 0.01
UNKNOWN_LEVELS = ("python", "backend", "simulator")  # where native calls are not observed


def render_text(summary: Summary) -> str:
    """Processes, time by operation and level, native functions, overhead, problems."""
    lines = [
        f"session {summary.session}, mode {summary.mode}, {summary.wall_s:.3f} s, "
        f"{len(summary.processes)} process{'es' * (len(summary.processes) != 1)}",
    ]
    for process in summary.processes:
        lines += ["", *_process(process, summary)]
    lines += ["", *_overhead(summary)]
    if summary.attributed == summary.attributed:
        lines.append(f"{100 * summary.attributed:.2f} % of the recorded time has a level")
    if summary.shares:
        lines += ["", *_shares(summary)]
    for problem in summary.problems:
        lines.append(f"note: {problem}")
    return "\n".join(lines) + "\n"


def _process(process: ProcessRow, summary: Summary) -> list[str]:
    cells = [cell for cell in summary.cells if cell.pid == process.pid]
    lines = [
        f"{process.name} (pid {process.pid}, parent {process.parent_pid}): "
        f"{process.wall_s:.3f} s recorded, {process.cpu_s:.3f} s CPU"
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
    """The hottest Python functions and lines, as they were sampled."""
    functions = [row for row in summary.python_functions if row.pid == process.pid]
    hottest = [row for row in summary.python_lines if row.pid == process.pid]
    lines: list[str] = []
    for title, rows in (("functions", functions), ("lines", hottest)):
        if rows:
            lines.append(f"  Python {title} of the main thread (own time, with calls, operation):")
        for row in rows[:TOP_LINES]:
            lines.append(
                f"    {row.self_s:10.3f} s {row.total_s:10.3f} s  {row.operation:16s} "
                f"{row.function} ({_short(row.file)}:{row.line})"
            )
    return lines


def _short(file: str) -> str:
    """The end of a path: enough to know the file by."""
    return "/".join(file.split("/")[-3:])


def _table(cells: list[Cell], steps: int, is_full: bool) -> list[str]:
    """Operations by time; in other modes than full the levels of running code are not known."""
    shown = [level for level in LEVELS if any(cell.level == level for cell in cells)]
    if not is_full:
        shown = [*UNKNOWN_LEVELS, *(level for level in shown if level not in UNKNOWN_LEVELS)]
    by_operation: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cell in cells:
        by_operation[cell.operation][cell.level] += cell.corrected_s
    total = sum(cell.corrected_s for cell in cells)
    width = max(9, *(len(name) for name in by_operation), 0)
    lines = [
        f"  {'operation':{width}s} {'s':>10s} {'%':>6s}"
        + (f" {'us/step':>12s}" if steps else "")
        + "".join(f" {level:>12s}" for level in shown)
    ]
    for name, row in sorted(by_operation.items(), key=lambda item: -sum(item[1].values())):
        seconds = sum(row.values())
        lines.append(
            f"  {name:{width}s} {seconds:10.3f} {100 * seconds / max(total, 1e-12):6.1f}"
            + (f" {1e6 * seconds / steps:12.1f}" if steps else "")
            + "".join(
                f" {row[level]:12.3f}" if is_full or level not in UNKNOWN_LEVELS else f" {'-':>12s}"
                for level in shown
            )
        )
    return lines


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
