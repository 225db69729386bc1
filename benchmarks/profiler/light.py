"""The cost of light mode in every program, see `blocks`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess

from benchmarks.machine import describe
from benchmarks.profiler.programs import HARDWARE, ROOT, versions_of


def measure_light(options: argparse.Namespace) -> None:
    """Run them one after the other, and write light-X.Y.json and .md."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    found = {}
    for name in options.only:
        command = [options.python, "-m", "benchmarks.profiler.blocks", "--program", name]
        done = subprocess.run(
            [*command, "--blocks", str(options.blocks)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
        one = found[name]
        print(f"{name}: {one['cost']:+.2%} +- {one['half_width']:.2%}", flush=True)
    versions = versions_of(options.python)
    short = ".".join(versions["python"].split(".")[:2])
    machine = {key: describe()[key] for key in HARDWARE}
    command = f"python -m benchmarks.profiler light --python PYTHON --blocks {options.blocks}"
    options.out.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "versions": versions, "command": command, "programs": found}
    path = options.out / f"light-{short}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    rows = "".join(
        f"| {name} | {one['cost']:+.2%} | {one['half_width']:.2%} | {one['blocks']} | "
        f"{one['block_s']:.2f} | {one['env_steps_per_block']:,} |\n"
        for name, one in found.items()
    )
    about = "\n".join(f"| {key} | {value} |" for key, value in {**machine, **versions}.items())
    path.with_suffix(".md").write_text(
        f"# Profiler: light mode on Python {versions['python']}\n\n```bash\n{command}\n```\n\n"
        "Recording in every other block of one run, off, on, on, off; 95% intervals.\n\n"
        "| program | cost | +- | blocks | s per block | env_steps |\n|---|---|---|---|---|---|\n"
        f"{rows}\n| machine | |\n|---|---|\n{about}\n"
    )
