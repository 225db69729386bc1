"""How long a newcomer waits: from `git clone` to a solved CartPole, and for help.

    python -m benchmarks.newcomer
    python -m benchmarks.newcomer --installed    # with the environment at hand

Clones the last commit into an empty folder and calls what the README names there, `make demo`, its
installation timed apart from its training. With `--installed`, nothing is installed: the same
program runs by this interpreter. Then it times `redline --help` and `redline train ppo --help`. The
figures go to benchmarks/results/newcomer.md, with the load of the machine: let nothing else run.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import as_markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "newcomer.md"
SOLVED = 475.0
RETURN = re.compile(r"mean return over 20 evaluation episodes: ([\d.]+)")
HELP = {"redline --help": 0.2, "redline train ppo --help": 0.4}
"""Command -> seconds that it may take."""
NOT_A_NEWCOMERS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "MAKEFLAGS", "VIRTUAL_ENV")
AT_MOST_S = 60.0  # from the clone to a solved CartPole


@dataclass(frozen=True)
class Timing:
    """What was timed; `bound_s` None where it has none."""

    what: str
    seconds: float
    bound_s: float | None = None
    note: str = ""

    def row(self) -> str:
        """A line of the table."""
        bound = "" if self.bound_s is None else f"{self.bound_s:g}"
        return f"| {self.what} | {self.seconds:.2f} | {bound} | {self.note} |"


def timed(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> tuple[float, str]:
    """Seconds and output of a command, with further variables if `env` gives any.

    Raises:
        SystemExit: if it fails.
    """
    clean = {name: value for name, value in os.environ.items() if name not in NOT_A_NEWCOMERS}
    began_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=cwd, env=clean | dict(env or {}), check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    seconds = time.perf_counter() - began_s
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
    return seconds, done.stdout


def help_timings(
    redline: Sequence[str], cwd: Path, env: Mapping[str, str], times: int = 21
) -> list[Timing]:
    """Medians of the seconds that help takes, after one call that fills the caches."""
    found: list[Timing] = []
    for command, bound_s in HELP.items():
        words = [*redline, *command.split()[1:]]
        timed(words, cwd, env)
        seconds = [timed(words, cwd, env)[0] for _ in range(times)]
        note = f"median of {times}, {min(seconds):.2f} to {max(seconds):.2f}"
        found.append(Timing(f"`{command}`", statistics.median(seconds), bound_s, note))
    return found


def first_run(folder: Path, *, install: bool) -> list[Timing]:
    """Clone into a folder, install there if asked to, train, and ask for help."""
    clone_s, _ = timed(["git", "clone", "--quiet", ROOT.as_uri(), "redline"], folder)
    tree = folder / "redline"
    timings = [Timing("`git clone`", clone_s, note="from the same disk")]
    redline: list[str] = [sys.executable, "-m", "redline"]
    demo, env = [sys.executable, "examples/demo.py"], {"PYTHONPATH": str(ROOT / "src")}
    install_s = 0.0
    if install:
        install_s, _ = timed(["make", f"PYTHON={sys.executable}", "install"], tree)
        note = "new environment; torch and all else by pip"
        timings.append(Timing("installation", install_s, note=note))
        redline, demo, env = [str(tree / ".venv" / "bin" / "redline")], ["make", "demo"], {}
    demo_s, printed = timed(demo, tree, env)
    found = RETURN.search(printed)
    mean_return = float(found.group(1)) if found else 0.0
    if mean_return < SOLVED:
        raise SystemExit(f"CartPole was not solved:\n{printed[-2000:]}")
    note = f"trained until solved, 20 evaluation episodes with return {mean_return:.1f}, a plot"
    timings += [
        Timing(f"`{'make demo' if install else 'python examples/demo.py'}`", demo_s, note=note),
        Timing("clone to solved, without installation", clone_s + demo_s, AT_MOST_S),
    ]
    if install:
        timings.append(Timing("clone to solved, all", clone_s + install_s + demo_s))
    return timings + help_timings(redline, tree, env)


def page(timings: Sequence[Timing], command: str) -> str:
    """The results of a command as Markdown."""
    rows = "\n".join(timing.row() for timing in timings)
    load = os.getloadavg()[0]
    count = len(os.sched_getaffinity(0))
    cores = "one core" if count == 1 else f"{count} cores"
    return f"""# A newcomer's wait

`{command}`, {time.strftime("%Y-%m-%d")}, on {cores}, with a load of {load:.0f} on the machine.

| what | s | at most | |
|---|---|---|---|
{rows}

The installation depends on the network and on pip's cache, so no bound holds for it.

{as_markdown()}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--installed", action="store_true", help="install nothing")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        timings = first_run(Path(folder), install=not chosen.installed)
    command = f"python -m benchmarks.newcomer{' --installed' if chosen.installed else ''}"
    RESULTS.write_text(page(timings, command))
    for timing in timings:
        print(timing.row())
    return int(any(each.bound_s is not None and each.seconds > each.bound_s for each in timings))


if __name__ == "__main__":
    sys.exit(main())
