"""Returns at equal steps beside Stable-Baselines3, at equal hyperparameters.

    python -m benchmarks.returns --algo sac td3 ppo dqn --peer-python PYTHON --jobs 2

SAC, TD3 and PPO on HalfCheetah, DQN on CartPole. PYTHON is an interpreter that has
`stable-baselines3` and `gymnasium[mujoco]`, such as a virtual environment of its own. Each seed
of each side is trained with one thread and evaluated over 20 episodes of the greedy policy.
Runs under --runs that are complete are reused. Results go to
benchmarks/results/returns/<algo>-<env>.md, .json, .csv and .png.

On HalfCheetah returns lie too far apart before 1M env_steps: nine runs of TD3 ended between 887
and 4,092 at 60,000, six of Stable-Baselines3's between 1,007 and 4,335. A comparison that is
shorter than its `settled_from` says nothing with fewer than ten seeds of each side, and its
results say so.

The hyperparameters are those of `benchmarks/workloads.py` with what makes both sides agree laid
over them; what no setting makes agree is named in the results.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import redline
from benchmarks.machine import as_markdown, describe
from benchmarks.train import environment, run_json
from benchmarks.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results" / "returns"
PEER = "stable-baselines3"
EPISODES = 20
POINTS = 100  # of the peer's curve: as many as Redline writes rows by default
SEEDS_OF_SHORT_RUNS = 10  # of each side, before the intervals of short runs mean anything


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One algorithm on one environment, set up alike on both sides.

    Attributes:
        algorithm: as both sides know it.
        settings: of `redline.train`.
        peer: the same by the names of `peers/stable_baselines3_models.py`.
        total_env_steps: length of a run.
        settled_from: env_steps from which a few seeds are enough; shorter comparisons need ten.
        seeds: runs of each side.
        differs: what no setting makes agree.
        published: what others reached, and at which length.
    """

    algorithm: str
    settings: dict[str, Any]
    peer: dict[str, Any]
    total_env_steps: int
    settled_from: int
    seeds: int
    differs: str = ""
    published: str = ""

    def says_nothing(self, total: int, seeds: int) -> str:
        """Why runs of this length and number say nothing; "" if they say something."""
        if total >= self.settled_from or seeds >= SEEDS_OF_SHORT_RUNS:
            return ""
        return (
            f"{seeds} seeds of {total:,} env_steps say nothing: before {self.settled_from:,} the "
            f"returns of single runs lie too far apart. Give --seeds {SEEDS_OF_SHORT_RUNS} or "
            f"--total-env-steps {self.settled_from}"
        )

    @property
    def name(self) -> str:
        """Of the results: sac-halfcheetah."""
        return f"{self.algorithm}-{self.settings['env'].split('-')[0].lower()}"


