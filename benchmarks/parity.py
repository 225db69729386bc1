"""Every algorithm's update, compiled, against its eager one, and what compiling costs.

    python -m benchmarks.parity --updates 100

Small networks; each algorithm in a process of its own, first with an empty cache of compiled
code and then with the one that left. Writes benchmarks/results/parity.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import as_markdown, describe
from benchmarks.records import recorded, require_one_machine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TOLERANCE = 0.01  # distance of the parameters, of what they moved in all


def compare(name: str, updates: int) -> dict[str, Any]:
    """One algorithm in this process."""
    from tests.engines.learners import batch, distance, make, parameters

    from redline.engines.engine import choose_engine

    eager, other = make(name), make(name)
    start = parameters(eager)
    engine = choose_engine(other, "compile")
    for seed in range(updates):
        data = batch(name, eager, seed)
        eager.update(data)
        engine.update(data)
    wanted = parameters(eager)
    if engine.compiled is None:
        raise RuntimeError(f"{name} was not compiled: {engine.reason}")
    return {
        "distance": distance(parameters(other), wanted) / distance(start, wanted),
        "compile_s": engine.compiled.compile_s,
        "graphs": engine.compiled.graphs,
        "graph_breaks": engine.compiled.graph_breaks,
    }


def in_process(name: str, updates: int, cache: str) -> dict[str, Any]:
    """The same in a process that keeps compiled code in `cache`."""
    env = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    command = [sys.executable, "-m", "benchmarks.parity", "--one", name]
    command += ["--updates", str(updates)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> int:
    """Compare all; 1 if one strays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--one", help="only this algorithm, in this process")
    parser.add_argument("--only", nargs="+", help="of these; the others stay as they are recorded")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compare(options.one, options.updates)))
        return 0
    from tests.engines.learners import LEARNERS

    rows: dict[str, dict[str, Any]] = {}
    if options.only:
        rows = recorded(RESULTS / "parity.json").get("results", {})
        require_one_machine(RESULTS / "parity.json", {*rows} - {*options.only}, describe())
    for name in options.only or LEARNERS:
        with tempfile.TemporaryDirectory() as cache:
            cold = in_process(name, options.updates, cache)
            cached = in_process(name, options.updates, cache)
        rows[name] = cold | {"cached_compile_s": cached["compile_s"]}
        print(name, rows[name], flush=True)
    table = "".join(
        f"| {name} | {r['distance']:.1e} | {r['compile_s']:.1f} | {r['cached_compile_s']:.1f} | "
        f"{r['graphs']} | {r['graph_breaks']} |\n"
        for name, r in rows.items()
    )
    (RESULTS / "parity.md").write_text(
        f"# Compiled updates beside eager ones\n\nAfter {options.updates} updates of small "
        f"networks from the same seed; the distance of all parameters, of what they moved in all "
        f"(at most {TOLERANCE}).\n\n| algorithm | distance | compile s, cold | cached | graphs | "
        f"graph breaks |\n|---|---|---|---|---|---|\n{table}\n```bash\npython -m "
        f"benchmarks.parity --updates {options.updates}\n```\n\n{as_markdown()}"
    )
    (RESULTS / "parity.json").write_text(
        json.dumps({"machine": describe(), "results": rows}, indent=1) + "\n"
    )
    return 0 if all(r["distance"] < TOLERANCE for r in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
