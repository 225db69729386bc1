"""How much of programs without a mark is `other`.

    python -m benchmarks.unmarked [--only NAME ...] [--source DIR --label before] [--out DIR]

Each is recorded in full mode, and the share of `other` in the time of the program's own process is
taken, not of those that it starts. `--source` profiles with another version
of Redline, whose results are kept beside under their label.
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

from benchmarks.machine import describe
from benchmarks.records import require_one_machine
from benchmarks.unmarked.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results" / "unmarked"
SHOWN = 4  # operations, the largest first


def measure(name: str, source: Path, seconds: float) -> dict[str, Any]:
    """Record a program with the profiler of some source tree.

    Args:
        name: of the program.
        source: a checkout's `src`.
        seconds: after which the program is given up.
    """
    with tempfile.TemporaryDirectory() as directory:
        session = str(Path(directory) / "session")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
        profiler = [sys.executable, "-m", "redline.profile"]
        program = [sys.executable, "-m", "benchmarks.unmarked.programs", name]
        command = [*profiler, "profile", "--out", session, "--", *program]
        subprocess.run(command, check=True, env=environment, cwd=ROOT, timeout=seconds)
        report = [*profiler, "report", session, "--format", "json"]
        found = subprocess.run(report, check=True, env=environment, capture_output=True, text=True)
    return shares(json.loads(found.stdout))


def shares(summary: dict[str, Any]) -> dict[str, Any]:
    """Of the process that was started first: each operation's share of its time."""
    main = summary["processes"][0]
    times: dict[str, float] = {}
    for cell in summary["cells"]:
        if cell["pid"] == main["pid"]:
            times[cell["operation"]] = times.get(cell["operation"], 0.0) + cell["corrected_s"]
    whole = sum(times.values())
    found = {key: seconds / whole for key, seconds in sorted(times.items(), key=lambda t: -t[1])}
    return {"seconds": whole, "other": found.get("other", 0.0), "shares": found}


def table(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Both versions side by side."""
    lines = ["| program | `other` before | now | the largest now |", "|---|---|---|---|"]
    for name, row in after.items():
        known = f"{100 * before[name]['other']:.1f}%" if name in before else "-"
        largest = ", ".join(f"{k} {100 * v:.0f}%" for k, v in list(row["shares"].items())[:SHOWN])
        lines.append(f"| {name} | {known} | {100 * row['other']:.1f}% | {largest} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unmarked", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=sorted(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    parser.add_argument("--label", default="now")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "unmarked.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    kept = {f"{label} {name}" for label in content.keys() - {"machine"} for name in content[label]}
    require_one_machine(path, kept - {f"{options.label} {n}" for n in options.only}, describe())
    for name in options.only:
        row = measure(name, options.source, options.seconds)
        content.setdefault(options.label, {})[name] = row
        print(f"{options.label} {name}: other {100 * row['other']:.1f}%", flush=True)
        content["machine"] = describe()
        path.write_text(json.dumps(content, indent=1) + "\n")
    words = "# Programs without a mark\n\n```bash\npython -m benchmarks.unmarked\n```\n\n"
    text = table(content.get("before", {}), content.get("now", {}))
    (options.out / "unmarked.md").write_text(words + text)
    print(text)


if __name__ == "__main__":
    main()
