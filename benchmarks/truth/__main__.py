"""Measure the table of truth."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.truth.clocks import WAITS
from benchmarks.truth.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "truth"
TOLERANCE = 0.06
IDLE = ("waiting", "ready")
HOW = {False: "in turn", True: "beside a twin"}
COLUMNS = ("true_s", "raw_s", "corrected_s", "ci_low_s", "ci_high_s")


def build_stub(python: str, directory: Path) -> None:
    """A module that passes for the ML back end: `torch.spin(ns)` takes so long."""
    code = "from sysconfig import *; print(get_config_var('EXT_SUFFIX'), get_paths()['include'])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    suffix, include = found.stdout.split()
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    source = ROOT / "tests" / "profile" / "stub.c"
    words = ["-shared", "-fPIC", "-O1", f"-I{include}", "-DNAME=torch", str(source)]
    subprocess.run([*compiler, *words, "-o", str(directory / f"torch{suffix}")], check=True)


def run(python: str, name: str, seconds: float, stubs: Path, session: Path) -> dict[str, Any]:
    """One run; what it says of its own parts."""
    command = [python, "-m", "benchmarks.truth.recorded", name, str(seconds), str(session)]
    path = os.pathsep.join([str(stubs), str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=stubs,
        env={**os.environ, "PYTHONPATH": path},
    )
    return json.loads(done.stdout.splitlines()[-1])


def reported(python: str, session: Path) -> dict[str, Any]:
    """The session's report."""
    command = [python, "-m", "redline.profile", "report", str(session), "--format", "json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout)


def compare(name: str, truth: dict[str, Any], report: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each part."""
    pid = report["processes"][0]["pid"]
    (overhead,) = report["overhead"]
    rows = []
    for part, kind in truth["kinds"].items():
        cells = [
            cell
            for cell in report["cells"]
            if cell["pid"] == pid
            and cell["operation"] == part
            and (cell["level"] in IDLE) == (kind == WAITS)
        ]
        unprofiled = [stretch[part] for stretch in truth["unprofiled"]]
        half = len(unprofiled) // 2
        first_s, last_s = sum(unprofiled[:half]), sum(unprofiled[-half:])  # of as many rounds
        sums = {k: sum(cell[k] or 0.0 for cell in cells) for k in COLUMNS if k != "true_s"}
        rows.append(
            {
                "program": name,
                "part": part,
                "kind": kind,
                "true_s": sum(unprofiled),
                **sums,
                # A twin is as fast at each moment.
                "drift": 0.0 if truth["shared"] else last_s / first_s - 1,
                "shared": truth["shared"],
                "corrected": overhead["corrected"],
            }
        )
    return rows


def pooled(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each part, of the means over several processes.

    So are the ends of its interval: most of its width is what nobody knows of the probe, and that
    is the same in each process.
    """
    rows = []
    for same in zip(*runs, strict=True):
        mean = {key: statistics.mean(row[key] for row in same) for key in COLUMNS}
        error = mean["corrected_s"] / mean["true_s"] - 1
        rows.append(
            {
                **same[0],
                **mean,
                "drift": max((row["drift"] for row in same), key=abs),
                "corrected": all(row["corrected"] for row in same),
                "error": error,
                "errors": [row["corrected_s"] / row["true_s"] - 1 for row in same],
                "inside": abs(error) <= TOLERANCE
                or mean["ci_low_s"] <= mean["true_s"] <= mean["ci_high_s"],
            }
        )
    return rows


def measure(
    python: str, name: str, seconds: float, stubs: Path, processes: int, tries: int
) -> list[dict[str, Any]]:
    """Unprofiled and profiled, of equal work, in several processes.

    A process is as fast as its memory happens to lie, and where both are run in turn a time is
    known only as well as the first and the last half agree. So several are run, one after the
    other, and more, up to so many tries, while one of them drifts by more than the tolerance; the
    steadiest count.
    """
    found: list[list[dict[str, Any]]] = []
    while len(found) < processes + tries and not _are_steady(found, processes):
        with tempfile.TemporaryDirectory() as directory:
            session = Path(directory) / "session"
            truth = run(python, name, seconds, stubs, session)
            found.append(compare(name, truth, reported(python, session)))
    return pooled(sorted(found, key=drift)[:processes])


def _are_steady(found: list[list[dict[str, Any]]], processes: int) -> bool:
    return sum(drift(rows) <= TOLERANCE for rows in found) >= processes


def drift(rows: list[dict[str, Any]]) -> float:
    """The largest difference between the first and the last unprofiled half of a part, of 1."""
    return max(abs(row["drift"]) for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| program | part | measured | true s | raw s | corrected s | interval s | error "
        "| of each process | inside |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        each = ", ".join(f"{100 * error:+.1f}" for error in row["errors"])
        lines.append(
            f"| {row['program']} | {row['part']} | {HOW[row['shared']]} | "
            f"{row['true_s']:.3f} | {row['raw_s']:.3f} | "
            f"{row['corrected_s']:.3f}{'' if row['corrected'] else ' (cost left in)'} | "
            f"{row['ci_low_s']:.3f} to {row['ci_high_s']:.3f} | {100 * row['error']:+.1f}% | "
            f"{each} | {'yes' if row['inside'] else 'no'} |"
        )
    errors = [abs(row["error"]) for row in rows]
    signed = statistics.mean(row["error"] for row in rows)
    inside = sum(row["inside"] for row in rows)
    near = sum(abs(row["error"]) <= TOLERANCE for row in rows)
    plain = sum(not row["corrected"] for row in rows)
    lines.append(
        f"\n{inside} of {len(rows)} within {TOLERANCE:.0%} ({near}) or within their interval. In "
        f"{plain} what the probe cost is left in, as it was not known well enough to take it out "
        "(their interval says so). Some or all of a row's processes are meant. What the profiler's "
        "own threads took of the shared core is taken out of all. Mean error "
        f"{100 * signed:+.1f}%, mean size {100 * statistics.mean(errors):.1f}%, largest "
        f"{100 * max(errors):.1f}%.\n"
    )
    return "\n".join(lines)


def recorded(path: Path, head: dict[str, Any], fresh: bool) -> list[dict[str, Any]]:
    """Rows measured before in the same way.

    Raises:
        SystemExit: if they were measured in another way.
    """
    if fresh or not path.exists():
        return []
    known = json.loads(path.read_text())
    if not head.items() <= known.items():
        raise SystemExit(
            f"{path} was not measured with {head}. Give --fresh to replace it, or another --out"
        )
    return known["rows"]


def line(row: dict[str, Any]) -> str:
    """A row as it is shown while measuring."""
    return (
        f"{row['program']:20s} {row['part']:20s} true {row['true_s']:.3f} raw {row['raw_s']:.3f} "
        f"corrected {row['corrected_s']:.3f} [{row['ci_low_s']:.3f}, {row['ci_high_s']:.3f}] "
        f"{row['error']:+.1%} (drift {row['drift']:+.1%}){'' if row['inside'] else ' OUTSIDE'}"
    )


def measure_version(python: str, options: argparse.Namespace) -> None:
    """The programs on one Python, each written down as soon as it is measured."""
    code = "import platform; print(platform.python_version())"
    version = subprocess.check_output([python, "-c", code], text=True).strip()
    path = options.out / f"{'.'.join(version.split('.')[:2])}.json"
    head = {"seconds": options.seconds, "processes": options.processes}
    found = recorded(path, head, options.fresh)
    with tempfile.TemporaryDirectory() as stubs:
        build_stub(python, Path(stubs))
        for name in options.only:
            rows = measure(
                python, name, options.seconds, Path(stubs), options.processes, options.tries
            )
            for row in rows:
                print(f"{version} {line(row)}", flush=True)
            found = [row for row in found if row["program"] != name] + rows
            found.sort(key=lambda row: list(PROGRAMS).index(row["program"]))
            facts = {**describe(), "python": version}
            content = {"machine": facts, **head, "rows": found}
            path.write_text(json.dumps(content, indent=1) + "\n")
    words = (
        f"# Programs of known time on Python {version}\n\n```bash\n"
        f"taskset -c 0 python -m benchmarks.truth --seconds {options.seconds:g}\n```\n\n"
        f"Each row is the mean of {options.processes} processes, the steadiest of up to "
        f"{options.processes + options.tries}; so are the ends of its interval.\n\n"
    )
    path.with_suffix(".md").write_text(words + table(found))
    print(table(found))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth", description=__doc__)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--only", nargs="+", choices=sorted(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of the unprofiled stretches")
    parser.add_argument("--processes", type=int, default=3, help="whose mean a row is")
    parser.add_argument("--tries", type=int, default=2, help="more of them while some drift")
    parser.add_argument("--fresh", action="store_true", help="forget what was recorded before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for python in options.python:
        measure_version(python, options)


if __name__ == "__main__":
    main()
