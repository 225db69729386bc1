"""Run programs with and without the profiler, and record each run as soon as it has ended.

A round is one run of a program in each of `MODES`, in another order each time; in the first
rounds one with the sampler follows, whose level shares are compared with those of the round's
full run. Before the rounds comes a short run, which warms the caches.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import HARDWARE, describe
from benchmarks.profiler.tables import write_tables
from redline.profile.analyse.shares import compare_shares
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.reader import open_session
from redline.profile.record.options import Options
from redline.profile.runner import run_profiled

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).parents[1] / "peers"
MODES = ("unprofiled", "light", "full")
PACKAGES = ("torch", "gymnasium", "numpy", "stable-baselines3")


@dataclass(frozen=True, slots=True)
class Program:
    """A program whose work depends on its arguments alone."""

    kind: str  # redline, plain or sb3
    algorithm: str
    env: str
    env_steps: int  # some 9 s on the machine of the recorded results


# ppo and a2c collect 256 and 40 steps at once: whole numbers of those.
PROGRAMS = {
    "redline ppo": Program("redline", "ppo", "CartPole-v1", 51_200),
    "redline a2c": Program("redline", "a2c", "CartPole-v1", 120_000),
    "redline dqn": Program("redline", "dqn", "CartPole-v1", 12_800),
    "redline sac": Program("redline", "sac", "Pendulum-v1", 2_200),
    "redline td3": Program("redline", "td3", "Pendulum-v1", 2_600),
    "stable-baselines3 ppo": Program("sb3", "ppo", "CartPole-v1", 14_336),
    "stable-baselines3 sac": Program("sb3", "sac", "Pendulum-v1", 620),
    "plain gymnasium and torch": Program("plain", "reinforce", "CartPole-v1", 38_400),
}


def command(program: Program, env_steps: int, python: str, sb3_python: str) -> list[str]:
    """How to run it; `{out}` stands for a new directory, where it leaves `loop_s`."""
    # SAC and TD3 refuse a run that ends before learning starts, at 1,000.
    steps = str(max(env_steps, 1_100 if program.kind == "redline" else 256))
    if program.kind == "redline":
        return [
            *(python, "-m", "redline.cli", "train", program.algorithm, "--env", program.env),
            *("--total-env-steps", steps, "--out", "{out}/run", "--num-threads", "1"),
            *("--quiet", "--no-tensorboard"),
        ]
    if program.kind == "plain":
        script = [python, str(PEERS / "plain_loop.py"), "--env", program.env]
    else:
        script = [sb3_python, str(PEERS / "stable_baselines3_loop.py"), "--algo", program.algorithm]
    return [*script, "--env-steps", steps, "--loop-seconds-to", "{out}/loop_s"]


def loop_s(program: Program, out: Path) -> float:
    """How long the program says that its training took."""
    if program.kind != "redline":
        return float((out / "loop_s").read_text())
    head, *rows = (out / "run" / "progress.csv").read_text().splitlines()
    return float(rows[-1].split(",")[head.split(",").index("wall_time_s")])


def run_once(
    program: Program,
    words: list[str],
    mode: str,
    directory: Path,
    options: Options | None = None,
) -> dict[str, Any]:
    """One run: seconds of wall time, of CPU time with the profiler's own, and of the loop.

    Args:
        program: what runs.
        words: its command.
        mode: "unprofiled", or one of the profiler's.
        directory: where it leaves its files and `session`.
        options: of the recording, if other than the mode's.

    Raises:
        RuntimeError: if it fails.
    """
    words = [word.replace("{out}", str(directory)) for word in words]
    before, began = _cpu_s(), time.perf_counter()
    if mode == "unprofiled":
        status = subprocess.run(words, check=False).returncode
    else:
        status = run_profiled(words, directory / "session", options or Options(mode=mode))
    wall_s = time.perf_counter() - began
    if status:
        raise RuntimeError(f"{' '.join(words)} failed with status {status}, {mode}")
    return {"wall_s": wall_s, "cpu_s": _cpu_s() - before, "loop_s": loop_s(program, directory)}


def _cpu_s() -> float:
    """Of this process, in which the profiler reads the machine, and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def findings(summary: Summary) -> dict[str, Any]:
    """What the profiler says of a full run."""
    own = [cell for cell in summary.cells if cell.pid == summary.processes[0].pid]
    whole = sum(cell.raw_s for cell in summary.cells)
    known = sum(cell.raw_s for cell in summary.cells if cell.level != "unattributed")
    return {
        "taken_out_s": sum(cell.raw_s - cell.corrected_s for cell in own),
        "attributed": known / whole,
        "dropped_events": summary.dropped_events,
        "overhead": asdict(summary.overhead[0]),
    }


