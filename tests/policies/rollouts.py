"""Rollouts made by acting, as a collector makes them, for tests of their evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict

from redline.data import Rollout, as_tensordict, map_leaves
from redline.policies import Policy, reset_state


def sampled(space: spaces.Space[Any], rng: np.random.Generator, *leading: int) -> Any:
    """Random members of a space with `leading` dimensions, as they are carried."""
    if isinstance(space, spaces.Dict):
        return {key: sampled(sub, rng, *leading) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): sampled(sub, rng, *leading) for i, sub in enumerate(space.spaces)}
    space.seed(int(rng.integers(2**31)))
    rows = [np.asarray(space.sample()) for _ in range(int(np.prod(leading)))]
    array = np.stack(rows).reshape(*leading, *(space.shape or ()))
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)


def stack_time(rows: list[Any]) -> Any:
    return map_leaves(lambda *leaves: torch.stack(leaves), rows[0], *rows[1:])


def act_out(
    policy: Policy, observation_space: spaces.Space[Any], length: int, num_envs: int
) -> Rollout:
    """T steps of acting on random observations, with ends and filler rows in between."""
    rng = np.random.default_rng(0)
    terminated = rng.random((length, num_envs)) < 0.15
    truncated = rng.random((length, num_envs)) < 0.15
    terminated[1:2, 0] = True
    terminated[2:5, 0] = truncated[2:5, 0] = False
    valid = np.ones((length, num_envs), np.bool_)
    # A back end that resets late: the row after an end is a filler in environment 0.
    valid[1:, 0] = ~(terminated | truncated)[:-1, 0]
    terminated &= valid
    truncated &= valid
    obs = sampled(observation_space, rng, length, num_envs)
    noise = torch.from_numpy(
        np.stack([policy.draw_noise(rng, length) for _ in range(num_envs)], axis=1)
    )
    state = {name: torch.randn_like(part) for name, part in policy.initial_state(num_envs).items()}
    initial_state = {name: part.clone() for name, part in state.items()}
    actions, log_probs, values = [], [], []
    for t in range(length):
        row = map_leaves(lambda leaf, t=t: leaf[t], obs)
        output = policy.act(row, state, noise[t])
        actions.append(output.action)
        log_probs.append(output.extras["log_prob"])
        values.append(output.extras["value"])
        ended = torch.from_numpy(terminated[t] | truncated[t] | ~valid[t])
        state = reset_state(output.state, ended)

    kept = torch.from_numpy(valid)

    def masked(leaf: torch.Tensor) -> torch.Tensor:
        return torch.where(kept.view(length, num_envs, *[1] * (leaf.dim() - 2)), leaf, 0).to(
            leaf.dtype
        )

    fields: dict[str, Any] = {
        "obs": as_tensordict(map_leaves(masked, obs), (length, num_envs)),
        "action": as_tensordict(map_leaves(masked, stack_time(actions)), (length, num_envs)),
        "log_prob": torch.stack(log_probs),
        "value": torch.stack(values),
        "terminated": torch.from_numpy(terminated),
        "truncated": torch.from_numpy(truncated),
        "valid": kept,
    }
    return Rollout(
        steps=TensorDict(fields, batch_size=[length, num_envs]),
        initial_state=initial_state,
        last_obs=map_leaves(lambda leaf: leaf[-1], obs),
    )