def laid_over(workload: str, here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Both sides of a workload with other settings, as arguments of `Comparison`."""
    base = WORKLOADS[workload]
    return {
        "algorithm": base.algorithm,
        "settings": base.settings | here,
        "peer": base.peer | there,
    }


COMPARISONS = {
    "sac": Comparison(
        **laid_over(
            "sac",
            {
                "learning_starts": 5_000,
                "actor_learning_rate": 3e-4,
                "critic_learning_rate": 3e-4,
                "alpha_learning_rate": 3e-4,
            },
            {"learning_starts": 5_000, "learning_rate": 3e-4},
        ),
        total_env_steps=1_000_000,
        settled_from=1_000_000,
        seeds=3,
        published="at 1M env_steps: Stable-Baselines3 9,535 +- 100 (v3), CleanRL 9,635 +- 1,424 "
        "(v4)",
    ),
    "td3": Comparison(
        **laid_over(
            "td3",
            {
                "learning_starts": 5_000,
                "actor_learning_rate": 1e-3,
                "critic_learning_rate": 1e-3,
                "exploration_noise": 0.1,
            },
            {"learning_starts": 5_000, "learning_rate": 1e-3},
        ),
        total_env_steps=1_000_000,
        settled_from=1_000_000,
        seeds=3,
        published="at 1M env_steps: Stable-Baselines3 9,656 +- 970 (v3), CleanRL 9,583 +- 126 (v4)",
    ),
    "ppo": Comparison(
        **laid_over("ppo-continuous", {}, {}),
        total_env_steps=488 * 2048,  # whole rollouts, so that the schedules end at 0 on both sides
        settled_from=488 * 2048,
        seeds=3,
        differs="the statistics that normalize observations and rewards take in a rollout at a "
        "time here, a step at a time there; where the change of a value is clipped, the larger of "
        "the clipped and the plain error counts here, the clipped one there",
        published="at 1M env_steps: CleanRL 1,443 +- 46 (v4)",
    ),
    "dqn": Comparison(
        **laid_over(
            "dqn",
            {"learning_starts": 10_000, "epsilon_fraction": 0.5},
            # With the peer's Huber loss values diverge at these hyperparameters, on both sides.
            {
                "learning_starts": 10_000,
                "epsilon_fraction": 0.5,
                "squared_error": True,
                "max_grad_norm": 1e9,
            },
        ),
        total_env_steps=200_000,
        settled_from=100_000,
        seeds=5,
        differs="the peer's Huber loss is replaced by the squared error, as CleanRL has it; before "
        "learning starts all actions are random there, and here as many as epsilon says (0.9 at "
        "the least)",
    ),
}


def as_options(settings: dict[str, Any]) -> list[str]:
    """Settings of `redline.train` as options of `redline train`."""
    words: list[str] = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, tuple):
            words += [f"--{option}", *(str(each) for each in value)]
        else:
            words += [f"--{option}", str(value)]
    return words


def redline_command(comparison: Comparison, total: int, device: str) -> list[str]:
    """The arguments of `redline train`, without seed and directory."""
    length = ["--total-env-steps", str(total), "--device", device]
    return [comparison.algorithm, *as_options(comparison.settings), *length]


def run_redline(
    comparison: Comparison, seed: int, total: int, out: Path, options: Any
) -> dict[str, Any]:
    """Train one seed here (or go on with it), then evaluate it."""
    if (out / "config.json").exists():
        command = redline("train", "--resume", str(out), "--quiet")
    else:
        own = ["--seed", str(seed), "--out", str(out), "--quiet", "--no-tensorboard"]
        command = redline("train", *redline_command(comparison, total, options.device), *own)
    subprocess.run(command, check=True, env=environment(1))
    result = run_json(redline("eval", str(out), "--episodes", str(EPISODES)), environment(1))
    with (out / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        "seed": seed,
        "return_mean": result["return_mean"],
        "return_std": result["return_std"],
        "env_steps": int(rows[-1]["env_steps"]),
        "wall_time_s": float(rows[-1]["wall_time_s"]),
        "curve": [(int(r["env_steps"]), float(r["return_mean"])) for r in rows if r["return_mean"]],
    }


def run_peer(
    comparison: Comparison, seed: int, total: int, out: Path, options: Any
) -> dict[str, Any]:
    """Train one seed there; its result is kept in a file."""
    if not out.exists():
        command = [
            *(options.peer_python, "-m", "benchmarks.peers.stable_baselines3_returns"),
            *("--algo", comparison.algorithm, "--settings", json.dumps(comparison.peer)),
            *("--total-env-steps", str(total), "--seed", str(seed)),
            *("--episodes", str(EPISODES), "--device", options.device),
        ]
        result = run_json(command, environment(1))
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_suffix(".part")
        unfinished.write_text(json.dumps(result))
        unfinished.replace(out)
    result = json.loads(out.read_text())
    return result | {"curve": thinned(result["curve"], total)}


def thinned(curve: list[tuple[int, float]], total: int) -> list[tuple[int, float]]:
    """Returns of single episodes as the means of those that ended within each 1% of the run."""
    parts: dict[int, list[tuple[int, float]]] = {}
    for step, value in curve:
        parts.setdefault(step * POINTS // (total + 1), []).append((step, value))
    return [(part[-1][0], float(np.mean([v for _, v in part]))) for part in parts.values()]


def summary(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Mean over the seeds with its 95% bootstrap interval."""
    from redline.train.progress.statistics import bootstrap_interval

    values = [row["return_mean"] for row in rows]
    low, high = bootstrap_interval(values)
    return float(np.mean(values)), float(low), float(high)


def verdict(comparison: Comparison, total: int, seeds: int, passed: bool) -> str:
    """What the intervals of both sides say, if so few and so short runs say anything."""
    nothing = comparison.says_nothing(total, seeds)
    if nothing:
        return f"No comparison: {nothing}"
    if passed:
        return "Not lower: the intervals overlap, or are better here"
    return "LOWER: the intervals do not overlap"


def markdown(
    key: str, total: int, sides: dict[str, list[dict[str, Any]]], passed: bool, device: str
) -> str:
    """The verdict, the returns, and what was run."""
    comparison = COMPARISONS[key]
    env, version = comparison.settings["env"], sides[PEER][0]["version"]
    table = "| side | mean return | 95% interval | seeds | s per run |\n|---|---|---|---|---|\n"
    for side, rows in sides.items():
        mean, low, high = summary(rows)
        seeds = ", ".join(f"{row['return_mean']:,.0f}" for row in rows)
        seconds = np.mean([row["wall_time_s"] for row in rows])
        table += (
            f"| {side} | {mean:,.0f} | {low:,.0f} .. {high:,.0f} | {seeds} | {seconds:,.0f} |\n"
        )
    command = f"python -m benchmarks.returns --algo {key} --peer-python PYTHON"
    commands = (
        f"redline train {' '.join(redline_command(comparison, total, device))} --seed SEED "
        f"--out RUN\n{command} --total-env-steps {total} --seeds {len(sides[PEER])} "
        f"--device {device}\n"
    )
    published = f"Published {comparison.published}.\n\n" if comparison.published else ""
    return (
        f"# {key.upper()} on {env}, {total:,} env_steps, beside Stable-Baselines3 {version}\n\n"
        f"{verdict(comparison, total, len(sides[PEER]), passed)}. Greedy policy, "
        f"{EPISODES} episodes per seed.\n\n{table}\n"
        f"Equal hyperparameters, here `{json.dumps(comparison.settings)}`, there "
        f"`{json.dumps(comparison.peer)}`; the rest are defaults, which agree. What differs: "
        f"{comparison.differs or 'no setting'}.\n\n1 thread. Times were taken with other runs "
        f"beside; they are no benchmark.\n\n```bash\n{commands}```\n\n{published}"
        f"![curves]({comparison.name}.png)\n\n{as_markdown()}"
    )


def write_results(
    key: str, total: int, sides: dict[str, list[dict[str, Any]]], options: Any
) -> bool:
    """Table, curves and figure; true if the returns here are not lower."""
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / COMPARISONS[key].name
    means = {side: summary(rows) for side, rows in sides.items()}
    passed = means["redline"][2] >= means[PEER][1]
    path.with_suffix(".md").write_text(markdown(key, total, sides, passed, options.device))
    plain = {
        side: [{k: v for k, v in row.items() if k != "curve"} for row in rows]
        for side, rows in sides.items()
    }
    content = {"machine": describe(), "total_env_steps": total, "sides": plain}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["side", "seed", "env_steps", "return_mean"])
        for side, rows in sides.items():
            for row in rows:
                writer.writerows(
                    [side, row["seed"], step, f"{value:.6g}"] for step, value in row["curve"]
                )
    plot(path.with_suffix(".png"), total, sides)
    found = verdict(COMPARISONS[key], total, len(sides[PEER]), passed)
    print(f"{path.name}: {found}: {means}", flush=True)
    return passed or found.startswith("No comparison")