class Record:
    """The file of results: read before, written after every run.

    Args:
        path: of it.
        head: what was measured with what; a file with another cannot be continued.
        fresh: forget what is there.

    Raises:
        SystemExit: if there is one of another measurement.
    """

    def __init__(self, path: Path, head: dict[str, Any], fresh: bool) -> None:
        self.path = path
        self.content: dict[str, Any] = {**head, "programs": {}}
        if path.exists() and not fresh:
            self.content = json.loads(path.read_text())
            for key, value in head.items():
                if key != "commands" and self.content.get(key) != value:
                    raise SystemExit(
                        f"{path} was measured with {key} = {self.content.get(key)!r}, not "
                        f"{value!r}. Give --fresh to replace it, or another --out"
                    )
            known = self.content["commands"]
            self.content["commands"] = [*known, *(c for c in head["commands"] if c not in known)]

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """Those recorded of a program; append to it, then `save`."""
        return self.content["programs"].setdefault(name, [])

    def save(self) -> None:
        """Write it whole, then put it in place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        beside.write_text(json.dumps(self.content, indent=1) + "\n")
        beside.replace(self.path)


def measure_programs(options: argparse.Namespace) -> None:
    """All rounds that are still missing, then the tables."""
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # the programs use what lies here
    sb3_python = options.sb3_python or options.python
    versions = versions_of(options.python)
    if any(PROGRAMS[name].kind == "sb3" for name in options.only):
        found = versions_of(sb3_python).get("stable-baselines3")
        if found is None:
            raise SystemExit(f"{sb3_python} has no stable-baselines3. Give --sb3-python or --only")
        versions["stable-baselines3"] = found
    given = " ".join(Path(a).name if os.path.isabs(a) else a for a in sys.argv[1:])
    head = {
        "machine": {key: describe()[key] for key in HARDWARE},
        "versions": versions,
        "scale": options.scale,
        "commands": [f"python -m benchmarks.profiler {given}"],
    }
    short = ".".join(versions["python"].split(".")[:2])
    record = Record(options.out / f"python-{short}.json", head, options.fresh)
    for name in options.only:
        _measure(name, record, options, sb3_python)
    print(write_tables(record.path))


def _measure(name: str, record: Record, options: argparse.Namespace, sb3_python: str) -> None:
    """The rounds of one program that are still missing."""
    program, rounds = PROGRAMS[name], record.rounds(name)
    steps = round(program.env_steps * options.scale)
    if len(rounds) < options.rounds:
        words = command(program, steps // 2, options.python, sb3_python)
        with tempfile.TemporaryDirectory() as directory:
            run_once(program, words, "unprofiled", Path(directory))
    words = command(program, steps, options.python, sb3_python)
    while len(rounds) < options.rounds:
        rounds.append(_round(name, words, len(rounds), len(rounds) < options.sample_runs))
        record.save()
        write_tables(record.path)


def _round(name: str, words: list[str], number: int, sampled: bool) -> dict[str, Any]:
    """One run in each mode, and one with the sampler."""
    shift = number % len(MODES)
    modes = MODES[shift:] + MODES[:shift] + ("sample",) * sampled
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for mode in modes:
            home = Path(directory) / mode
            home.mkdir()
            found[mode] = run_once(PROGRAMS[name], words, mode, home)
        full = open_session(Path(directory) / "full" / "session")
        found["full"] |= findings(summarize(full))
        if sampled:
            rows = compare_shares(full, open_session(Path(directory) / "sample" / "session"))
            found["sample"]["levels"] = [asdict(row) for row in rows if row.kind == "level"]
    shown = ", ".join(f"{mode} {found[mode]['wall_s']:.2f} s" for mode in found)
    print(f"{name}, round {number + 1}: {shown}", flush=True)
    return found


def versions_of(python: str) -> dict[str, str]:
    """Versions of an interpreter and of what programs need, as far as it is there."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        "found = {'python': platform.python_version()}\n"
        f"for name in {PACKAGES!r}:\n"
        "    try:\n        found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
