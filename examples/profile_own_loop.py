"""Profile a training loop of one's own, which uses nothing else of Redline.

    python examples/profile_own_loop.py
    redline report my-profile

Marks name the parts of the loop. They cost about 100 ns each while nothing records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import torch
from torch import nn

from redline import profile


def train(iterations: int) -> None:
    """A bare policy gradient on CartPole, with the parts of its loop marked."""
    env = gymnasium.make("CartPole-v1")
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    obs, _ = env.reset(seed=1)
    for _ in range(iterations):
        log_probs: list[torch.Tensor] = []
        ended = False
        while not ended:
            with profile.operation("inference"):
                choice = torch.distributions.Categorical(logits=policy(torch.from_numpy(obs)))
                action = choice.sample()
            log_probs.append(choice.log_prob(action))
            with profile.operation("simulation"):
                obs, _, terminated, truncated, _ = env.step(int(action))
            ended = terminated or truncated
        obs, _ = env.reset()
        with profile.operation("backpropagation"):
            loss = -torch.stack(log_probs).sum() * len(log_probs) / 100
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        profile.step()
    env.close()


def main(argv: Sequence[str] | None = None) -> Path:
    """Record the loop; the folder of the session."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("my-profile"))
    given = parser.parse_args(argv)
    with profile.session(given.out):
        train(given.iterations)
    print(f"recorded; now: redline report {given.out}")
    return given.out


if __name__ == "__main__":
    main()
