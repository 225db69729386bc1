"""Do memory, files and threads of a run stay as they are for hours?

    python -m benchmarks.soak --hours 6            # both cases at once
    python -m benchmarks.soak --report FILE.csv    # only the table of an earlier series

Each case trains in a process of its own. Once a minute its resident memory (proportional, so that
shared pages count once), open files and threads are read from /proc, workers included, and
appended to a CSV file that is whole after every line. At the end the slope of memory over time is
fitted (least squares, without the first fifth, in which replay and caches fill), and
benchmarks/results/soak.md is written. The slope counts as none where its 95% interval holds 0, or
where it comes to less than `NOISE_KIB_PER_HOUR`.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fault_injection import members
from benchmarks.machine import as_markdown

RESULTS = Path(__file__).parent / "results"
ENDLESS = 10**9
CASES = {
    "ppo, workers": (
        "ppo --env CartPole-v1 --collector workers --num-workers 2 --num-threads 1 "
        "--log-interval 20000 --checkpoint-interval 200000"
    ),
    "sac, prioritized replay": (
        "sac --env Pendulum-v1 --prioritized --replay-size 20000 --learning-starts 1000 "
        "--num-threads 1 --log-interval 2000 --checkpoint-interval 20000"
    ),
}
NOISE_KIB_PER_HOUR = 512.0
WARM_UP = 0.2  # of a series, left out of the fit


@dataclass(frozen=True, slots=True)
class Sample:
    """What a case had at one moment.

    Attributes:
        case: its name.
        hours: since it began.
        pss_kib: proportional resident memory of all its processes.
        files: open descriptors of all its processes.
        threads: of all its processes.
        processes: how many these are.
        env_steps: of the last row of its progress.csv.
    """

    case: str
    hours: float
    pss_kib: int
    files: int
    threads: int
    processes: int
    env_steps: int


def look(case: str, hours: float, session: int, run: Path) -> Sample:
    """Read /proc and progress.csv."""
    pss = files = threads = processes = 0
    for pid in members(session):
        home = Path(f"/proc/{pid}")
        try:
            rollup = (home / "smaps_rollup").read_text()
            files += len(list((home / "fd").iterdir()))
            threads += len(list((home / "task").iterdir()))
        except OSError:
            continue  # it has just ended
        pss += next(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:")
        processes += 1
    return Sample(case, round(hours, 4), pss, files, threads, processes, _env_steps(run))


def _env_steps(run: Path) -> int:
    try:
        with (run / "progress.csv").open() as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return 0
    return int(float(rows[-1]["env_steps"])) if rows else 0


def soak(hours: float, interval_s: float, path: Path) -> int:
    """Run the cases and append their samples to `path`; 0 if all lived until the end."""
    began, status = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Sample)])
        runs = {case: Path(folder, str(number)) for number, case in enumerate(CASES)}
        processes = {case: _start(arguments, runs[case]) for case, arguments in CASES.items()}
        try:
            while time.monotonic() - began < hours * 3600:
                time.sleep(interval_s)
                for case, process in processes.items():
                    if process.poll() is not None:
                        print(f"{case} ended with {process.returncode}", flush=True)
                        return 1
                    now = (time.monotonic() - began) / 3600
                    writer.writerow(astuple(look(case, now, process.pid, runs[case])))
                file.flush()
        finally:
            for process in processes.values():
                process.send_signal(signal.SIGTERM)
            status = max(_ended(process) for process in processes.values())
    return status


def _start(arguments: str, run: Path) -> subprocess.Popen[bytes]:
    options = [*shlex.split(arguments), "--total-env-steps", str(ENDLESS), "--out", str(run)]
    command = [sys.executable, "-m", "redline", "train", *options, "--quiet", "--no-tensorboard"]
    return subprocess.Popen(command, start_new_session=True)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """0 if the run saved and left when it was asked to."""
    try:
        return 0 if process.wait(120) == 128 + signal.SIGTERM else 1
    except subprocess.TimeoutExpired:
        process.kill()
        return 1


@dataclass(frozen=True, slots=True)
class Slope:
    """A line through memory over time.

    Attributes:
        kib_per_hour: least-squares slope.
        error: half the width of its 95% interval, in KiB per hour.
    """

    kib_per_hour: float
    error: float

    @property
    def is_noise(self) -> bool:
        """Whether nothing says that memory grows."""
        return self.kib_per_hour - self.error <= 0 or self.kib_per_hour < NOISE_KIB_PER_HOUR


def slope(hours: list[float], kib: list[float]) -> Slope:
    """Fit a line; the interval takes the residuals' lag-1 correlation into account.

    With correlation r of neighbors, n samples say as much as n * (1 - r) / (1 + r) free ones.

    Raises:
        ValueError: if there are fewer than 5 samples.
    """
    if len(hours) < 5:
        raise ValueError(f"{len(hours)} samples are too few for a slope; 5 are the least")
    x, y = np.asarray(hours), np.asarray(kib)
    x = x - x.mean()
    line = float((x * y).sum() / (x * x).sum())
    residual = y - y.mean() - line * x
    power = float((residual * residual).sum())
    r = float((residual[1:] * residual[:-1]).sum()) / power if power else 0.0
    free = max(3.0, len(x) * (1 - max(r, 0.0)) / (1 + max(r, 0.0)))
    deviation = math.sqrt(power / (free - 2) / (x * x).mean() / len(x))
    return Slope(line, 1.96 * deviation)


def report(path: Path, out: Path) -> bool:
    """Write the table of a series; whether nothing grew."""
    with path.open() as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    lines, steady = "", True
    longest = max(float(row["hours"]) for row in rows)
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        last = float(own[-1]["hours"])
        warm = [row for row in own if float(row["hours"]) >= WARM_UP * last]
        found = slope([float(r["hours"]) for r in warm], [float(r["pss_kib"]) for r in warm])
        spans = {name: _span(warm, name) for name in ("files", "threads", "processes")}
        steady &= found.is_noise and spans["threads"][0] == spans["threads"][1]
        steady &= spans["files"][1] - spans["files"][0] <= 2  # a checkpoint or a log being written
        low, high = _span(warm, "pss_kib")
        lines += (
            f"| {case} | {last:.2f} | {len(own)} | {int(own[-1]['env_steps']):,} | "
            f"{low / 1024:.0f} to {high / 1024:.0f} | "
            f"{found.kib_per_hour:+.0f} +- {found.error:.0f} | "
            f"{_shown(spans['files'])} | {_shown(spans['threads'])} | "
            f"{_shown(spans['processes'])} |\n"
        )
    out.write_text(
        f"# Soak\n\n```bash\npython -m benchmarks.soak --hours {longest:.2f}\n```\n\n"
        f"Both cases at once; {'nothing grew' if steady else 'SOMETHING GREW'}. Memory is "
        "proportional resident memory of a case's processes, one sample a minute; ranges and the "
        f"slope leave out the first {WARM_UP:.0%}.\n\n"
        "| case | hours | samples | env_steps | memory (MiB) | slope (KiB/h, 95%) | open files | "
        f"threads | processes |\n|---|---|---|---|---|---|---|---|---|\n{lines}\n{as_markdown()}"
    )
    return steady


def _span(rows: list[dict[str, Any]], name: str) -> tuple[int, int]:
    values = [int(row[name]) for row in rows]
    return min(values), max(values)


def _shown(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def main() -> int:
    """Run, or only report; 0 if nothing grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--interval-s", type=float, default=60.0, help="between samples")
    parser.add_argument("--samples", type=Path, default=Path("soak.csv"), help="CSV to write")
    parser.add_argument("--report", type=Path, help="CSV of an earlier series: only its table")
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.md", help="table to write")
    options = parser.parse_args()
    status = 0
    if options.report is None:
        status = soak(options.hours, options.interval_s, options.samples)
    steady = report(options.report or options.samples, options.out)
    return status if steady else 1


if __name__ == "__main__":
    sys.exit(main())