def plot(path: Path, total: int, sides: dict[str, list[dict[str, Any]]]) -> None:
    """Mean over the seeds, and each seed thinly."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    grid = np.linspace(0, total, 61)[1:]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for color, (side, rows) in zip(("tab:red", "tab:blue"), sides.items(), strict=True):
        curves = [np.interp(grid, *np.array(row["curve"]).T) for row in rows]
        for curve in curves:
            axes.plot(grid, curve, color=color, alpha=0.25, linewidth=1)
        axes.plot(grid, np.mean(curves, axis=0), color=color, label=side)
    axes.set(xlabel="env_steps", ylabel="training return", title=path.stem)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def start(
    key: str, pool: ThreadPoolExecutor, options: Any
) -> tuple[int, dict[str, list[Future[dict[str, Any]]]]]:
    """Queue all seeds of both sides; the length of the runs, and their results to come."""
    comparison = COMPARISONS[key]
    total = options.total_env_steps or comparison.total_env_steps
    seeds = range(1, (options.seeds or comparison.seeds) + 1)
    # What makes a run another one is part of its name: it is not to be taken for this one.
    settings = json.dumps([comparison.settings, comparison.peer, options.device])
    digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
    stem = f"{options.runs.resolve() / comparison.name}-{total}-{digest}"
    return total, {
        "redline": [
            pool.submit(run_redline, comparison, s, total, Path(f"{stem}-seed{s}"), options)
            for s in seeds
        ],
        PEER: [
            pool.submit(run_peer, comparison, s, total, Path(f"{stem}-peer{s}.json"), options)
            for s in seeds
        ],
    }


def main() -> int:
    """Run both sides; 0 if no return is lower than the peer's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", nargs="+", default=list(COMPARISONS), choices=list(COMPARISONS))
    parser.add_argument("--peer-python", required=True, help="interpreter with stable-baselines3")
    parser.add_argument("--total-env-steps", type=int, help="instead of the comparison's own")
    parser.add_argument("--seeds", type=int, help="instead of the comparison's own number")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/returns"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory to write to")
    options = parser.parse_args()
    passed = True
    with ThreadPoolExecutor(options.jobs) as pool:
        started = {key: start(key, pool, options) for key in options.algo}
        for key, (total, sides) in started.items():
            rows = {side: [future.result() for future in found] for side, found in sides.items()}
            passed &= write_results(key, total, rows, options)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
