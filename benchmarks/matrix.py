"""The whole matrix of the stand-in accelerator: when the host waits for the device, in every cell.

    python -m benchmarks.matrix
    python -m benchmarks.matrix --algorithms sac,r2d1

Every algorithm is trained with every network, replay, storage and kind of environment that goes
with it (`tests/accelerator/matrix.py`), two iterations each. Counted are the waits in updates, in
logged rows and in the rollout with the most. Results go to benchmarks/results/matrix.md and .json,
after each cell; a second call goes on, `--again` begins anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.accelerator import emulated_graph, matrix, stand_in

from benchmarks.machine import as_markdown

RESULTS = Path(__file__).parent / "results"


def measured(cell: matrix.Cell) -> dict[str, Any]:
    """The counts of a cell and what is wrong with them, or how it failed."""
    with (
        emulated_graph.installed(),
        stand_in.counted(),
        tempfile.TemporaryDirectory() as out,
    ):
        try:
            waits = matrix.measure(cell, Path(out) / "run")
        except Exception:  # noqa: BLE001 - whatever it fails with is recorded
            return {"problems": [traceback.format_exc()[-1500:]]}
    return asdict(waits) | {"problems": matrix.problems(cell, waits)}


def as_text(found: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown: a row for each algorithm, then the reasons."""
    lines = [
        "# When the host waits for the device, on a stand-in accelerator",
        "",
        "Made by `python -m benchmarks.matrix`: two iterations of every algorithm with every",
        "network, replay, storage and kind of environment that goes with it.",
        "",
        "| algorithm | cells | updates | waits in updates | asked for by priorities in main memory "
        "| rows | waits in rows | most in a rollout of 16 steps, environments on the device "
        "| cells with a problem |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for algorithm in matrix.ALGORITHMS:
        own = {name: row for name, row in found.items() if name.startswith(f"{algorithm}-")}
        if not own:
            continue
        sums = Counter[str]()
        for name, row in own.items():
            is_asked_for = "-prioritized-memory-" in name
            sums["asked for"] += row.get("updating", 0) if is_asked_for else 0
            sums.update({k: v for k, v in row.items() if isinstance(v, int)})
        there = [row.get("collecting", 0) for name, row in own.items() if name.endswith("-device")]
        lines.append(
            f"| {algorithm} | {len(own)} | {sums['updates']} | "
            f"{sums['updating'] - sums['asked for']} | {sums['asked for']} | {sums['rows']} | "
            f"{sums['logging']} | {max(there, default='')} | "
            f"{sum(bool(row['problems']) for row in own.values())} |"
        )
    for name, row in found.items():
        for problem in row["problems"]:
            lines.append(f"\n{name}:\n\n```\n{problem.strip()}\n```")
    reasons = Counter(matrix.why_not(cell) for cell in matrix.all_cells())
    del reasons[None]
    lines += ["", "| cells that cannot exist | why |", "|---|---|"]
    lines += [f"| {count:,} | {reason} |" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n\n" + as_markdown()


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--algorithms", default=",".join(matrix.ALGORITHMS))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    options = parser.parse_args()
    file = options.out / "matrix.json"
    found: dict[str, dict[str, Any]] = {}
    if file.exists() and not options.again:
        found = json.loads(file.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    for cell in matrix.cells():
        known = found.get(str(cell))
        if cell.algorithm not in options.algorithms.split(",") or (known and not known["problems"]):
            continue
        found[str(cell)] = measured(cell)
        print(f"{cell}: {found[str(cell)]}", file=sys.stderr)
        file.write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "matrix.md").write_text(as_text(found))
    print(as_text(found))


if __name__ == "__main__":
    stand_in.install()
    main()
