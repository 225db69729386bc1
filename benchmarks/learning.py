"""Does it learn? Trains each setting over several seeds and holds the returns to a threshold.

    python -m benchmarks.learning --suite ppo-cartpole a2c-cartpole --jobs 2
    python -m benchmarks.learning --list
    python -m benchmarks.learning --suite published --out runs/published [--jobs N]
    python -m benchmarks.learning --suite published --out runs/published --status
    python -m benchmarks.learning --suite published --missing   # what no record has, anywhere made
    python -m benchmarks.learning --suite first --out runs/published --only 'ppo-*' 'dqn-Acrobot*'

Each seed is one `redline train` process; afterwards its agent is evaluated over 20 episodes
on seeds that training never saw. Results go to benchmarks/results/learning/<suite>.md, .json,
.csv (the curves) and .png. Run directories are kept under --runs and reused if complete.

The suites `published` and `first` take hours to days (`benchmarks/published`). They run as many
seeds at once as there are cores, each with a core and a thread of its own, and may be killed at
any moment: the same command goes on where they were. With --threads 2 each has two cores, and a
thread on each where it learns from images or its update is large. --place moves new runs to a
GPU ('--device cuda'): they are seeds of the same experiment, and the page lists them. Results go to
benchmarks/results/learning/published; the pages are docs/results.md and, of `first`,
benchmarks/results/learning/first.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import as_markdown, describe
from benchmarks.published import one_run, page, records, running
from benchmarks.published.experiments import SUITES as LONG_SUITES
from benchmarks.published.experiments import chosen
from redline.errors import RedlineError

RESULTS = Path(__file__).parent / "results" / "learning"
PAGES = {
    "first": RESULTS / "first.md",
    "published": Path(__file__).parents[1] / "docs" / "results.md",
}


_OF_LONG = ("out", "only", "missing", "threads", "place", "status", "page")  # options


@dataclass(frozen=True)
class Suite:
    """One setting, its seeds, and what counts as success."""

    arguments: str  # of `redline train`, without --seed and --out
    seeds: int
    threshold: float  # what a seed must reach, or the mean over the seeds if `needed` is 0
    needed: int  # seeds that must reach it; 0: the mean over the seeds must
    episodes: int = 20
    below: bool = False  # the threshold must not be reached: a control
    published: str = ""
    metric: str = "return_mean"  # of the evaluation, or another column of progress.csv
    then: int = 0  # env_steps to which the complete run is resumed; 0: not at all


SUITES: dict[str, Suite] = {
    "ppo-cartpole": Suite(
        "ppo --env CartPole-v1 --total-env-steps 100000", 5, 475, 5,
        published="Stable-Baselines3: 500 at 100k; CleanRL: 490 +- 6 at 500k",
    ),
    "ppo-cartpole-async": Suite(
        "ppo --env CartPole-v1 --total-env-steps 100000 --collector async --num-workers 1",
        5, 475, 5, published="the synchronous runs of ppo-cartpole: 5 of 5 at 500",
    ),
    "a2c-cartpole": Suite("a2c --env CartPole-v1 --total-env-steps 350000", 5, 475, 4),
    "reinforce-cartpole": Suite("reinforce --env CartPole-v1 --total-env-steps 120000", 5, 195, 4),
    "impala-cartpole": Suite("impala --env CartPole-v1 --total-env-steps 300000", 5, 475, 4),
    "appo-cartpole": Suite("appo --env CartPole-v1 --total-env-steps 100000", 5, 475, 5),
    "ppo-recurrent": Suite(
        "ppo --env redline/CartPoleHiddenVelocity-v1 --total-env-steps 400000", 5, 400, 4
    ),
    "ppo-transformer-tmaze": Suite(
        "ppo --env redline/TMaze-v1 --total-env-steps 80000", 5, 0.9, 4, 100
    ),
    "ppo-feedforward-control": Suite(
        "ppo --env redline/CartPoleHiddenVelocity-v1 --total-env-steps 400000 --core none",
        3, 200, 3, below=True,
    ),
    "ppo-halfcheetah": Suite(
        "ppo --env HalfCheetah-v5 --total-env-steps 1000000", 3, 1800, 0,
        published="CleanRL 1,443 +- 46 (v4); Stable-Baselines3 zoo 5,819 +- 664 (v3)",
    ),
    "ppo-hopper": Suite(
        "ppo --env Hopper-v5 --total-env-steps 1000000", 3, 2000, 0,
        published="CleanRL 2,383 +- 272 (v4); Stable-Baselines3 zoo 2,410 +- 10 (v3)",
    ),
    "ppo-minatar-breakout": Suite(
        "ppo --env MinAtar/Breakout-v1 --total-env-steps 400000", 3, 8, 0
    ),
    "dqn-cartpole": Suite("dqn --env CartPole-v1 --total-env-steps 100000", 5, 475, 4),
    "rainbow-cartpole": Suite(
        "dqn --preset rainbow --env CartPole-v1 --total-env-steps 100000", 5, 475, 4
    ),
    "r2d1-tmaze": Suite("r2d1 --env redline/TMaze-v1 --total-env-steps 100000", 5, 0.9, 4, 100),
    "r2d1-recurrent": Suite(
        "r2d1 --env redline/CartPoleHiddenVelocity-v1 --total-env-steps 200000", 3, 400, 3
    ),
    "dqn-tmaze-control": Suite(
        "dqn --env redline/TMaze-v1 --total-env-steps 100000 --num-envs 16 --rollout-length 10 "
        "--batch-size 64 --replay-ratio 8 --learning-starts 2000 --replay-size 50000 "
        "--learning-rate 1e-3 --target-update-interval 100 --epsilon-fraction 0.3",
        5, 0.6, 5, 100, below=True,
    ),
    "sac-pendulum": Suite("sac --env Pendulum-v1 --total-env-steps 20000", 5, -200, 5),
    "td3-pendulum": Suite("td3 --env Pendulum-v1 --total-env-steps 20000", 5, -200, 4),
    "ddpg-pendulum": Suite("ddpg --env Pendulum-v1 --total-env-steps 20000", 5, -200, 4),
    "diayn-pendulum": Suite(
        "diayn --env Pendulum-v1 --total-env-steps 40000", 3, 0.6, 3,
        metric="discriminator_accuracy", published="chance is 1 / 8",
    ),
    "dqn-minatar-breakout": Suite(
        "dqn --env MinAtar/Breakout-v1 --total-env-steps 400000", 1, 8, 1
    ),
}  # fmt: skip


def redline(*arguments: str) -> list[str]:
    """The command line of this interpreter's own Redline."""
    return [sys.executable, "-m", "redline.cli", *arguments]


