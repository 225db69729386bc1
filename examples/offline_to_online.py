"""From recorded episodes to an agent: record, clone, go on with SAC.

    python examples/offline_to_online.py

Three steps. An agent's episodes are recorded; behavioral cloning learns from them without an
environment; SAC begins with the clone as its actor and the episodes in its replay. Each call has
run directories of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import redline


def finished(run: redline.Run) -> redline.Run:
    """End the program where its run was stopped: after Ctrl-C `redline.train` returns, too."""
    if run.exit_code:
        raise SystemExit(run.exit_code)
    return run


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Mean returns of teacher, clone and fine-tuned agent over 10 episodes each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher-steps", type=int, default=50_000)
    parser.add_argument("--recorded-steps", type=int, default=200_000, help="that BC learns from")
    parser.add_argument("--sac-steps", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--group", default="offline-to-online", help="folder of the runs, in runs/")
    given = parser.parse_args(argv)
    place: dict[str, Any] = {"env": "CartPole-v1", "group": given.group}

    teacher = finished(
        redline.train("ppo", total_env_steps=given.teacher_steps, name="teacher", **place)
    )
    data = teacher.out / "episodes.npz"
    teacher.collect(given.episodes, data)
    clone = finished(
        redline.train("bc", data=data, total_env_steps=given.recorded_steps, name="clone", **place)
    )
    tuned = finished(
        redline.train(
            "sac",
            data=data,
            init_from=clone.out,
            total_env_steps=given.sac_steps,
            learning_starts=0,  # no random actions at the start: the actor is the clone's
            replay_ratio=64,
            name="tuned",
            **place,
        )
    )
    runs = {"teacher": teacher, "clone": clone, "tuned": tuned}
    returns = {name: run.evaluate(episodes=10).return_mean for name, run in runs.items()}
    for name, value in returns.items():
        print(f"{name:8} {value:6.1f}")
    return list(returns.values())


if __name__ == "__main__":
    main()
