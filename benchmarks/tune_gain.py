"""Does `redline tune` find better settings than the defaults, and lose nothing when killed?

    python -m benchmarks.tune_gain

PPO on CartPole, 30 trials with TPE and median pruning. Two processes work on one study. One is
killed with -9 in the middle and stays away; later the other one is, too, and the search is resumed.
Then the best settings and the defaults are trained with seeds that the search never saw, and
compared by the area under the curve. Writes benchmarks/results/tune_gain.json and tune_gain.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

import redline
from benchmarks.machine import describe
from benchmarks.ray_runs import wait_until
from redline.launch.scores import score_of
from redline.train.progress.curves import load_progress

RESULTS = Path(__file__).parent / "results" / "tune_gain.json"
NEW_SEEDS = (101, 102, 103, 104, 105)


def plan(trials: int, env_steps: int) -> dict[str, Any]:
    """The search."""
    return {
        "algorithm": "ppo",
        "base": {
            "env": "CartPole-v1",
            "total_env_steps": env_steps,
            "log_interval": env_steps // 20,
            "checkpoint_interval": env_steps // 10,
            "tensorboard": False,
        },
        "trials": trials,
    }


def begin(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a process that searches."""
    return subprocess.Popen(
        [sys.executable, "-m", "redline", "tune", *arguments, "--slots", "1", "--oversubscribe"]
    )


def states(folder: Path) -> list[str]:
    """The state of each trial; none before the study exists. Reads only, beside the searchers."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{folder / 'study.sqlite'}?mode=ro", uri=True)
        ) as database:
            rows = database.execute("SELECT state FROM trials ORDER BY number").fetchall()
    except sqlite3.OperationalError:
        return []
    return [str(state).lower() for (state,) in rows]


def ended(folder: Path) -> int:
    """Trials that have ended, whichever way."""
    return sum(state != "running" for state in states(folder))


def searched(folder: Path, trials: int, env_steps: int) -> dict[str, Any]:
    """The search, with its kills."""
    file = folder / "tune.json"
    file.write_text(json.dumps(plan(trials, env_steps)))
    out = folder / "tuning"
    first = begin(str(file), "--out", str(out))
    second = begin(str(file), "--out", str(out))
    wait_until(lambda: ended(out) >= trials // 3, 600)
    first.kill()
    wait_until(lambda: ended(out) >= 2 * trials // 3, 600)
    second.kill()
    for process in (first, second):
        process.wait()
    open_after_kills = states(out).count("running")
    code = begin("--resume", str(out)).wait()
    found = states(out)
    best = yaml.safe_load((out / "best.yaml").read_text())
    return {
        "trials": len(found),
        "states": {state: found.count(state) for state in sorted(set(found))},
        "pruned_share": round(found.count("pruned") / len(found), 3),
        "open_after_kills": open_after_kills,
        "exit_code": code,
        "best": best,
    }


def compared(folder: Path, best: dict[str, Any], env_steps: int) -> dict[str, Any]:
    """Area under the curve of the best settings and of the defaults, over new seeds."""
    base = plan(1, env_steps)["base"]
    found: dict[str, Any] = {}
    for name, settings in (("default", base), ("best", {**best, **base})):
        settings = {key: value for key, value in settings.items() if key != "algorithm"}
        done = redline.sweep(
            algorithm="ppo",
            base=settings,
            seeds=list(NEW_SEEDS),
            out=folder / name,
            slots=1,
            quiet=True,
        )
        areas = [score_of(load_progress(run), "area") for run in done.run_dirs]
        found[name] = {
            "areas": [round(area, 1) for area in areas],
            "mean": round(statistics.mean(areas), 1),
        }
    return found


def page(found: dict[str, Any]) -> str:
    """The results for people."""
    search, areas = found["search"], found["areas"]
    states = ", ".join(f"{count} {state}" for state, count in search["states"].items())
    lines = ["# Searching hyperparameters", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in found["machine"].items()]
    lines += [
        "",
        f"PPO on CartPole, {found['env_steps']:,} env_steps per trial: {search['trials']} trials, "
        f"{states}; {search['pruned_share']:.0%} pruned. Two processes began on one study; both "
        f"were killed with -9, {search['open_after_kills']} trials were open then, and the resumed "
        f"search ended them all.",
        "",
        f"Area under the curve over {len(NEW_SEEDS)} seeds that the search never saw:",
        "",
        "| settings | mean | each seed |",
        "|---|---|---|",
    ]
    for name, each in areas.items():
        seeds = ", ".join(f"{area:.0f}" for area in each["areas"])
        lines.append(f"| {name} | {each['mean']:.1f} | {seeds} |")
    best = {key: value for key, value in search["best"].items() if key not in found["base"]}
    lines += ["", "The best settings: " + ", ".join(f"`{k}: {v}`" for k, v in best.items()) + "."]
    return "\n".join([*lines, "", "    python -m benchmarks.tune_gain", ""])


def main() -> int:
    """Search, compare, record; 0 if the best settings beat the defaults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--env-steps", type=int, default=12_000, help="of each trial")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        search = searched(folder, options.trials, options.env_steps)
        print(json.dumps(search, indent=2), flush=True)
        areas = compared(folder, search["best"], options.env_steps)
    base = {**plan(1, options.env_steps)["base"], "algorithm": "ppo"}
    found = {
        "machine": describe(),
        "env_steps": options.env_steps,
        "base": base,
        "search": search,
        "areas": areas,
    }
    print(json.dumps(areas, indent=2))
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text(page(found))
    return 0 if areas["best"]["mean"] > areas["default"]["mean"] else 1


if __name__ == "__main__":
    sys.exit(main())
