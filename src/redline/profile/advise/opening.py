"""What a report opens with: the verdict, an env step part by part, and who waits for whom."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict
from typing import Any

from redline.profile.advise.counted import HotLine
from redline.profile.advise.iteration import Iteration, Part, Time

LEAST = 0.0005  # share of an env step of the smallest part that is shown
LARGE = 0.05  # share of an env step from which a part's hottest line is shown
WIDTH = 100

__all__ = [
    "opening_to_json",
    "part_time",
    "place_of",
    "render_opening",
    "step_lines",
    "verdict",
    "who_waits",
    "whole_time",
]


def verdict(iteration: Iteration) -> str:
    """One sentence: what an env step costs, and what takes most of it."""
    largest = list(iteration.parts.values())[:3]
    shares = ", ".join(
        f"{part.operation} {100 * part.time.us / iteration.total.us:.0f}%" for part in largest
    )
    share = 100 * _waiting_us(iteration) / iteration.total.us
    return (
        f"{iteration.process} (pid {iteration.pid}) takes {_time(whole_time(iteration))} us per "
        f"env step once started up: {shares}; {share:.0f}% of it is waiting."
    )


def _time(time: Time) -> str:
    return f"{time.us:,.1f} +- {time.half_us:,.1f}"


def whole_time(iteration: Iteration) -> Time:
    """An env step, with what the probe's cost leaves uncertain."""
    return _widened(iteration.total, [each.total.us for each in iteration.extremes])


def part_time(iteration: Iteration, part: Part) -> Time:
    """A part of an env step, with what the probe's cost leaves uncertain."""
    ends = [each.part(part.operation).time.us for each in iteration.extremes]
    return _widened(part.time, ends)


def _widened(time: Time, ends: list[float]) -> Time:
    doubt = (max(ends) - min(ends)) / 2 if ends else 0.0
    return Time(time.us, math.hypot(time.half_us, doubt))


def _waiting_us(iteration: Iteration) -> float:
    return sum(part.level("waiting") for part in iteration.parts.values())


def render_opening(iteration: Iteration) -> list[str]:
    """The lines that a report begins with."""
    return [
        *textwrap.wrap(verdict(iteration), WIDTH),
        *step_lines(iteration),
        *(each for sentence in who_waits(iteration) for each in textwrap.wrap(sentence, WIDTH)),
    ]


def step_lines(iteration: Iteration, *, with_hot_lines: bool = False) -> list[str]:
    """The steady state, and a table of what an env step, and an update, consists of."""
    envs = f"{iteration.num_envs} env{'s' * (iteration.num_envs != 1)} at once"
    per_update = _steps_per_update(iteration)
    lines = [
        f"steady state: {iteration.begin_s:.1f} to {iteration.end_s:.1f} s of the process, "
        f"{iteration.env_steps:,} env steps, {envs}"
        + (f", {iteration.workers} workers" if iteration.workers else "")
        + (f"; {iteration.framework}" if iteration.framework else "")
    ]
    updates = iteration.updates
    if updates is not None:
        lines.append(
            f"{updates.count:,} {updates.unit}{'s' * (updates.count != 1)} (entries of "
            f"{updates.operation}), one per {per_update:,.1f} env steps"
        )
    column = f"ms per {updates.unit}" if updates is not None else ""
    lines += [
        "",
        f"  {'us per env step':24s} {'us':>10s} {'+-':>8s} {'%':>6s}"
        + (f"  {column} {'+-':>8s}" if updates is not None else ""),
    ]
    whole = whole_time(iteration)
    for part in iteration.parts.values():
        time = part_time(iteration, part)
        if time.us < LEAST * whole.us:
            continue
        lines.append(_row(part.operation, time, whole.us, per_update, len(column)))
        hot = iteration.hot_lines.get(part.operation)
        if with_hot_lines and hot and time.us >= LARGE * whole.us:
            lines += textwrap.wrap(
                f"hottest line: {_hottest(hot, part)}",
                WIDTH,
                initial_indent="    ",
                subsequent_indent="      ",
            )
    return [*lines, _row("all", whole, whole.us, per_update, len(column))]


def _row(name: str, time: Time, whole_us: float, per_update: float, width: int) -> str:
    row = f"  {name:24s} {time.us:10.1f} {time.half_us:8.1f} {100 * time.us / whole_us:6.1f}"
    if not per_update:
        return row
    ms, half_ms = time.us * per_update / 1e3, time.half_us * per_update / 1e3
    return f"{row}  {ms:{width}.3f} {half_ms:8.3f}"


def _steps_per_update(iteration: Iteration) -> float:
    return iteration.env_steps / iteration.updates.count if iteration.updates else 0.0


def place_of(file: str, line: int) -> str:
    """A line of code, by the end of its file's path: enough to know it by."""
    return f"{'/'.join(file.split('/')[-3:])}:{line}"


def _hottest(hot: HotLine, part: Part) -> str:
    file, _, line = hot.caller.rpartition(":")
    return (
        f"{place_of(hot.file, hot.line)} {hot.function}, "
        f"{hot.share * part.time.us:,.1f} us per env step"
        + (f" (from {place_of(file, int(line))})" if file else "")
    )


def who_waits(iteration: Iteration) -> list[str]:
    """Sentences on who waits for whom."""
    waiting_us, waiting = _waiting_us(iteration), iteration.waiting
    share = f"({100 * waiting_us / iteration.total.us:.0f}%)"
    if waiting is None:
        return []
    if waiting.worker:
        said = (
            f"{iteration.process} waits {waiting_us:,.1f} us per env step {share}, most in "
            f"{waiting.operation}, for {waiting.worker}, busy with {waiting.worker_operation}"
        )
    else:
        said = (
            f"{iteration.process} waits {waiting_us:,.1f} us per env step {share}, for no other "
            "recorded process"
        )
    if waiting.workers_idle == waiting.workers_idle:  # not nan
        said += f"; the env workers are idle {100 * waiting.workers_idle:.0f}% of their time"
    return [f"{said}."]


def opening_to_json(iteration: Iteration) -> dict[str, Any]:
    """The same as plain data; what is not known is null."""
    updates, per_update = iteration.updates, _steps_per_update(iteration)
    whole = whole_time(iteration)
    return {
        "updates": None
        if updates is None
        else {
            **asdict(updates),
            "env_steps_per_update": per_update,
            "ms_per_update": whole.us * per_update / 1e3,
            "half_ms": whole.half_us * per_update / 1e3,
        },
        "us_per_env_step": asdict(whole),
        "who_waits": who_waits(iteration),
        "parts": [
            {
                "operation": part.operation,
                **asdict(part_time(iteration, part)),
                "levels": part.by_level,
                "hottest_line": _hot_row(iteration.hot_lines.get(part.operation), part),
            }
            for part in iteration.parts.values()
        ],
    }


def _hot_row(hot: HotLine | None, part: Part) -> dict[str, Any] | None:
    return None if hot is None else {**asdict(hot), "us": hot.share * part.time.us}
