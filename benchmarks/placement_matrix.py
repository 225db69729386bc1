"""Does every algorithm train in every placement? All pairs, each a small run.

    python -m benchmarks.placement_matrix

A pair is good if the run ends by itself after all its env_steps with updates made, and, where
rollouts may be behind, none is further behind than configured. Recurrent policies are among
them. Writes benchmarks/results/placement_matrix.json and .md.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import redline
from benchmarks.machine import as_markdown, describe
from benchmarks.records import recorded, require_one_machine

RESULTS = Path(__file__).parent / "results"
PLACEMENTS = ("serial", "central", "alternating", "workers", "async")
SMALL: dict[str, Any] = {
    "total_env_steps": 512,
    "num_envs": 4,
    "rollout_length": 16,
    "num_workers": 2,
    "hidden_sizes": (16,),
    "log_interval": 64,
    "checkpoints": "none",
    "quiet": True,
    "tensorboard": False,
}
RECURRENT: dict[str, Any] = {"core": "lstm", "core_size": 8}
OFF_POLICY: dict[str, Any] = {
    "batch_size": 16,
    "replay_size": 2000,
    "replay_ratio": 2.0,
    "learning_starts": 64,
}
TARGET: dict[str, Any] = {"target_update_interval": 5}
SEQUENCES: dict[str, Any] = {
    "sequence_length": 16,
    "state_interval": 16,
    "burn_in": 16,
    "core_size": 8,
    "prioritized": True,
}
CARTPOLE, HIDDEN, PENDULUM = "CartPole-v1", "redline/CartPoleHiddenVelocity-v1", "Pendulum-v1"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", CARTPOLE, {}),
    "ppo, recurrent": ("ppo", HIDDEN, RECURRENT),
    "ppo, HalfCheetah": ("ppo", "HalfCheetah-v5", {}),
    "ppo, MinAtar": ("ppo", "MinAtar/Breakout-v1", {"hidden_sizes": (64, 64)}),
    "a2c": ("a2c", CARTPOLE, {}),
    "a2c, recurrent": ("a2c", HIDDEN, RECURRENT),
    "reinforce": ("reinforce", CARTPOLE, {}),
    "impala": ("impala", CARTPOLE, {}),
    "impala, recurrent": ("impala", HIDDEN, RECURRENT),
    "appo": ("appo", CARTPOLE, {}),
    "dqn": ("dqn", CARTPOLE, OFF_POLICY | TARGET),
    "dqn, prioritized": ("dqn", CARTPOLE, OFF_POLICY | TARGET | {"prioritized": True}),
    "r2d1": ("r2d1", "redline/TMaze-v1", OFF_POLICY | TARGET | SEQUENCES),
    "ddpg": ("ddpg", PENDULUM, OFF_POLICY),
    "td3": ("td3", PENDULUM, OFF_POLICY),
    "sac": ("sac", PENDULUM, OFF_POLICY),
    "sac, discrete": ("sac", CARTPOLE, OFF_POLICY),
    "diayn": ("diayn", PENDULUM, OFF_POLICY),
}


def outcome(name: str, placement: str) -> str:
    """What was wrong, or "good"; tracebacks are printed."""
    algorithm, env, own = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            redline.train(algorithm, env=env, out=out, collector=placement, **(SMALL | own))
        except Exception as error:  # noqa: BLE001 (recorded, whatever it is)
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"[:200]
        with (out / "progress.csv").open() as file:
            rows = list(csv.DictReader(file))
    last = rows[-1]
    if int(last["env_steps"]) < SMALL["total_env_steps"] or int(last["optimizer_steps"]) == 0:
        return f"ended at {last['env_steps']} env_steps, {last['optimizer_steps']} optimizer_steps"
    behind = max(int(row.get("staleness_max") or 0) for row in rows)
    expected = 1 if placement == "async" else 0
    return "good" if behind == expected else f"{behind} versions behind, not {expected}"


def main() -> int:
    """Run all pairs; 0 if all are good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    path = RESULTS / "placement_matrix.json"
    # Cases that are run alone take their places among the others.
    table: dict[str, dict[str, str]] = recorded(path).get("outcomes", {})
    require_one_machine(path, {*table} - {*options.case}, describe())
    for name in options.case:
        table[name] = {placement: outcome(name, placement) for placement in PLACEMENTS}
        print(f"{name}: {table[name]}", flush=True)
    table = {name: table[name] for name in CASES if name in table}
    lines = "".join(
        f"| {name} | {' | '.join(row[placement] for placement in PLACEMENTS)} |\n"
        for name, row in table.items()
    )
    num_good = sum(each == "good" for row in table.values() for each in row.values())
    (RESULTS / "placement_matrix.md").write_text(
        "# Every algorithm in every placement\n\n```bash\npython -m benchmarks.placement_matrix\n"
        f"```\n\n{num_good} of {len(table) * len(PLACEMENTS)} good.\n\n"
        f"| | {' | '.join(PLACEMENTS)} |\n|{'---|' * (len(PLACEMENTS) + 1)}\n{lines}\n"
        f"{as_markdown()}"
    )
    path.write_text(json.dumps({"machine": describe(), "outcomes": table}, indent=1) + "\n")
    return 0 if num_good == len(table) * len(PLACEMENTS) else 1


if __name__ == "__main__":
    sys.exit(main())
