"""Attack runs, sessions and the command line, and record the verdict on each attempt.

    python -m benchmarks.attack --seed 7 --rounds 1000
    python -m benchmarks.attack --seed 7 --rounds 1000 --only corruptions inputs
    python -m benchmarks.attack --seed 7 --replay corruptions 4711     # one attempt again
    python -m benchmarks.attack --minute                               # some of each kind, as in CI

| kind | an attempt | good verdicts |
|---|---|---|
| kills | a run, killed with -9 at random moments and resumed each time | identical |
| signals | a run, stopped by one signal or two at random moments and resumed | identical |
| disks | a run whose disk is full again and again, resumed when there is room | identical |
| corruptions | random damage to a run, which is then resumed | refused, fell back, harmless |
| | values changed and every hash computed again, through every command | also: ran as signed |
| sessions | random damage to a profile session, which is then reported | refused, named, harmless |
| directories | links, fifos, sockets and huge files in runs and sessions | refused, harmless |
| inputs | a random command line | refused, ran |
| envs | a random environment that breaks its contract | refused, ran |

Each kind runs in a fork of this process that is made anew now and then, and after a crash, which is
a fault of the attempt under way. The log (JSON lines, `--log`) is whole after each attempt: a
series that was killed goes on where it stopped when the same command is given again. At the end a
summary of the log is written to benchmarks/results/attack.md and .json; faults are printed as they
come. Series that ran apart are recorded together: `--summarize LOG LOG ...`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attack.series import FAULT, Attack, note, run_series
from benchmarks.machine import as_markdown, describe

KINDS = ("kills", "signals", "disks", "corruptions", "inputs", "directories", "envs", "sessions")
MINUTE = {
    "kills": 1, "signals": 1, "disks": 2, "corruptions": 18, "inputs": 45, "directories": 15,
    "envs": 30, "sessions": 30,
}  # fmt: skip
"""Attempts of each kind that a minute of one core has room for."""
RESULTS = Path(__file__).parents[1] / "results"
NOTES = "\n## Notes\n"  # of somebody, below what is written here
PER_PROCESS = {"inputs": 2500, "signals": 1000, "disks": 1000}  # forks leave it as it was
"""Attempts of one process, of the kinds for which it is not `_FEW`."""
_FEW = 250
SILENCE_LIMIT_S = 900.0  # without a line in the log; attempts have limits of their own


def attack_of(kind: str) -> Attack:
    """The attack of a kind; its modules are imported only where it takes place."""
    if kind == "kills":
        from benchmarks.attack.kills import Kills

        return Kills()
    if kind == "signals":
        from benchmarks.attack.signals import Signals

        return Signals()
    if kind == "disks":
        from benchmarks.attack.disks import Disks

        return Disks()
    if kind == "corruptions":
        from benchmarks.attack.corruptions import Corruptions

        return Corruptions()
    if kind == "inputs":
        from benchmarks.attack.inputs import Inputs

        return Inputs()
    if kind == "directories":
        from benchmarks.attack.directories import Directories

        return Directories()
    if kind == "envs":
        from benchmarks.attack.odd_envs import OddEnvs

        return OddEnvs()
    from benchmarks.attack.sessions import Sessions

    return Sessions()


def entries(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; one that was being written when the series was killed is left out."""
    if not log.exists():
        return
    with log.open() as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def verdicts(log: Path, kind: str) -> list[dict[str, Any]]:
    """The verdicts on a kind, in the order of the attempts."""
    found = [e for e in entries(log) if e["kind"] == kind and "verdict" in e]
    return sorted(found, key=lambda entry: entry["number"])


def attack(kind: str, seed: int, rounds: int, log: Path) -> None:
    """Make all attempts of a kind that the log does not hold yet."""
    if not any(entry["kind"] == kind for entry in entries(log)):
        note(log, {"kind": kind, "seed": seed})
    while True:
        done = {entry["number"] for entry in verdicts(log, kind)}
        first = next((number for number in range(rounds) if number not in done), rounds)
        if sum(e["count"] for e in verdicts(log, kind)) >= rounds or first >= rounds:
            return
        last = min(rounds, first + PER_PROCESS.get(kind, _FEW))
        status = _watched(_forked(kind, seed, first, last, log), log)
        if status != 0:
            _note_crash(kind, first, status, log)


def _forked(kind: str, seed: int, first: int, last: int, log: Path) -> int:
    """Make attempts in a fork of this process, which has loaded what they need; its id."""
    from benchmarks.attack.forks import load_everything

    load_everything()
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        child(kind, seed, first, last, log)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001 (this is the end of the process)
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _watched(pid: int, log: Path) -> int:
    """Wait for a child as long as its log grows; its exit status."""
    size, since = -1, time.monotonic()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
        now = log.stat().st_size if log.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > SILENCE_LIMIT_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGKILL


def _note_crash(kind: str, first: int, status: int, log: Path) -> None:
    """Blame the attempt that was under way."""
    begun = [e["begin"] for e in entries(log) if e["kind"] == kind and "begin" in e]
    done = {entry["number"] for entry in verdicts(log, kind)}
    under_way = [number for number in begun if number not in done]
    if not under_way:
        raise SystemExit(f"{kind}: nothing could be prepared; the process ended with {status}")
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    note(log, {"kind": kind, "number": under_way[-1], "what": "", "verdict": FAULT, "count": 1,
               "detail": f"the process ended by {how}", "group": ""})  # fmt: skip
    del first


