"""Seeds of environments and episodes, derived so that no stream depends on the batch.

Environment i of a run with seed s is seeded from (s, i) alone, whatever the number of
environments, workers or threads beside it.
"""

from __future__ import annotations

import numpy as np

from redline.errors import ConfigError


def env_seed(seed: int, env_id: int) -> int:
    """The seed in [0, 2**31) of one environment.

    Args:
        seed: the run's seed, at least 0.
        env_id: the environment's index in the whole batch.

    Raises:
        ConfigError: if the seed is negative.
    """
    return _derive(seed, env_id)


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """The seed in [0, 2**31) of one episode, for back ends that are seeded at every reset.

    Args:
        seed: the run's seed, at least 0.
        env_id: the environment's index in the whole batch.
        episode: how many times that environment has been reset before.

    Raises:
        ConfigError: if the seed is negative.
    """
    return _derive(seed, env_id, episode)


def fresh_seed() -> int:
    """A seed in [0, 2**31) from the operating system, for callers that gave none."""
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)


def _derive(seed: int, *path: int) -> int:
    if seed < 0:
        raise ConfigError(f"seed={seed} is negative; environments need a seed of at least 0.")
    return int(np.random.SeedSequence([seed, *path]).generate_state(1)[0] >> 1)
