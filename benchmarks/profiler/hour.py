"""What a long session takes: disk, and the memory and time of its reports.

    redline profile --out DIR -- python program.py    # for an hour
    python -m benchmarks.profiler.hour DIR --what "SB3 PPO on CartPole"

Each command runs in a process of its own; its peak of resident memory is what the system says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

RESULTS = Path(__file__).parents[1] / "results" / "profiler" / "hour"
COMMANDS = {
    "report": ["report", "{session}"],
    "report --html": ["report", "{session}", "--html", "{out}/page.html"],
    "advise": ["advise", "{session}"],
}

__all__ = ["main"]


def run(arguments: list[str]) -> dict[str, float]:
    """Run a command of the command line; its times and its peak of memory."""
    began_s = time.monotonic()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "redline", *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise SystemExit(f"redline {' '.join(arguments)} failed: {status}")
    return {
        "wall_s": round(time.monotonic() - began_s, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
    }


def inspect(session: Path) -> dict[str, Any]:
    """Size, events and length of a session."""
    from redline.profile.reader import open_session

    opened = open_session(session)
    ends = [process.end for process in opened.processes if process.end is not None]
    seconds = [
        (int(process.end["time_ns"]) - process.base_ns) / 1e9
        for process in opened.processes
        if process.end is not None
    ]
    return {
        "mode": opened.mode,
        "processes": len(opened.processes),
        "seconds": round(max(seconds, default=0.0), 1),
        "cpu_s": round(sum(float(end["cpu_s"]) for end in ends), 1),
        "events": sum(int(end["events"]) for end in ends),
        "bytes": sum(path.stat().st_size for path in session.rglob("*") if path.is_file()),
    }


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description="What a long session takes.")
    parser.add_argument("session", type=Path)
    parser.add_argument("--what", required=True, help="which program was recorded")
    parser.add_argument("--only", choices=COMMANDS, action="append", help="these commands")
    options = parser.parse_args()
    found: dict[str, Any] = {"what": options.what, "machine": describe()}
    found |= inspect(options.session)
    found["commands"] = {}
    for name in options.only or COMMANDS:
        with tempfile.TemporaryDirectory() as out:
            arguments = [a.format(session=options.session, out=out) for a in COMMANDS[name]]
            found["commands"][name] = run(arguments)
        _write(found)
        sys.stdout.write(f"{name}: {found['commands'][name]}\n")


def _write(found: dict[str, Any]) -> None:
    RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    megabytes = found["bytes"] / 1e6
    lines = [
        f"# {found['what']}: a session of {found['seconds'] / 60:.0f} minutes",
        "",
        f"Mode `{found['mode']}`, processes: {found['processes']}, {found['events']:,} rows, "
        f"{megabytes:,.0f} MB on disk; {found['cpu_s']:,.0f} s of CPU time were recorded: "
        f"{megabytes / found['cpu_s']:.2f} MB a second of CPU time.",
        "",
        "| command | wall, s | CPU, s | peak of resident memory, MB |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `redline {name}` | {row['wall_s']} | {row['cpu_s']} | {row['peak_mb']} |"
        for name, row in found["commands"].items()
    ]
    machine = found["machine"]
    about = f"{machine['processor']}, {machine['system']}, Python {machine['python']}"
    about += f", numpy {machine['numpy']}; each command on {machine['cores']} core(s)."
    lines += ["", about, "", "    python -m benchmarks.profiler.hour DIR --what WORDS", ""]
    RESULTS.with_suffix(".md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
