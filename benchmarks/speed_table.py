"""Every workload with every way to run its update: the published speed table.

    python -m benchmarks.speed_table --modes eager,cpu,compile --threads 1
    python -m benchmarks.speed_table --device cuda --modes eager,compile,cudagraph,compile+cudagraph

Whole training loops in alternation, steady state after a warm-up in which compiling falls; the
settings are those of `benchmarks/workloads.py`. A mode that cannot serve a workload here is
named with its reason. Every mode is run once before the rounds with an empty cache of compiled
code and once with the one that left, which gives the compile times. Writes
benchmarks/results/speed_table_<device>.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from typing import Any

from benchmarks.machine import as_markdown, describe
from benchmarks.train import ROOT, environment, run_json
from benchmarks.workloads import WORKLOADS, Workload

RESULTS = ROOT / "benchmarks" / "results"
MODES = ("eager", "cpu", "compile", "cudagraph", "compile+cudagraph")


def run(workload: Workload, mode: str, seed: int, cache: str, options: Any) -> dict[str, Any]:
    """One training run in a process of its own."""
    settings = workload.settings | {"accelerate": mode, "device": options.device}
    return run_json(
        [
            *(sys.executable, "-m", "benchmarks.peers.redline_train"),
            *("--algo", workload.algorithm, "--settings", json.dumps(settings)),
            *("--warmup", str(workload.warmup), "--measured", str(workload.measured)),
            *("--threads", str(options.threads), "--seed", str(seed)),
        ],
        environment(options.threads) | {"TORCHINDUCTOR_CACHE_DIR": cache},
    )


def measure(name: str, options: Any) -> dict[str, Any]:
    """All modes of one workload."""
    workload = WORKLOADS[name]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        caches = {mode: f"{directory}/{mode}" for mode in options.modes.split(",")}
        for mode, cache in caches.items():
            try:
                cold = run(workload, mode, 1, cache, options)
            except RuntimeError as error:
                if "ConfigError" not in str(error):
                    raise
                found[mode] = {"refused": str(error).strip().splitlines()[-1]}
                continue
            found[mode] = {"runs": [], "cold": cold["compiled"]}
            if cold["compiled"]:
                found[mode]["cached"] = run(workload, mode, 1, cache, options)["compiled"]
        running = [mode for mode in found if "runs" in found[mode]]
        for round_ in range(options.rounds if running else 0):
            turn = round_ % len(running)
            for mode in running[turn:] + running[:turn]:
                one = run(workload, mode, round_ + 1, caches[mode], options)
                found[mode]["runs"].append(one)
                print(f"{name}, {mode}: {one['sps']:,.0f} SPS", flush=True)
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    """What was measured, as Markdown."""
    text = (
        "| workload | mode | SPS | range | times eager | compile s, cold | cached | graphs | "
        "graph breaks | recompilations |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for name, modes in results.items():
        eager = [one["sps"] for one in modes.get("eager", {}).get("runs", [])]
        for mode, one in modes.items():
            if "refused" in one:
                text += f"| {name} | {mode} | | | | | | | | |\n"
                continue
            sps = [each["sps"] for each in one["runs"]]
            ratio = ""
            if eager:
                pairs = zip(sps, eager, strict=True)
                ratio = f"{statistics.median(a / b for a, b in pairs):.2f}"
            cells = ["", "", "", "", ""]
            if one["cold"]:
                cells = [
                    f"{one['cold']['compile_s']:.1f}",
                    f"{one['cached']['compile_s']:.1f}",
                    *(str(one["cold"][k]) for k in ("graphs", "graph_breaks", "recompilations")),
                ]
            text += (
                f"| {name} | {mode} | {statistics.median(sps):,.0f} | {min(sps):,.0f} .. "
                f"{max(sps):,.0f} | {ratio} | {' | '.join(cells)} |\n"
            )
    reasons = {
        one["refused"] for modes in results.values() for one in modes.values() if "refused" in one
    }
    return text + "".join(f"\nRefused: {reason}\n" for reason in sorted(reasons))


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--modes", default=",".join(MODES), help=f"of {', '.join(MODES)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-record", action="store_true", help="print only")
    options = parser.parse_args()
    if unknown := [mode for mode in options.modes.split(",") if mode not in MODES]:
        parser.error(f"--modes: there is no {unknown}; choose from {', '.join(MODES)}")
    results = {name: measure(name, options) for name in options.algo}
    text = table(results)
    print(text)
    if not options.no_record:
        command = f"python -m benchmarks.speed_table {' '.join(sys.argv[1:])}".strip()
        kind = options.device.partition(":")[0]
        path = RESULTS / f"speed_table_{kind}.md"
        path.write_text(
            f"# Ways to run an update, on {kind}\n\nWhole training loops, steady state, median of "
            f"{options.rounds} alternating runs, {options.threads} threads.\n\n{text}\n"
            f"```bash\n{command}\n```\n\n{as_markdown()}"
        )
        content = {"machine": describe(), "command": command, "results": results}
        path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
