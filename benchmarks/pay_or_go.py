"""What each hand-written or special piece buys: runs with it and without it, in turn.

    python -m benchmarks.pay_or_go --threads 1,2 --rounds 3

A piece that makes no workload at least 10% quicker is to be deleted. Each run is a process of its
own and a whole training loop; its SPS are those of the steady state, as in `benchmarks.train`. A
run without a piece falls back to what would run if it did not exist (`benchmarks/pieces.py`).
Results go to benchmarks/results/pay_or_go.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import as_markdown, describe
from benchmarks.pieces import PIECES, WORKLOADS_OF
from benchmarks.train import environment, run_json
from benchmarks.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"
LEAST_GAIN = 1.10


def run(name: str, threads: int, seed: int, without: str | None, share: float) -> float:
    """SPS of one run."""
    workload = WORKLOADS[name]
    settings = dict(workload.settings) | (PIECES[without][1] if without else {})
    command = [
        *(sys.executable, "-m", "benchmarks.peers.redline_train"),
        *("--algo", workload.algorithm, "--settings", json.dumps(settings)),
        *("--warmup", str(workload.warmup), "--measured", str(int(share * workload.measured))),
        *("--threads", str(threads), "--seed", str(seed)),
    ]
    if without:
        command += ["--without", without]
    return run_json(command, environment(threads))["sps"]


def measure(name: str, pieces: list[str], threads: int, options: Any) -> dict[str, Any]:
    """All pieces of one workload; the run with everything takes its turn among the others."""
    sides: list[str | None] = [None, *pieces]
    found: dict[str | None, list[float]] = {side: [] for side in sides}
    for round_ in range(options.rounds):
        turn = round_ % len(sides)
        for side in sides[turn:] + sides[:turn]:
            found[side].append(run(name, threads, round_ + 1, side, options.share))
            print(f"{name}, {threads} threads, without {side}: {found[side][-1]:,.0f}", flush=True)
    return {
        "sps": statistics.median(found[None]),
        "gain": {
            piece: statistics.median(a / b for a, b in zip(found[None], found[piece], strict=True))
            for piece in pieces
        },
        "runs": {side or "everything": sps for side, sps in found.items()},
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Gains as Markdown: pieces down, workloads and threads across."""
    columns = list(results)
    text = f"| piece | {' | '.join(columns)} | stays |\n|{'---|' * (len(columns) + 2)}\n"
    for piece in PIECES:
        gains = [results[column]["gain"].get(piece) for column in columns]
        known = [gain for gain in gains if gain is not None]
        if not known:
            continue
        cells = ["" if gain is None else f"{gain:.2f}" for gain in gains]
        stays = "yes" if max(known) >= LEAST_GAIN else "no"
        text += f"| {piece} | {' | '.join(cells)} | {stays} |\n"
    return text


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--pieces", nargs="+", default=list(PIECES), choices=list(PIECES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the measured steps")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for threads in map(int, options.threads.split(",")):
        for name in options.workloads:
            pieces = [piece for piece in options.pieces if name in WORKLOADS_OF[piece]]
            if pieces:
                results[f"{name}, {threads}"] = measure(name, pieces, threads, options)
    text = table(results)
    print(text)
    command = "python -m benchmarks.pay_or_go " + " ".join(sys.argv[1:])
    (RESULTS / "pay_or_go.json").write_text(
        json.dumps({"machine": describe(), "command": command, "results": results}, indent=1) + "\n"
    )
    (RESULTS / "pay_or_go.md").write_text(
        f"# What each piece buys\n\nSPS with everything, over SPS without the piece: medians of "
        f"{options.rounds} alternating runs, by workload and number of threads. What reaches "
        f"{LEAST_GAIN:.2f} nowhere is to be deleted.\n\n{text}\n```bash\n{command}\n```\n\n"
        f"{as_markdown()}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
