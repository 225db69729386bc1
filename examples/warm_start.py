"""Warm start: a run that begins with what another one has learned.

    python examples/warm_start.py

The second CartPole has a longer pole. Every tensor whose name and shape fit is taken over, and the
run says which. Each call has run directories of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import gymnasium

import redline


def long_pole() -> gymnasium.Env[Any, Any]:
    """CartPole with a pole of twice the length."""
    env = gymnasium.make("CartPole-v1")
    pole: Any = env.unwrapped
    pole.length = 1.0
    pole.polemass_length = pole.masspole * pole.length
    return env


def finished(run: redline.Run) -> redline.Run:
    """End the program where its run was stopped: after Ctrl-C `redline.train` returns, too."""
    if run.exit_code:
        raise SystemExit(run.exit_code)
    return run


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Returns on the long pole: trained from nothing, and begun with the short pole's agent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--more-env-steps", type=int, default=10_000)
    parser.add_argument("--group", default="warm-start", help="folder of the runs, in runs/")
    given = parser.parse_args(argv)
    short = finished(
        redline.train(
            "ppo", env="CartPole-v1", total_env_steps=given.env_steps, group=given.group,
            name="short",
        )
    )  # fmt: skip
    settings: dict[str, Any] = {
        "env": long_pole, "total_env_steps": given.more_env_steps, "preset": "cartpole",
        "group": given.group,
    }  # fmt: skip
    cold = finished(redline.train("ppo", name="cold", **settings))
    warm = finished(redline.train("ppo", name="warm", init_from=short.out, **settings))
    returns = cold.evaluate(episodes=10).return_mean, warm.evaluate(episodes=10).return_mean
    print(f"mean return of 10 episodes: {returns[0]:.1f} from nothing, {returns[1]:.1f} warm")
    return returns


if __name__ == "__main__":
    main()
