"""Evaluation: exactly N whole episodes, on environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch

from redline.data import EpisodeRecord, to_numpy, to_tensor
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError
from redline.policies.policy import Policy, reset_state

MAX_ENVS = 16
_EVALUATION_STREAM = 2  # keeps these seeds apart from those of training


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Returns of N episodes of the real game: unclipped, unscaled, all lives.

    Attributes:
        episodes: N.
        return_mean: mean of the episodes' returns.
        return_std: their population standard deviation.
        return_min: the smallest.
        return_max: the largest.
        length_mean: mean length in env_steps.
    """

    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float

    def to_json(self) -> dict[str, float | int]:
        """Plain data, in the order of the attributes."""
        return asdict(self)


def evaluation_seed(run_seed: int, salt: int = 0) -> int:
    """A seed for evaluation environments that no training environment has.

    Args:
        run_seed: the run's seed.
        salt: tells the evaluations of one run apart.
    """
    sequence = np.random.SeedSequence([run_seed, _EVALUATION_STREAM, salt])
    return int(sequence.generate_state(1)[0] >> 1)


def evaluate(
    make_env: Callable[[int], VecEnv],
    policy: Policy,
    *,
    episodes: int,
    seed: int,
    greedy: bool = True,
    num_envs: int | None = None,
    on_step: Callable[[list[EpisodeRecord]], None] | None = None,
) -> Evaluation:
    """Run exactly `episodes` whole episodes.

    Every environment gets its share beforehand and stops after it, so a short episode does
    not make room for another one: the mean is not drawn towards short episodes.

    Args:
        make_env: number of environments -> environments; closed afterwards.
        policy: acts; it is not changed, and its normalizer is not updated.
        episodes: N.
        seed: of environments and action noise.
        greedy: act with the mode of the action distribution instead of sampling.
        num_envs: environments to share the episodes out to; None: one per episode, at most 16.
        on_step: called after every step with those of the episodes that ended in it.

    Raises:
        ConfigError: if episodes < 1.
    """
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} must be at least 1.")
    num_envs = num_envs or min(episodes, MAX_ENVS)
    quota = np.full(num_envs, episodes // num_envs)
    quota[: episodes % num_envs] += 1
    was_training = policy.training
    policy.eval()
    try:
        with make_env(num_envs) as env, torch.inference_mode():
            records: list[EpisodeRecord] = []
            for ended in _run_episodes(env, policy, quota, seed, greedy):
                records += ended
                if on_step is not None:
                    on_step(ended)
    finally:
        policy.train(was_training)
    returns = np.array([record.return_ for record in records])
    return Evaluation(
        episodes=len(records),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_min=float(returns.min()),
        return_max=float(returns.max()),
        length_mean=float(np.mean([record.length for record in records])),
    )


def _run_episodes(
    env: VecEnv, policy: Policy, quota: np.ndarray, seed: int, greedy: bool
) -> Iterator[list[EpisodeRecord]]:
    """Step by step, those of the episodes asked for that ended."""
    parameter = next(policy.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    rngs = [np.random.default_rng([seed, i]) for i in range(env.num_envs)]
    state = {n: leaf.to(device) for n, leaf in policy.initial_state(env.num_envs).items()}
    conditioning = {
        name: leaf.to(device) for name, leaf in policy.evaluation_conditioning(env.num_envs).items()
    }
    remaining = quota.copy()
    obs = env.reset(seed)
    while remaining.any():
        noise = None
        if not greedy:
            rows = np.concatenate([policy.draw_noise(rng, 1) for rng in rngs])
            noise = torch.from_numpy(rows).to(device)
        output = policy.act(to_tensor(obs, device), state, noise, conditioning or None)
        action = policy.env_action(to_numpy(output.action))
        step = env.step(action, remaining > 0 if env.can_idle else None)
        obs, state = step.obs, output.state
        ended = step.terminated | step.truncated | ~step.valid
        if state and ended.any():
            state = reset_state(state, torch.from_numpy(ended).to(device))
        counted = [record for record in step.episodes if remaining[record.env_id] > 0]
        for record in counted:
            remaining[record.env_id] -= 1
        yield counted
