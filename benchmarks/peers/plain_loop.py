"""A program that knows no RL library: a Gymnasium env, a torch policy, REINFORCE with a baseline.

    PYTHON benchmarks/peers/plain_loop.py --env CartPole-v1 --env-steps 20000

The work depends on the arguments alone: for `benchmarks.profiler`, which runs it with and
without the profiler.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import gymnasium
import torch
from torch import nn

ROLLOUT = 256


def main() -> None:
    """Collect rollouts of a fixed length and make one update with each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loop-seconds-to", type=Path, help="file for the seconds of the loop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    env = gymnasium.make(options.env)
    actions = int(env.action_space.n)  # pyright: ignore[reportAttributeAccessIssue]
    size = env.observation_space.shape[0]  # pyright: ignore[reportOptionalSubscript]
    net = nn.Sequential(
        nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions + 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    began = time.perf_counter()
    obs, _ = env.reset(seed=options.seed)
    for _ in range(options.env_steps // ROLLOUT):
        seen, taken, rewards, ends = [], [], [], []
        for _ in range(ROLLOUT):
            with torch.no_grad():
                logits = net(torch.as_tensor(obs))[:actions]
                action = int(torch.distributions.Categorical(logits=logits).sample())
            seen.append(obs)
            taken.append(action)
            obs, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(reward))
            ends.append(terminated or truncated)
            if ends[-1]:
                obs, _ = env.reset()
        returns, total = [], 0.0
        for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
            total = reward + 0.99 * total * (not end)
            returns.append(total)
        target = torch.tensor(returns[::-1])
        output = net(torch.stack([torch.as_tensor(each) for each in seen]))
        log_prob = torch.log_softmax(output[:, :actions], 1)
        chosen = log_prob.gather(1, torch.tensor(taken)[:, None])[:, 0]
        value = output[:, actions]
        advantage = target - value.detach()
        loss = -(chosen * advantage).mean() + 0.5 * (value - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if options.loop_seconds_to is not None:
        options.loop_seconds_to.write_text(str(time.perf_counter() - began))


if __name__ == "__main__":
    main()
