"""The cost of light or full mode within one run of every program, see `blocks`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from typing import Any

from benchmarks.machine import HARDWARE, describe
from benchmarks.profiler.blocks import FULL, cost
from benchmarks.profiler.programs import ROOT, versions_of

ABOUT = "Recording in every other block of one run, off, on, on, off; 95% intervals."
ABOUT_FULL = (
    " Taken out: by the session's own report, of the same blocks. Error: what is left of the cost, "
    "so corrected time against time that was not recorded. A session whose interval for a callback "
    "is too wide is not corrected, and counts as it is. The error is known no better than the cost."
)


def measure_within(options: argparse.Namespace) -> None:
    """Run them one after the other, and write MODE-X.Y.json and .md."""
    mode = options.command
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    found = {}
    for name in options.only:
        command = [options.python, "-m", "benchmarks.profiler.blocks", "--program", name]
        done = subprocess.run(
            [*command, "--mode", mode, "--blocks", str(options.blocks)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        found[name] = one = json.loads(done.stdout.strip().splitlines()[-1])
        left = f", {error(one):+.2%} after correction" if mode == FULL else ""
        print(f"{name}: {one['cost']:+.2%} +- {one['half_width']:.2%}{left}", flush=True)
    versions = versions_of(options.python)
    short = ".".join(versions["python"].split(".")[:2])
    machine = {key: describe()[key] for key in HARDWARE}
    command = f"python -m benchmarks.profiler {mode} --python PYTHON --blocks {options.blocks}"
    options.out.mkdir(parents=True, exist_ok=True)
    head = {"machine": machine, "versions": versions, "command": command}
    path = options.out / f"{mode}-{short}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if all(known.get(key) == value for key, value in head.items()):
        found = known["programs"] | found  # those measured anew take the place of the old ones
    for one in found.values():
        one["cost"], one["half_width"] = cost(one["seconds"])
    content = {**head, "programs": found}
    path.write_text(json.dumps(content, indent=1) + "\n")
    table = full_table(found) if mode == FULL else light_table(found)
    about = "\n".join(f"| {key} | {value} |" for key, value in {**machine, **versions}.items())
    path.with_suffix(".md").write_text(
        f"# Profiler: {mode} mode on Python {versions['python']}\n\n```bash\n{command}\n```\n\n"
        f"{ABOUT}{ABOUT_FULL if mode == FULL else ''}\n\n"
        f"{table}\n| machine | |\n|---|---|\n{about}\n"
    )


def error(one: dict[str, Any]) -> float:
    """Of a program's corrected time, relative to its unrecorded time."""
    return one["cost"] - one["taken_out"]


def light_table(found: dict[str, dict[str, Any]]) -> str:
    """The cost of light mode."""
    head = "| program | cost | +- | blocks | s per block | env_steps |\n" + "|---" * 6 + "|\n"
    return head + "".join(
        f"| {name} | {one['cost']:+.2%} | {one['half_width']:.2%} | {one['blocks']} | "
        f"{one['block_s']:.2f} | {one['env_steps_per_block']:,} |\n"
        for name, one in found.items()
    )


def full_table(found: dict[str, dict[str, Any]]) -> str:
    """The cost of full mode, and the error of corrected times."""
    head = (
        "| program | cost | +- | taken out | error | ns per callback | callbacks | "
        "blocks | s per block | env_steps |\n" + "|---" * 10 + "|\n"
    )
    rows = "".join(
        f"| {name} | {one['cost']:+.2%} | {one['half_width']:.2%} | {one['taken_out']:.2%} | "
        f"{error(one):+.2%} | {nanoseconds(one)} | {one['callbacks']:,} | {one['blocks']} | "
        f"{one['block_s']:.2f} | {one['env_steps_per_block']:,} |\n"
        for name, one in found.items()
    )
    errors = [abs(error(one)) for one in found.values()]
    mean = sum(errors) / len(errors)
    return f"{head}{rows}\nError: mean absolute {mean:.1%}, worst {max(errors):.1%}.\n"


def nanoseconds(one: dict[str, Any]) -> str:
    """What one callback costs, by the session's estimate."""
    low, high = one["ci_ns"]
    estimate = f"{one['unit_ns']:.0f} ({low:.0f} to {high:.0f})"
    return estimate if one["corrected"] else f"{estimate}, not used"