def run_seed(suite: Suite, seed: int, out: Path) -> dict[str, Any]:
    """Train one seed (or go on with it), then evaluate it."""
    if not (out / "config.json").exists():
        options = [*shlex.split(suite.arguments), "--seed", str(seed), "--out", str(out)]
        command = redline("train", *options, "--quiet", "--no-tensorboard")
    else:
        command = redline("train", "--resume", str(out), "--quiet")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment)
    if suite.then:
        longer = ["--total-env-steps", str(suite.then), "--quiet"]
        command = redline("train", "--resume", str(out), *longer)
        subprocess.run(command, check=True, env=environment)
    evaluation = subprocess.run(
        redline("eval", str(out), "--episodes", str(suite.episodes)),
        check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    result = json.loads(evaluation.stdout.strip().splitlines()[-1])
    with (out / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = rows[-1]
    column = suite.metric if suite.metric in last else "return_mean"
    curve = [(int(row["env_steps"]), float(row[column])) for row in rows if row[column]]
    score = result.get(suite.metric, last.get(suite.metric))
    return {
        "seed": seed,
        **result,
        suite.metric: float(score),
        "env_steps": int(last["env_steps"]),
        "wall_time_s": float(last["wall_time_s"]),
        "sps": int(last["env_steps"]) / float(last["wall_time_s"]),
        "curve": curve,
    }


def verdict(suite: Suite, rows: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether the suite succeeded, and the sentence that says so."""
    scores = [row[suite.metric] for row in rows]
    mean = sum(scores) / len(scores)
    if suite.below:
        passed = sum(value < suite.threshold for value in scores)
        return passed >= suite.needed, f"{passed} of {len(rows)} seeds stay below {suite.threshold}"
    if suite.needed == 0:
        return mean >= suite.threshold, f"mean {mean:,.0f}, to reach {suite.threshold:,}"
    passed = sum(value >= suite.threshold for value in scores)
    what = "" if suite.metric == "return_mean" else f" of {suite.metric}"
    sentence = (
        f"{passed} of {len(rows)} seeds reach {suite.threshold:,}{what}, {suite.needed} needed"
    )
    return passed >= suite.needed, sentence


def write_results(name: str, suite: Suite, rows: list[dict[str, Any]], runs: list[Path]) -> bool:
    """Table, figures and curves of one suite; true if it succeeded."""
    from redline.train.progress.curves import plot_runs

    RESULTS.mkdir(parents=True, exist_ok=True)
    succeeded, sentence = verdict(suite, rows)
    measured = [] if suite.metric == "return_mean" else [suite.metric]
    names = ["seed", *measured, "return", "+-", "min", "max", "env_steps", "SPS", "time, s"]
    head = f"| {' | '.join(names)} |\n{'|---' * len(names)}|\n"
    body = "".join(
        f"| {r['seed']} {''.join(f'| {r[m]:.3f} ' for m in measured)}"
        f"| {r['return_mean']:,.1f} | {r['return_std']:,.1f} | {r['return_min']:,.1f} "
        f"| {r['return_max']:,.1f} | {r['env_steps']:,} | {r['sps']:,.0f} "
        f"| {r['wall_time_s']:,.0f} |\n"
        for r in rows
    )
    longer = f"redline train --resume RUN --total-env-steps {suite.then}\n" if suite.then else ""
    published = f"\nPublished: {suite.published}.\n" if suite.published else ""
    text = (
        f"# {name}\n\n{'Reached' if succeeded else 'Not reached'}: {sentence} "
        f"(greedy policy, {suite.episodes} episodes per seed on unseen seeds).\n{published}\n"
        f"```bash\nredline train {suite.arguments} --seed SEED --out RUN\n{longer}```\n\n"
        f"{head}{body}\n"
        f"SPS were measured with other runs beside; they are no benchmark.\n\n"
        f"![learning curve]({name}.png)\n\n{as_markdown()}"
    )
    (RESULTS / f"{name}.md").write_text(text)
    plain = [{k: v for k, v in row.items() if k != "curve"} for row in rows]
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"suite": asdict(suite), "machine": describe(), "rows": plain}, indent=1) + "\n"
    )
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "env_steps", suite.metric])
        for row in rows:
            writer.writerows([row["seed"], step, f"{value:.6g}"] for step, value in row["curve"])
    plot_runs(runs, RESULTS / f"{name}.png", y=suite.metric)
    print(f"{name}: {'reached' if succeeded else 'NOT REACHED'}: {sentence}", flush=True)
    return succeeded


def run_long(suite: str, options: argparse.Namespace) -> int:
    """Run a suite of hours, or say how far it is; 0 if nothing failed or lacks.

    Args:
        suite: a name in `benchmarks.published.experiments`.
        options: of the command line.
    """
    folder = options.out or Path("runs/published")
    seeds = running.seeds_of(chosen(suite, options.only), folder)
    if options.missing:
        seeds = [seed for seed in seeds if not records.holds(RESULTS / "published", seed)]
    if options.status:
        print(running.status(seeds))
        return 0
    if options.place:
        check_place(seeds, options.place)
    failed: list[running.Seed] = []
    if not options.page:
        cores = running.usable_cores(
            options.jobs, 1 if options.threads is None else options.threads
        )
        with running.only_one(folder), running.stop_on_signals() as stopped:
            begin = partial(running.start, place=options.place or ())
            failed = running.run_all(seeds, cores, begin, stopped=stopped)
    left = records.collect(seeds, RESULTS / "published")
    written = page.write_page(suite, list(LONG_SUITES[suite]), RESULTS, PAGES[suite])
    print(f"page: {written or 'nothing is recorded yet'}")
    for seed in failed:
        print(f"failed: {seed.name}, see {seed.log}")
    for name, settings in left.items():
        print(
            f"left out: {name} was made with other settings of {', '.join(settings)} than this "
            f"version has. Remove {folder / name} to run it again."
        )
    return 0 if not left and all(seed.state() == "finished" for seed in seeds) else 1


def check_place(seeds: list[running.Seed], place: list[str]) -> None:
    """Refuse a place that is not there, and say which runs stay where they began.

    Raises:
        DeviceError: if there is no such device.
        ConfigError: if an experiment has no such option.
    """
    from redline.devices import require_device
    from redline.train.settings import DEVICE_SETTINGS

    for option, value in zip(place[::2], place[1::2], strict=True):
        if (name := option.removeprefix("--").replace("-", "_")) in DEVICE_SETTINGS:
            require_device(value, name)
    for experiment in dict.fromkeys(seed.experiment for seed in seeds):
        one_run.settings_of(experiment, place)
    for seed in seeds:
        if seed.state() == "begun":
            print(f"{seed.name}: begun, and goes on where it was; --place is for new runs")


def parse() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*SUITES, *LONG_SUITES]
    parser.add_argument(
        "--suite", nargs="+", default=list(SUITES), choices=names, metavar="NAME", help="see --list"
    )
    parser.add_argument(
        "--jobs", type=int, help="processes at a time; without it 1, long suites: all cores"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--list", action="store_true", help="print the suites and stop")
    long = parser.add_argument_group(f"for {' and '.join(LONG_SUITES)}")
    long.add_argument("--out", type=Path, help="folder of the runs; without it runs/published")
    long.add_argument("--only", nargs="+", metavar="PATTERN", help="as 'sac-HalfCheetah*'")
    long.add_argument(
        "--missing", action="store_true", help="leave out seeds that the records have, as they are"
    )
    long.add_argument("--threads", type=int, help="cores of each run; without it 1")
    long.add_argument(
        "--place", type=one_run.place, help="where new runs compute, as '--device cuda'"
    )
    long.add_argument("--status", action="store_true", help="print how far each run is and stop")
    long.add_argument("--page", action="store_true", help="only write the page, run nothing")
    options = parser.parse_args()
    if set(options.suite) & set(LONG_SUITES):
        if len(options.suite) > 1:
            parser.error(f"{' and '.join(LONG_SUITES)} run alone. Name one suite.")
    elif any(getattr(options, name) not in (None, False) for name in _OF_LONG):
        names = ", ".join(f"--{name}" for name in _OF_LONG)
        parser.error(f"{names} are for the suites {' and '.join(LONG_SUITES)}.")
    if options.place and (options.status or options.page):
        parser.error("--place is for runs, and --status and --page begin none.")
    return options


def main() -> int:
    """Run the suites; 0 if all succeeded."""
    options = parse()
    if options.list:
        for name, suite in SUITES.items():
            print(f"{name:28s} {suite.arguments}")
        for name, experiments in LONG_SUITES.items():
            for experiment in experiments:
                print(f"{name:28s} {experiment.name}, {experiment.env_steps:,} env_steps")
        return 0
    if options.suite[0] in LONG_SUITES:
        try:
            return run_long(options.suite[0], options)
        except RedlineError as error:
            raise SystemExit(f"error: {error}") from None
    jobs = [
        (name, seed, options.runs / f"{name}-seed{seed}")
        for name in options.suite
        for seed in range(1, SUITES[name].seeds + 1)
    ]
    with ThreadPoolExecutor(options.jobs or 1) as pool:
        futures = {job: pool.submit(run_seed, SUITES[job[0]], job[1], job[2]) for job in jobs}
        succeeded = [
            write_results(
                name,
                SUITES[name],
                [futures[job].result() for job in jobs if job[0] == name],
                [job[2] for job in jobs if job[0] == name],
            )
            for name in options.suite
        ]
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
