"""Shares of Python functions, as py-spy sees them in the same run.

    python -m benchmarks.profiler.by_function [--only NAME ...]

py-spy looks at the process from outside, at its own times, while it records itself in sample mode.
Compared is each function's share of own time of the main thread, of those with 3% and more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.unmarked.programs import PROGRAMS
from redline.profile.analyse.stacks import read_stacks
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import open_session

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results" / "profiler"
LARGE = 0.03
HZ = 100

Shares = dict[tuple[str, str], float]  # {(function, end of its file): share of own time}


def py_spy_shares(raw: str) -> tuple[Shares, int]:
    """Of `py-spy record --format raw`: lines of `frame;frame;... count`, the innermost last."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        name, _, place = stack.rpartition(";")[2].rpartition(" (")
        if name:
            key = name.rpartition(".")[2], short(place.rpartition(":")[0].rstrip(")"))
            counts[key] += int(count)
    whole = sum(counts.values())
    return {key: count / whole for key, count in counts.items()}, whole


def our_shares(directory: Path) -> tuple[Shares, int]:
    """Of the session's first process that was sampled."""
    times: dict[tuple[str, str], int] = defaultdict(int)
    samples = 0
    process = open_session(directory).processes[0]
    stacks = read_stacks(build_timeline(process))
    if stacks is not None:
        samples = len(stacks.times_ns)
        pairs = zip(stacks.leaves.tolist(), stacks.weights_ns.tolist(), strict=True)
        for leaf, ns in pairs:
            code = stacks.codes[stacks.nodes[leaf].code]
            times[code.function.rpartition(".")[2], short(code.file)] += ns
    whole = sum(times.values())
    return {key: ns / whole for key, ns in times.items()}, samples


def short(file: str) -> str:
    """What both call a file: its last two parts."""
    return "/".join(file.split("/")[-2:])


def measure(name: str) -> dict[str, Any]:
    """Run a program once, with both."""
    with tempfile.TemporaryDirectory() as directory:
        session, raw = Path(directory) / "session", Path(directory) / "raw"
        program = [sys.executable, "-m", "benchmarks.unmarked.programs", name]
        profiler = [sys.executable, "-m", "redline.profile", "profile", "--mode", "sample"]
        # Both watch the program alone, and py-spy starts it, so that both see it from its start.
        inner = [*profiler, "--out", str(session), "--", *program]
        spy = ["py-spy", "record", "--format", "raw", "--rate", str(HZ), "--subprocesses"]
        command = [*spy, "--idle", "-o", str(raw), "--", *inner]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=300)
        words = "benchmarks.unmarked.programs"
        kept = [line for line in raw.read_text().splitlines() if words in line.split(";")[0]]
        theirs, seen = py_spy_shares("\n".join(_main_threads(kept)))
        ours, looks = our_shares(session)
    large = {key for key in {*theirs, *ours} if max(theirs.get(key, 0), ours.get(key, 0)) >= LARGE}
    rows = [
        {"function": key[0], "file": key[1], "py_spy": theirs.get(key, 0), "ours": ours.get(key, 0)}
        for key in sorted(large, key=lambda key: -theirs.get(key, 0))
    ]
    return {"rows": rows, "py_spy_samples": seen, "samples": looks}


def _main_threads(lines: list[str]) -> list[str]:
    """Stacks that run the program, not those of helper threads."""
    return [line for line in lines if "<module>" in line]


def table(found: dict[str, Any]) -> str:
    """All programs."""
    lines = [
        "| program | function | py-spy | Redline | difference, points |",
        "|---|---|---|---|---|",
    ]
    for name, each in found.items():
        for row in each["rows"]:
            lines.append(
                f"| {name} | `{row['function']}` ({row['file']}) | {100 * row['py_spy']:.1f}% | "
                f"{100 * row['ours']:.1f}% | {100 * (row['ours'] - row['py_spy']):+.1f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiler.by_function")
    parser.add_argument("--only", nargs="+", choices=sorted(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = {name: measure(name) for name in options.only}
    content = {"machine": describe(), "programs": found}
    (options.out / "by_function.json").write_text(json.dumps(content, indent=1) + "\n")
    words = (
        "# Functions beside py-spy\n\n```bash\npython -m benchmarks.profiler.by_function\n```\n\n"
    )
    (options.out / "by_function.md").write_text(words + table(found))
    print(table(found))


if __name__ == "__main__":
    main()
