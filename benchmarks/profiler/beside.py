"""The level shares of full mode beside those a sampler saw in the same run, for every program.

A run of half the length comes first: files that the cache does not hold are read from disk as
native code is loaded, which the sampler sees as waiting and the recorder as Python.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import HARDWARE, describe
from benchmarks.profiler.programs import (
    PROGRAMS,
    ROOT,
    command,
    findings,
    run_once,
    versions_of,
)
from redline.profile.analyse.shares import compare_shares
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.profile.record.options import Options

ABOUT = (
    "Each program recorded in full mode, with the sampler looking beside it; the shares of the "
    "process's time by level, the sampler's minus the recorder's, in points; the standard error is "
    "the sampler's. Attributed: the share of the recorded time that has a level."
)


def measure_shares(options: argparse.Namespace) -> None:
    """Run them one after the other, and write shares-X.Y.json and .md."""
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # the programs use what lies here
    versions = versions_of(options.python)
    short = ".".join(versions["python"].split(".")[:2])
    machine = {key: describe()[key] for key in HARDWARE}
    found = {}
    for name in options.only:
        found[name] = one = _measure(name, options)
        print(f"{name}: {_points(one)}, {one['samples']:,} samples", flush=True)
    words = (
        f"python -m benchmarks.profiler shares --python PYTHON --sample-hz {options.sample_hz:g}"
    )
    head = {"machine": machine, "versions": versions, "command": words}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"shares-{short}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if all(known.get(key) == value for key, value in head.items()):
        found = known["programs"] | found  # those measured anew take the place of the old ones
    path.write_text(json.dumps({**head, "programs": found}, indent=1) + "\n")
    about = "\n".join(f"| {key} | {value} |" for key, value in {**machine, **versions}.items())
    path.with_suffix(".md").write_text(
        f"# Profiler: level shares beside a sampler's on Python {versions['python']}\n\n"
        f"```bash\n{words}\n```\n\n{ABOUT}\n\n{share_table(found)}\n"
        f"| machine | |\n|---|---|\n{about}\n"
    )


def _measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A short run to warm the caches, then the one that counts."""
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as directory:
        for mode, steps in (("unprofiled", program.env_steps // 2), ("full", program.env_steps)):
            home = Path(directory) / mode
            home.mkdir()
            words = command(program, steps, options.python, options.python)
            recorded = Options(mode="full", sample_hz=options.sample_hz)
            run_once(program, words, mode, home, recorded)
        session = open_session(home / "session")
        summary = summarize(session)
        own = summary.processes[0].pid
        rows = compare_shares(session, session, summary)
        facts = findings(summary)
    levels = [row for row in rows if row.kind == "level" and row.pid == own]
    return {
        "attributed": facts["attributed"],
        "dropped_events": facts["dropped_events"],
        "samples": levels[0].samples,
        "levels": {
            row.name: {
                "measured": row.measured,
                "sampled": row.sampled,
                "standard_error": row.standard_error,
            }
            for row in levels
        },
    }


def worst(one: dict[str, Any]) -> str:
    """The level whose shares are the farthest apart."""
    levels = one["levels"]
    return max(levels, key=lambda name: abs(levels[name]["sampled"] - levels[name]["measured"]))


def _points(one: dict[str, Any]) -> str:
    level = worst(one)
    row = one["levels"][level]
    apart = 100 * (row["sampled"] - row["measured"])
    return f"{apart:+.1f} +- {100 * row['standard_error']:.1f} ({level})"


def share_table(found: dict[str, dict[str, Any]]) -> str:
    """The largest difference of every program."""
    head = (
        "| program | largest difference | samples | attributed | dropped events |\n"
        + "|---" * 5
        + "|\n"
    )
    return head + "".join(
        f"| {name} | {_points(one)} | {one['samples']:,} | {one['attributed']:.2%} | "
        f"{one['dropped_events']} |\n"
        for name, one in found.items()
    )
