"""A network of one's own: a function from the observation space to a module.

    python examples/own_network.py

The module takes observations [N, ...] and gives features [N, F]; heads for actions and values come
from Redline. Optimizers, checkpoints and export treat it like any other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

import redline


class ResidualNetwork(nn.Module):
    """Two dense layers, and the input added to what they give.

    Args:
        inputs: numbers in an observation.
        features: F.
    """

    def __init__(self, inputs: int, features: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, features)
        self.block = nn.Sequential(
            nn.LayerNorm(features), nn.Linear(features, features), nn.SiLU(),
            nn.Linear(features, features),
        )  # fmt: skip

    def forward(self, obs: Tensor) -> Tensor:
        """[N, F] from observations [N, inputs]."""
        found = self.first(obs)
        return torch.nn.functional.silu(found + self.block(found))


def residual(space: spaces.Space[Any]) -> nn.Module:
    """The network for an observation space."""
    return ResidualNetwork(spaces.flatdim(space))


def main(argv: Sequence[str] | None = None) -> float:
    """Train PPO with it on CartPole; the mean return of 10 episodes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--out", default=None)
    given = parser.parse_args(argv)
    run = redline.train(
        "ppo",
        env="CartPole-v1",
        network=residual,
        total_env_steps=given.env_steps,
        out=given.out,
    )
    # A run directory holds weights, not code: whoever loads it gives the network again.
    loaded = redline.load(run.out, network=residual)
    result = loaded.evaluate(episodes=10)
    print(f"mean return of 10 episodes: {result.return_mean:.1f}")
    return result.return_mean


if __name__ == "__main__":
    main()
