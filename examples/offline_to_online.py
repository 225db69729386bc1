"""From recorded episodes to an agent: record, clone, go on with SAC.

    python examples/offline_to_online.py

Three steps. An agent's episodes are recorded; behavioral cloning learns from them without an
environment; SAC begins with the clone as its actor and the episodes in its replay.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import redline


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Mean returns of teacher, clone and fine-tuned agent over 10 episodes each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher-steps", type=int, default=50_000)
    parser.add_argument("--recorded-steps", type=int, default=200_000, help="that BC learns from")
    parser.add_argument("--sac-steps", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/offline-to-online"))
    given = parser.parse_args(argv)
    out, data = given.out, given.out / "episodes.npz"

    teacher = redline.train(
        "ppo", env="CartPole-v1", total_env_steps=given.teacher_steps, out=out / "teacher"
    )
    teacher.collect(given.episodes, data)
    clone = redline.train(
        "bc", env="CartPole-v1", data=data, total_env_steps=given.recorded_steps, out=out / "clone"
    )
    tuned = redline.train(
        "sac",
        env="CartPole-v1",
        data=data,
        init_from=clone.out,
        total_env_steps=given.sac_steps,
        learning_starts=0,  # no random actions at the start: the actor is the clone's
        replay_ratio=64,
        out=out / "tuned",
    )
    runs = {"teacher": teacher, "clone": clone, "tuned": tuned}
    returns = {name: run.evaluate(episodes=10).return_mean for name, run in runs.items()}
    for name, value in returns.items():
        print(f"{name:8} {value:6.1f}")
    return list(returns.values())


if __name__ == "__main__":
    main()