def tally(logs: Sequence[Path]) -> list[dict[str, Any]]:
    """Counts of the verdicts by kind, seed and group, of one log or several."""
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        for log in logs:
            groups: dict[str, collections.Counter[str]] = {}
            for entry in verdicts(log, kind):
                of = groups.setdefault(entry["group"], collections.Counter())
                of[entry["verdict"]] += entry["count"]
            seed = next((e["seed"] for e in entries(log) if e["kind"] == kind and "seed" in e), "")
            found += [
                {"kind": kind, "seed": seed, "of": group, "count": sum(counts.values()),
                 "verdicts": dict(counts.most_common())}
                for group, counts in sorted(groups.items())
            ]  # fmt: skip
    return found


def summary(counted: list[dict[str, Any]]) -> str:
    """What `tally` counted, as Markdown."""
    lines = ""
    for each in counted:
        said = ", ".join(f"{count} {verdict}" for verdict, count in each["verdicts"].items())
        lines += f"| {each['kind']} | {each['seed']} | {each['of']} | {each['count']} | {said} |\n"
    faults = sum(each["verdicts"].get(FAULT, 0) for each in counted)
    return (
        "# Attacks\n\n```bash\npython -m benchmarks.attack --seed SEED --rounds N --only KIND\n```"
        f"\n\n{faults} faults. What the verdicts mean is in `benchmarks/attack/__main__.py`; kills "
        "and stops by signals are counted one by one, everything else by attempt.\n\n"
        f"| kind | seed | of | count | verdicts |\n|---|---|---|---|---|\n{lines}\n{as_markdown()}"
    )


def record(logs: Sequence[Path], to: Path) -> None:
    """Write the counts as Markdown, and as JSON beside it; notes at the end of the former stay.

    So does what was recorded of kinds that these logs do not have.
    """
    counted = tally(logs)
    made, path = {each["kind"] for each in counted}, to.with_suffix(".json")
    known = json.loads(path.read_text())["attacks"] if path.exists() else []
    counted += [each for each in known if each["kind"] not in made]
    counted.sort(key=lambda each: KINDS.index(each["kind"]))
    notes = to.read_text().partition(NOTES)[1:] if to.exists() else ()
    to.write_text(summary(counted) + "".join(notes))
    found = {"machine": describe(), "attacks": counted}
    path.write_text(json.dumps(found, indent=1) + "\n")


def child(kind: str, seed: int, first: int, last: int, log: Path) -> None:
    """Make some attempts in this process."""
    done = {entry["number"] for entry in verdicts(log, kind)}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if kind not in (
        "kills",
        "signals",
    ):  # who ends a series would end an attempt, which looks like a fault
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        numbers = range(first, last)
        if done & set(numbers):
            numbers = range(first, next(n for n in (*numbers, last) if n in done or n == last))
        run_series(attack_of(kind), seed, numbers, Path(folder), log)


def main() -> int:
    """Attack; 0 if there is no fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, help="of everything; fresh and printed if left out")
    parser.add_argument("--rounds", type=int, default=100, help="of each kind")
    parser.add_argument("--minute", action="store_true", help="some of each kind instead")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--log", type=Path, help="JSON lines; the same log goes on")
    parser.add_argument("--record", type=Path, help="to write; of a minute nothing if left out")
    parser.add_argument("--summarize", nargs="+", type=Path, help="logs, to record together")
    parser.add_argument("--replay", nargs=2, metavar=("KIND", "NUMBER"), help="one attempt again")
    options = parser.parse_args()
    if options.summarize:
        record(options.summarize, options.record or RESULTS / "attack.md")
        return 0
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    log = options.log or Path(tempfile.gettempdir()) / f"redline-attack-{seed}.jsonl"
    if options.replay:
        kind, number = options.replay
        log = Path(tempfile.mkdtemp()) / "log"
        child(kind, seed, int(number), int(number) + 1, log)
        print(json.dumps(verdicts(log, kind), indent=1))
        return 0
    for kind in options.only:
        attack(kind, seed, MINUTE[kind] if options.minute else options.rounds, log)
        found = [e for e in verdicts(log, kind) if e["verdict"] == FAULT]
        for entry in found:
            print(f"FAULT: {kind} {entry['number']}: {entry['what']}\n{entry['detail']}")
            again = f"--seed {seed} --replay {kind} {entry['number']}"
            print(f"Once more: python -m benchmarks.attack {again}")
        total = sum(e["count"] for e in verdicts(log, kind))
        print(f"{kind}: {total}, {len(found)} faults", flush=True)
    if options.record or not options.minute:
        record([log], options.record or RESULTS / "attack.md")
    return 1 if any(e.get("verdict") == FAULT for e in entries(log)) else 0


def _once_more_with_one_thread() -> None:
    """Linear algebra starts its threads as it is imported, and a fork would lack them."""
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if one.items() - os.environ.items():
        os.execve(sys.executable, sys.orig_argv, os.environ | one)


if __name__ == "__main__":
    _once_more_with_one_thread()
    sys.exit(main())
