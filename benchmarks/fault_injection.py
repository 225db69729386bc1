"""Does every failure end a run soon, with its cause, and with nothing left behind?

    python -m benchmarks.fault_injection --rounds 200

Each round trains PPO on CartPole in a process of its own, in one of the placements that have
workers, and then something goes wrong at a random moment: an environment raises, an environment
hangs, a worker is killed with SIGKILL, or the learner is. Counted as good if

- the program ends within 10 s of that, by itself (the killed learner: all its workers do);
- what it writes names the cause: the exception's text, the signal, or for a hang the line;
- no process of it is left, and no new entry in /dev/shm;
- every fourth time, the run resumed from its directory goes on for 1,024 env_steps and ends.

Prints a line per round that is not good, and writes benchmarks/results/fault_injection.json
and .md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium

import redline
from benchmarks.machine import as_markdown, describe
from redline.train.checkpoint.store import CheckpointStore

RESULTS = Path(__file__).parent / "results"
PLACEMENTS = ("central", "alternating", "workers", "async")
FAULTS = ("raise", "hang", "kill a worker", "kill the learner")
CAUSE = {
    "raise": "the simulator has lost its balance",
    "hang": "in step",
    "kill a worker": "was killed by SIGKILL",
}
LIMIT_S = 10.0
HANG_S = 4.0  # worker_timeout_s; the rest of the limit is for a machine under load
STOPPED_S = 3.0  # a nap of 10 ms that takes longer
START_LIMIT_S = 120.0  # of the machine under load, before anything goes wrong
TOTAL_ENV_STEPS = 4096


class Faulty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises or hangs in one of its steps, and writes down when.

    Args:
        fault: "raise", "hang" or anything else for none.
        at_step: number of that step.
        note: file for the time.
    """

    def __init__(self, fault: str, at_step: int, note: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.fault, self.at_step, self.note = fault, at_step, note
        self.count = 0

    def step(self, action: Any) -> Any:
        """Step, or do what is to go wrong."""
        self.count += 1
        # The count is a part of the saved state: once is enough, also for a resumed run.
        due = self.count == self.at_step and self.fault in ("raise", "hang")
        if due and not Path(self.note).exists():
            Path(self.note).write_text(str(time.monotonic()))
            if self.fault == "raise":
                raise RuntimeError(CAUSE["raise"])
            time.sleep(1000)
        return self.env.step(action)


@dataclass
class Round:
    """What was done and what came of it."""

    placement: str
    fault: str
    ended_within_s: float = -1.0
    exit_status: int | None = None
    names_cause: bool = False
    orphans: int = 0
    shared_memory_left: int = 0
    resumed: bool | None = None

    def good(self) -> bool:
        """Whether all is as it should be."""
        return (
            0 <= self.ended_within_s <= LIMIT_S
            and self.exit_status not in (0, None)
            and self.names_cause
            and self.orphans == 0
            and self.shared_memory_left == 0
            and self.resumed is not False
        )


def train(out: str, placement: str, fault: str, at_step: int, *, resume: bool) -> None:
    """The program that something happens to."""

    def make() -> gymnasium.Env[Any, Any]:
        return Faulty(fault, at_step, f"{out}.fault")

    make.__module__, make.__qualname__ = "benchmarks.fault_injection", "Faulty"
    if resume and (Path(out) / "config.json").exists():
        found = CheckpointStore(Path(out) / "checkpoints").latest(print)
        done = 0 if found is None else found.step
        redline.train(resume=out, env=make, total_env_steps=done + TOTAL_ENV_STEPS // 4, quiet=True)
        return
    redline.train(
        "ppo",
        env=make,
        out=out,
        collector=placement,
        num_workers=2,
        worker_timeout_s=HANG_S,
        num_envs=4,
        rollout_length=32,
        # A run that is to be killed from outside must not be through before.
        total_env_steps=TOTAL_ENV_STEPS if fault in ("raise", "hang") or resume else 10**9,
        checkpoint_interval=512,
        log_interval=512,
        tensorboard=False,
        quiet=True,
    )


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """The program in a session of its own, by which its processes are found."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fault_injection", "--train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def members(session: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


class StoppedError(Exception):
    """The whole machine, or this program, stood still: times mean nothing."""


def wait_for(condition: Any, limit_s: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + limit_s
    while not condition():
        looked = time.monotonic()
        if looked > end:
            return False
        time.sleep(0.01)
        if time.monotonic() - looked > STOPPED_S:
            raise StoppedError
    return True


def one_round(placement: str, fault: str, rng: random.Random, folder: Path, resume: bool) -> Round:
    """Start, let it go wrong, and look."""
    result = Round(placement, fault)
    out, log, note = folder / "run", folder / "log", folder / "run.fault"
    shared_before = set(os.listdir("/dev/shm"))
    # 4 environments take 1,024 steps each in the whole run.
    arguments = [str(out), placement, fault, str(rng.randint(1, 900))]
    process = start(arguments, log)
    try:
        happened = happen(fault, process, out, note, rng)
        wait_for(lambda: process.poll() is not None, 3 * LIMIT_S)
        wait_for(lambda: not members(process.pid), max(0.0, happened + LIMIT_S - time.monotonic()))
        result.ended_within_s = round(time.monotonic() - happened, 2)
        result.exit_status = process.returncode
        text = log.read_text(errors="replace")
        result.names_cause = fault == "kill the learner" or CAUSE[fault] in text
        result.orphans = len(members(process.pid))
        result.shared_memory_left = len(set(os.listdir("/dev/shm")) - shared_before)
    finally:
        for pid in members(process.pid):
            os.kill(pid, 9)
        process.wait()
    if resume:
        again = start([*arguments[:2], "none", "0", "--resume"], folder / "log2")
        wait_for(lambda: again.poll() is not None, START_LIMIT_S)
        result.resumed = again.poll() == 0
        for pid in members(again.pid):
            os.kill(pid, 9)
        again.wait()
    if not result.good():
        print(f"{result}\n{log.read_text(errors='replace')[-3000:]}", flush=True)
    return result


def happen(fault: str, process: Any, out: Path, note: Path, rng: random.Random) -> float:
    """Wait for the fault, or do it; when it was."""
    if fault in ("raise", "hang"):
        if not wait_for(lambda: note.exists() and note.read_text(), START_LIMIT_S):
            raise SystemExit("the run never came to its fault")
        return float(note.read_text())
    if not wait_for((out / "config.json").exists, START_LIMIT_S):
        raise SystemExit("the run never began")
    time.sleep(rng.uniform(0.0, 3.0))
    workers = [pid for pid in members(process.pid) if pid != process.pid]
    victim = process.pid if fault == "kill the learner" else rng.choice(workers)
    os.kill(victim, 9)
    return time.monotonic()


def main() -> int:
    """Run the rounds; 0 if all were good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "fault_injection.json")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        out, placement, fault, at_step = options.train
        train(out, placement, fault, int(at_step), resume=options.resume)
        return 0
    rng = random.Random(options.seed)
    kinds = [(p, f) for f in FAULTS for p in PLACEMENTS]
    rounds = []
    while len(rounds) < options.rounds:
        number = len(rounds)
        placement, fault = kinds[number % len(kinds)]
        # A quarter of each kind: the turns of 16 kinds come by once in 16 rounds.
        resume = (number // len(kinds) + number) % 4 == 0
        with tempfile.TemporaryDirectory() as folder:
            try:
                rounds.append(one_round(placement, fault, rng, Path(folder), resume))
            except StoppedError:
                print("stopped from outside: this round is repeated", flush=True)
                continue
        if len(rounds) % 16 == 0 or len(rounds) == options.rounds:
            print(f"{len(rounds)} rounds, {sum(r.good() for r in rounds)} good", flush=True)
            write(rounds, options.seed, options.out)
    return 0 if all(r.good() for r in rounds) else 1


def write(rounds: list[Round], seed: int, path: Path) -> None:
    """The outcomes by placement and fault."""
    groups: dict[tuple[str, str], list[Round]] = collections.defaultdict(list)
    for r in rounds:
        groups[r.placement, r.fault].append(r)
    lines = "".join(
        f"| {placement} | {fault} | {len(group)} | {sum(r.good() for r in group)} | "
        f"{max(r.ended_within_s for r in group):.1f} | {sum(r.orphans for r in group)} | "
        f"{sum(r.shared_memory_left for r in group)} | "
        f"{sum(r.resumed is True for r in group)} of "
        f"{sum(r.resumed is not None for r in group)} |\n"
        for (placement, fault), group in sorted(groups.items())
    )
    text = (
        "# Fault injection\n\n```bash\npython -m benchmarks.fault_injection "
        f"--rounds {len(rounds)} --seed {seed}\n```\n\n{len(rounds)} rounds, "
        f"{sum(r.good() for r in rounds)} good: ended within {LIMIT_S:g} s of the fault, named its "
        "cause, left no process and no shared memory, and went on when resumed.\n\n"
        "| collector | fault | rounds | good | longest end (s) | "
        f"orphans | shared memory left | resumed |\n|---|---|---|---|---|---|---|---|\n{lines}\n"
        f"{as_markdown()}"
    )
    path.with_suffix(".md").write_text(text)
    content = {"machine": describe(), "seed": seed, "rounds": [asdict(r) for r in rounds]}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
