"""The command line of the profiler's measurements."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.profiler.beside import measure_shares
from benchmarks.profiler.importing import measure_imports
from benchmarks.profiler.pairs import measure_pairs
from benchmarks.profiler.programs import PROGRAMS, measure_programs
from benchmarks.profiler.sweep import measure_sweep
from benchmarks.profiler.tables import write_tables
from benchmarks.profiler.within import measure_within
from benchmarks.third_party import NAMES

RESULTS = Path(__file__).parents[1] / "results" / "profiler"


def main() -> int:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profiler",
        description="What profiling costs, and how true and fast it is.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    programs = commands.add_parser("programs", help="whole programs with and without the profiler")
    programs.add_argument(
        "--python",
        default=sys.executable,
        help="runs the programs: has torch, Gymnasium and Stable-Baselines3, and the profiler's "
        "extensions are built for it (default: this one)",
    )
    programs.add_argument("--sb3-python", help="has Stable-Baselines3 (default: --python's)")
    programs.add_argument("--rounds", type=int, default=5, help="each unprofiled, light and full")
    programs.add_argument("--sample-runs", type=int, default=3, help="rounds with a sampled run")
    programs.add_argument(
        "--scale", type=float, default=1.0, help="times the steps of each program (1: some 9 s)"
    )
    programs.add_argument(
        "--only", nargs="+", metavar="PROGRAM", choices=sorted(PROGRAMS), default=list(PROGRAMS)
    )
    programs.add_argument("--fresh", action="store_true", help="forget what was recorded before")
    light = commands.add_parser("light", help="the cost of light mode within one program")
    full = commands.add_parser("full", help="the cost of full mode likewise, and what is corrected")
    shares = commands.add_parser("shares", help="level shares beside a sampler's in the same run")
    shares.add_argument("--sample-hz", type=float, default=250, help="looks per second")
    for each, length, default in ((light, "0.3", 80), (full, "1", 48)):
        each.add_argument(
            "--blocks", type=int, default=default, help=f"of some {length} s, half of them recorded"
        )
    for each in (light, full, shares):
        each.add_argument("--python", default=sys.executable, help="as for programs")
        each.add_argument(
            "--only", nargs="+", metavar="PROGRAM", choices=sorted(PROGRAMS), default=list(PROGRAMS)
        )
    pairs = commands.add_parser("pairs", help="the cost and bias of full mode, third programs")
    pairs.add_argument("--cleanrl", type=Path, help="folder of a clone of CleanRL")
    pairs.add_argument("--pairs", type=int, default=5, help="unprofiled and recorded, in turn")
    pairs.add_argument("--at-once", action="store_true", help="both of a pair at the same time")
    pairs.add_argument("--scale", type=float, default=1.0, help="times the steps of each program")
    pairs.add_argument("--only", nargs="+", metavar="PROGRAM", choices=NAMES, default=list(NAMES))
    pairs.add_argument("--fresh", action="store_true", help="forget what was recorded before")
    imports = commands.add_parser("imports", help="what full mode adds to imports")
    imports.add_argument("--pairs", type=int, default=5, help="unprofiled and recorded, in turn")
    table = commands.add_parser("table", help="write the tables of what is recorded")
    table.add_argument("--python-version", required=True, metavar="X.Y")
    sweep = commands.add_parser("sweep", help="analysis of a large session")
    sweep.add_argument("--events", type=int, default=10_000_000)
    for each in (programs, light, full, shares, pairs, imports, table, sweep):
        each.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    options = parser.parse_args()
    if options.command == "programs":
        measure_programs(options)
    elif options.command in ("light", "full"):
        measure_within(options)
    elif options.command == "shares":
        measure_shares(options)
    elif options.command == "pairs":
        measure_pairs(options)
    elif options.command == "imports":
        measure_imports(options)
    elif options.command == "table":
        print(write_tables(options.out / f"python-{options.python_version}.json"))
    else:
        measure_sweep(options.events, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
