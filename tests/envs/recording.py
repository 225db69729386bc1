"""Step a batch with known actions and keep every number, to compare runs bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from redline.envs import VecEnv
from redline.nested import leaves


def draw_actions(env: VecEnv, rng: np.random.Generator) -> Any:
    env.action_space.seed(int(rng.integers(2**31)))
    samples = [env.action_space.sample() for _ in range(env.num_envs)]
    return stack(samples)


def stack(samples: list[Any]) -> Any:
    """Single actions as one batch."""
    if isinstance(samples[0], dict):
        return {key: stack([sample[key] for sample in samples]) for key in samples[0]}
    return np.stack([np.asarray(sample) for sample in samples])


def record(env: VecEnv, num_steps: int, seed: int) -> list[Any]:
    """One entry per step; equal entries mean equal bytes."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num_steps):
        step = env.step(draw_actions(env, rng))
        done = step.terminated | step.truncated
        final = [] if step.final_obs is None else leaves(step.final_obs)
        rows.append(
            (
                [(key, leaf.tobytes()) for key, leaf in leaves(step.obs)],
                [(key, leaf[done].tobytes()) for key, leaf in final],
                *(part.tolist() for part in step[1:5]),
                step.episodes,
            )
        )
    return rows


def check_plain(data: Any) -> None:
    """Fail unless `data` could be written as JSON and arrays, without pickle."""
    if isinstance(data, dict):
        assert all(isinstance(key, str) for key in data), data.keys()
        for part in data.values():
            check_plain(part)
    elif isinstance(data, list):
        for part in data:
            check_plain(part)
    elif isinstance(data, np.ndarray):
        assert data.dtype.kind in "biuf", data.dtype
    else:
        assert data is None or type(data) in (bool, int, float, str), type(data)
