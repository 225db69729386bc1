"""Shares of Python functions, as py-spy sees them in the same run.

    python -m benchmarks.profiler.by_function --cleanrl CLEANRL [--only NAME ...]

py-spy looks at the process from outside, at its own times, while it records itself in sample mode.
Compared is each function's share of own time of the main thread, of those with 3% and more. py-spy
counts its looks, and looks less often the more processes there are: with several, `--rate` has to
be one that it keeps, or what the program did before it started them counts too much.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.records import recorded, require_one_machine
from benchmarks.third_party import NAMES, command, environment
from redline.profile.analyse.stacks import stacks_of
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import open_session

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results" / "profiler"
LARGE = 0.03
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
    stacks = stacks_of(build_timeline(process))
    if stacks is not None:
        samples = len(stacks.times_ns)
        pairs = zip(stacks.leaves.tolist(), stacks.weights_ns.tolist(), strict=True)
        for leaf, ns in pairs:
            code = stacks.codes[stacks.nodes[leaf].code]
            times[code.function.rpartition(".")[2], short(code.file)] += ns
    whole = sum(times.values())
    return {key: ns / whole for key, ns in times.items()}, samples


def short(file: str) -> str:
    """What both call a file: its last part, for py-spy leaves out where programs lie."""
    return file.rpartition("/")[2]


def measure(name: str, cleanrl: Path | None, scale: float, rate: int) -> dict[str, Any]:
    """Run a program once, with both."""
    program = command(name, cleanrl, scale)
    with tempfile.TemporaryDirectory() as directory:
        session, raw = Path(directory) / "session", Path(directory) / "raw"
        profiler = [sys.executable, "-m", "redline.profile", "profile", "--mode", "sample"]
        # Both watch the program alone, and py-spy starts it, so that both see it from its start.
        inner = [*profiler, "--out", str(session), "--", *program]
        spy = ["py-spy", "record", "--format", "raw", "--rate", str(rate), "--subprocesses"]
        subprocess.run(
            [*spy, "--idle", "-o", str(raw), "--", *inner],
            check=True,
            cwd=directory,
            env=environment(cleanrl),
            capture_output=True,
            timeout=900,
        )
        pid = open_session(session).processes[0].pid
        kept = [line for line in raw.read_text().splitlines() if innermost_process(line) == pid]
        theirs, seen = py_spy_shares("\n".join(_main_threads(kept)))
        ours, looks = our_shares(session)
    large = {key for key in {*theirs, *ours} if max(theirs.get(key, 0), ours.get(key, 0)) >= LARGE}
    rows = [
        {"function": key[0], "file": key[1], "py_spy": theirs.get(key, 0), "ours": ours.get(key, 0)}
        for key in sorted(large, key=lambda key: -theirs.get(key, 0))
    ]
    return {"rows": rows, "py_spy_samples": seen, "samples": looks}


def innermost_process(line: str) -> int | None:
    """Whose stack a line is: that of a child begins with the processes that it descends from."""
    found = re.findall(r"(?:^|;)process (\d+):", line)
    return int(found[-1]) if found else None


def _main_threads(lines: list[str]) -> list[str]:
    """Stacks that run the program, not those of helper threads."""
    return [line for line in lines if "<module>" in line]


def worst(one: dict[str, Any]) -> float:
    """The largest difference of a program, in points."""
    return max((100 * abs(row["ours"] - row["py_spy"]) for row in one["rows"]), default=0.0)


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
    lines += ["", "| program | largest difference, points | looks of py-spy | of Redline |"]
    lines.append("|---|---|---|---|")
    lines += [
        f"| {name} | {worst(one):.1f} | {one['py_spy_samples']:,} | {one['samples']:,} |"
        for name, one in found.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiler.by_function")
    parser.add_argument("--only", nargs="+", metavar="PROGRAM", choices=NAMES, default=list(NAMES))
    parser.add_argument("--cleanrl", type=Path, help="folder of a clone of CleanRL")
    parser.add_argument("--scale", type=float, default=1.0, help="times the steps of each program")
    parser.add_argument("--rate", type=int, default=100, help="looks of py-spy per second")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cleanrl = options.cleanrl.resolve() if options.cleanrl else None
    path = options.out / "by_function.json"
    found: dict[str, Any] = recorded(path).get("programs", {})
    require_one_machine(path, {*found} - {*options.only}, describe())
    for name in options.only:
        found[name] = measure(name, cleanrl, options.scale, options.rate)
        print(f"{name}: {worst(found[name]):.1f} points at most", flush=True)
        content = {"machine": describe(), "programs": found}
        path.write_text(json.dumps(content, indent=1) + "\n")
    words = (
        "# Functions beside py-spy\n\n```bash\n"
        "python -m benchmarks.profiler.by_function --cleanrl CLEANRL\n```\n\n"
    )
    path.with_suffix(".md").write_text(words + table(found))
    print(table(found))


if __name__ == "__main__":
    main()
