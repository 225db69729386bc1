"""Whether a revision is slower than another: a paired guard against a slow-down of 3%.

    python -m benchmarks.compare main~5 main                    # the five workloads
    python -m benchmarks.compare main HEAD --workloads sac dqn
    python -m benchmarks.compare HEAD HEAD --plant 0.03         # HEAD against itself, 3% slower
    python -m benchmarks.compare --demonstrate 10 --record      # ten of those, ten without

Each revision is checked out and built beside the other. In a round, one process of each trains
the same agent; both stop after every block of env_steps and only one of them runs at a time,
by turns, on the same core, so that what disturbs the machine disturbs both. A round's figure
is the median over its groups of four blocks, A B B A, of log(time of B / time of A), in processor
time. Whose block comes second in a row is some 2% quicker, for the caches hold what is its own: in
such a group each is so once. How a process happens to lie in memory makes it a little faster or
slower for all its life: rounds with new processes average that out, and the interval is over
rounds. Rounds are added until the interval lies on one side of half the threshold, or there are
enough.

Exit code: 0 not slower, 1 slower by the threshold, 3 undecided.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare_worker import FIVE, WORKLOADS
from benchmarks.machine import as_markdown, describe

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
MIN_ROUNDS, MAX_ROUNDS = 4, 12
# Two-sided 95% quantiles of Student's t with 3 .. 11 degrees of freedom.
T_QUANTILE = (3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


@dataclass(frozen=True)
class Verdict:
    """What was found for one workload.

    Attributes:
        workload: its name.
        slowdown: B's time over A's, minus 1.
        low: lower end of its 95% interval.
        high: upper end.
        rounds: how many rounds it took.
        verdict: "slower", "not slower" or "undecided".
    """

    workload: str
    slowdown: float
    low: float
    high: float
    rounds: int
    verdict: str


class Runner:
    """A process that trains block by block when told to.

    Args:
        source: the revision's tree.
        workload: which one.
        plant: how much of its own time to waste beside it, for demonstrations.
        cores: where to run, a thread on each.
    """

    def __init__(self, source: Path, workload: str, plant: float, cores: Sequence[int]) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(source / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": str(len(cores)),
        }
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.compare_worker",
                workload,
                str(plant),
                str(len(cores)),
            ],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._commands: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        os.sched_setaffinity(self._process.pid, set(cores))
        self._ns = self._read()

    def _read(self) -> int:
        line = self._answers.readline()
        if not line:
            code = self._process.wait()
            raise SystemExit(f"a measured process ended with code {code}; its errors are above.")
        return int(line)

    def block(self) -> int:
        """Nanoseconds of one more block."""
        self._commands.write("go\n")
        self._commands.flush()
        before, self._ns = self._ns, self._read()
        return self._ns - before

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def one_round(
    sources: tuple[Path, Path], workload: str, plant: float, groups: int, cores: Sequence[int]
) -> float:
    """Median over groups of four blocks of log(B / A)."""
    runners = [
        Runner(source, workload, waste, cores)
        for source, waste in zip(sources, (0.0, plant), strict=True)
    ]
    try:
        for runner in runners:
            runner.block()
        ratios = []
        for _ in range(groups):
            times = [0, 0]
            for which in (0, 1, 1, 0):
                times[which] += runners[which].block()
            ratios.append(math.log(times[1] / times[0]))
        return statistics.median(ratios)
    finally:
        for runner in runners:
            runner.close()


def judge(workload: str, rounds: list[float], threshold: float) -> Verdict:
    """The verdict that these rounds allow.

    Args:
        workload: its name.
        rounds: at least four figures log(B / A).
        threshold: the slow-down to catch.
    """
    mean = statistics.mean(rounds)
    half = T_QUANTILE[len(rounds) - MIN_ROUNDS] * statistics.stdev(rounds) / len(rounds) ** 0.5
    border = math.log1p(threshold / 2)
    verdict = "undecided"
    if mean - half > border:
        verdict = "slower"
    elif mean + half < border:
        verdict = "not slower"
    return Verdict(
        workload,
        math.expm1(mean),
        math.expm1(mean - half),
        math.expm1(mean + half),
        len(rounds),
        verdict,
    )


def compare(
    sources: tuple[Path, Path], workload: str, arguments: argparse.Namespace, plant: float
) -> Verdict:
    """Rounds until the verdict is clear."""
    rounds: list[float] = []
    allowed = sorted(os.sched_getaffinity(0))
    if not 1 <= arguments.threads <= len(allowed):
        raise SystemExit(
            f"--threads {arguments.threads} is not between 1 and the {len(allowed)} cores here."
        )
    cores = allowed[-arguments.threads :]
    while True:
        rounds.append(one_round(sources, workload, plant, arguments.groups, cores))
        if len(rounds) < MIN_ROUNDS:
            continue
        verdict = judge(workload, rounds, arguments.threshold)
        if verdict.verdict != "undecided" or len(rounds) == MAX_ROUNDS:
            print(as_row(verdict), flush=True)
            return verdict


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A revision's tree with its extensions built, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="redline-compare-") as directory:
        tree = Path(directory) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        added = subprocess.run(
            [*git, "add", "--quiet", "--detach", str(tree), revision],
            capture_output=True,
            text=True,
        )
        if added.returncode:
            raise SystemExit(
                f"revision {revision!r} cannot be checked out: {added.stderr.strip()}. Give a "
                f"commit, branch or tag of this repository."
            )
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, stdout=subprocess.DEVNULL)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)


HEADER = "| workload | slow-down | 95% interval | rounds | verdict |\n|---|---|---|---|---|"


def as_row(verdict: Verdict) -> str:
    """A line of the table."""
    return (
        f"| {verdict.workload} | {verdict.slowdown:+.2%} | {verdict.low:+.2%} to "
        f"{verdict.high:+.2%} | {verdict.rounds} | {verdict.verdict} |"
    )


def demonstrate(arguments: argparse.Namespace) -> int:
    """Repeated comparisons of the present revision with itself, with and without a plant."""
    found: dict[str, list[Verdict]] = {}
    with checked_out("HEAD") as tree:
        for name, plant in (("identical", 0.0), ("planted", arguments.threshold)):
            print(f"\n{name}, {arguments.demonstrate} times\n\n{HEADER}", flush=True)
            found[name] = [
                compare((tree, tree), arguments.workloads[i % len(arguments.workloads)], arguments,
                        plant)
                for i in range(arguments.demonstrate)
            ]  # fmt: skip
    quiet = sum(v.verdict == "not slower" for v in found["identical"])
    caught = sum(v.verdict == "slower" for v in found["planted"])
    total = arguments.demonstrate
    print(f"\nquiet on identical revisions: {quiet} of {total}; caught: {caught} of {total}")
    if arguments.record:
        record(found, arguments, quiet, caught)
    return 0 if quiet == caught == total else 1


def record(
    found: dict[str, list[Verdict]], arguments: argparse.Namespace, quiet: int, caught: int
) -> None:
    """Write benchmarks/results/compare.json and compare.md."""
    command = f"python -m benchmarks.compare {' '.join(sys.argv[1:])}"
    total = arguments.demonstrate
    document: dict[str, Any] = {
        "command": command,
        "machine": describe(),
        "threshold": arguments.threshold,
        "groups": arguments.groups,
        **{name: [asdict(verdict) for verdict in verdicts] for name, verdicts in found.items()},
    }
    (RESULTS / "compare.json").write_text(json.dumps(document, indent=1) + "\n")
    tables = "\n\n".join(
        f"## {title}\n\n{HEADER}\n" + "\n".join(map(as_row, found[name]))
        for name, title in (
            ("identical", "Two identical revisions"),
            ("planted", f"One of them slower by {arguments.threshold:.0%}"),
        )
    )
    (RESULTS / "compare.md").write_text(
        f"# The guard against slow-downs\n\nQuiet on identical revisions {quiet} of {total} times; "
        f"a planted slow-down of {arguments.threshold:.0%} caught {caught} of {total} times. "
        f"{arguments.groups} groups of four blocks per round. Command: `{command}`.\n\n{tables}\n\n"
        f"{as_markdown()}"
    )


def main() -> int:
    """Parse, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revisions", nargs="*", help="REV_A REV_B: the earlier and the later one")
    parser.add_argument("--workloads", nargs="+", choices=sorted(WORKLOADS), default=None)
    parser.add_argument("--threshold", type=float, default=0.03, help="the slow-down to catch")
    parser.add_argument("--groups", type=int, default=16, help="groups of four blocks per round")
    parser.add_argument("--threads", type=int, default=1, help="of each; with several, wall time")
    parser.add_argument("--plant", type=float, default=0.0, help="slow B down by so much")
    parser.add_argument("--demonstrate", type=int, default=0, metavar="TIMES")
    parser.add_argument("--record", action="store_true", help="write the demonstration's results")
    arguments = parser.parse_args()
    arguments.workloads = arguments.workloads or list(FIVE)
    if not 0.0 < arguments.threshold < 1.0 or arguments.groups < 1:
        parser.error("--threshold must lie between 0 and 1, and --groups must be at least 1.")
    if arguments.demonstrate:
        return demonstrate(arguments)
    if len(arguments.revisions) != 2:
        parser.error("give two revisions: the earlier one and the later one.")
    before, after = arguments.revisions
    with checked_out(before) as a, checked_out(after) as b:
        print(f"{after} against {before}\n\n{HEADER}", flush=True)
        verdicts = [
            compare((a, b), workload, arguments, arguments.plant)
            for workload in arguments.workloads
        ]
    if any(verdict.verdict == "slower" for verdict in verdicts):
        return 1
    return 3 if any(verdict.verdict == "undecided" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
