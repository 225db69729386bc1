"""SAC and TD3 on HalfCheetah beside Stable-Baselines3, at equal hyperparameters.

    python -m benchmarks.off_policy --algo sac td3 --peer-python PYTHON --jobs 2

PYTHON is an interpreter that has `stable-baselines3` and `gymnasium[mujoco]`, such as a
virtual environment of its own. Each seed of each side is trained with one thread and
evaluated over 20 episodes of the greedy policy. Runs that are complete are reused. Results go
to benchmarks/results/off_policy/<algo>-halfcheetah.md, .json, .csv and .png.

Where a GPU is available, the full version is `--total-env-steps 1000000 --device cuda`;
the results name the published figures to hold it against.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import redline
from benchmarks.machine import as_markdown, describe

RESULTS = Path(__file__).parent / "results" / "off_policy"
PEER = Path(__file__).parent / "peers" / "stable_baselines3_off_policy.py"
ENV = "HalfCheetah-v5"
EPISODES = 20


@dataclass(frozen=True)
class Comparison:
    """Hyperparameters of both sides, and what others published."""

    settings: dict[str, Any]  # by the names that the peer's program takes
    options: str  # the same, as options of `redline train`
    published: str


COMPARISONS = {
    "sac": Comparison(
        {
            "learning_rate": 3e-4,
            "replay_size": 1_000_000,
            "learning_starts": 5_000,
            "batch_size": 256,
            "tau": 0.005,
            "gamma": 0.99,
            "hidden_sizes": [256, 256],
        },
        "--actor-learning-rate 3e-4 --critic-learning-rate 3e-4 --alpha-learning-rate 3e-4",
        "at 1M env_steps: Stable-Baselines3 9,535 +- 100 (v3), CleanRL 9,635 +- 1,424 (v4)",
    ),
    "td3": Comparison(
        {
            "learning_rate": 1e-3,
            "replay_size": 1_000_000,
            "learning_starts": 5_000,
            "batch_size": 256,
            "tau": 0.005,
            "gamma": 0.99,
            "hidden_sizes": [256, 256],
            "exploration_noise": 0.1,
        },
        "--actor-learning-rate 1e-3 --critic-learning-rate 1e-3 --exploration-noise 0.1",
        "at 1M env_steps: Stable-Baselines3 9,656 +- 970 (v3), CleanRL 9,583 +- 126 (v4)",
    ),
}


def redline_options(algo: str, total: int, device: str) -> list[str]:
    """The options of `redline train`, without seed and directory."""
    settings = COMPARISONS[algo].settings
    sizes = [str(size) for size in settings["hidden_sizes"]]
    return [
        *(algo, "--env", ENV, "--total-env-steps", str(total), "--device", device),
        *("--num-envs", "1", "--rollout-length", "1", "--replay-ratio", "256"),
        *("--replay-size", str(settings["replay_size"])),
        *("--learning-starts", str(settings["learning_starts"])),
        *("--batch-size", str(settings["batch_size"]), "--tau", str(settings["tau"])),
        *("--gamma", str(settings["gamma"]), "--hidden-sizes", *sizes, "--activation", "relu"),
        *COMPARISONS[algo].options.split(),
    ]


def environment() -> dict[str, str]:
    """One thread for each run, so that several may run side by side."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run_redline(algo: str, seed: int, total: int, device: str, out: Path) -> dict[str, Any]:
    """Train one seed here (or go on with it), then evaluate it."""
    if (out / "config.json").exists():
        command = redline("train", "--resume", str(out), "--quiet")
    else:
        own = ["--seed", str(seed), "--out", str(out), "--quiet", "--no-tensorboard"]
        command = redline("train", *redline_options(algo, total, device), *own)
    subprocess.run(command, check=True, env=environment())
    evaluation = subprocess.run(
        redline("eval", str(out), "--episodes", str(EPISODES)),
        check=True, capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    result = json.loads(evaluation.stdout.strip().splitlines()[-1])
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


def run_peer(algo: str, seed: int, total: int, python: str, out: Path) -> dict[str, Any]:
    """Train one seed there; its result is kept in a file."""
    if not out.exists():
        command = [python, str(PEER), "--algo", algo, "--env", ENV, "--seed", str(seed)]
        command += ["--total-env-steps", str(total), "--episodes", str(EPISODES)]
        command += ["--settings", json.dumps(COMPARISONS[algo].settings)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment()
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(done.stdout.strip().splitlines()[-1])
    return json.loads(out.read_text())


def summary(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Mean over the seeds with its 95% bootstrap interval."""
    from redline.train.statistics import bootstrap_interval

    values = [row["return_mean"] for row in rows]
    low, high = bootstrap_interval(values)
    return float(np.mean(values)), float(low), float(high)


def write_results(algo: str, total: int, sides: dict[str, list[dict[str, Any]]]) -> bool:
    """Table, curves and figure; true if the returns here are not lower."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = f"{algo}-halfcheetah"
    means = {side: summary(rows) for side, rows in sides.items()}
    ours, theirs = means["redline"], means["stable-baselines3"]
    passed = ours[2] >= theirs[1]
    table = "| side | mean return | 95% interval | seeds | s per run |\n|---|---|---|---|---|\n"
    for side, (mean, low, high) in means.items():
        seeds = ", ".join(f"{row['return_mean']:,.0f}" for row in sides[side])
        seconds = np.mean([row["wall_time_s"] for row in sides[side]])
        table += (
            f"| {side} | {mean:,.0f} | {low:,.0f} .. {high:,.0f} | {seeds} | {seconds:,.0f} |\n"
        )
    version = sides["stable-baselines3"][0]["version"]
    (RESULTS / f"{name}.md").write_text(
        f"# {algo.upper()} on {ENV}, {total:,} env_steps, beside Stable-Baselines3 {version}\n\n"
        f"{'Not lower' if passed else 'LOWER'}: the intervals "
        f"{'overlap, or are better here' if passed else 'do not overlap'}. Greedy policy, "
        f"{EPISODES} episodes per seed.\n\n{table}\n"
        f"Equal hyperparameters: `{json.dumps(COMPARISONS[algo].settings)}`, one update per "
        f"env_step, 1 environment, 1 thread. Times were taken with other runs beside; they are no "
        f"benchmark.\n\n```bash\nredline train "
        f"{' '.join(redline_options(algo, total, 'cpu'))} --seed SEED --out RUN\n"
        f"python -m benchmarks.off_policy --algo {algo} --peer-python PYTHON\n"
        f"# the full length, where a GPU is available:\n"
        f"python -m benchmarks.off_policy --algo {algo} --peer-python PYTHON "
        f"--total-env-steps 1000000 --device cuda\n```\n\n"
        f"Published {COMPARISONS[algo].published}.\n\n![curves]({name}.png)\n\n{as_markdown()}"
    )
    plain = {
        side: [{k: v for k, v in row.items() if k != "curve"} for row in rows]
        for side, rows in sides.items()
    }
    content = {"machine": describe(), "total_env_steps": total, "sides": plain}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["side", "seed", "env_steps", "return_mean"])
        for side, rows in sides.items():
            for row in rows:
                writer.writerows(
                    [side, row["seed"], step, f"{value:.6g}"] for step, value in row["curve"]
                )
    plot(name, total, sides)
    print(f"{name}: {'not lower' if passed else 'LOWER'}: {means}", flush=True)
    return passed


def plot(name: str, total: int, sides: dict[str, list[dict[str, Any]]]) -> None:
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
    axes.set(xlabel="env_steps", ylabel="training return", title=name)
    axes.legend()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)
    plt.close(figure)


def main() -> int:
    """Run both sides; 0 if no return is lower than the peer's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", nargs="+", default=list(COMPARISONS), choices=list(COMPARISONS))
    parser.add_argument("--peer-python", required=True, help="interpreter with stable-baselines3")
    parser.add_argument("--total-env-steps", type=int, default=60_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/off_policy"))
    options = parser.parse_args()
    total, runs = options.total_env_steps, options.runs
    seeds = range(1, options.seeds + 1)
    passed = True
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {
            algo: {
                "redline": [
                    pool.submit(
                        run_redline, algo, s, total, options.device, runs / f"{algo}-seed{s}"
                    )
                    for s in seeds
                ],
                "stable-baselines3": [
                    pool.submit(
                        run_peer, algo, s, total, options.peer_python, runs / f"{algo}-peer{s}.json"
                    )
                    for s in seeds
                ],
            }
            for algo in options.algo
        }
        for algo, sides in futures.items():
            rows = {side: [future.result() for future in found] for side, found in sides.items()}
            passed &= write_results(algo, total, rows)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
