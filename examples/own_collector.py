"""A collector of one's own: the serial one, with a bonus for what was seldom seen.

Count-based exploration after Tang et al. 2017, arXiv:1611.04717, section 2.1: an observation is
hashed to the signs of its random projections (SimHash), n counts how often its hash came up, and
scale / sqrt(n) is added to the reward. Everything else of Redline serves it as it stands:
algorithms, environments, checkpoints, resuming, logs, evaluation. The returns in the logs stay
those of the environment.

    python examples/own_collector.py

or, from this folder, by the command line:

    redline train ppo --env MountainCar-v0 --collector own_collector:CuriousCollector
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import redline
from redline.collect import SerialCollector
from redline.data import Rollout
from redline.envs import VecEnv
from redline.policies import Policy


class CuriousCollector(SerialCollector):
    """Adds a bonus to the rewards of rarely seen observations, which must be one array.

    Args:
        env: the environments; closed with the collector.
        policy: the learner's policy.
        settings: as for `SerialCollector`.
    """

    name = "curious"
    scale = 0.1  # bonus of the first visit
    num_bits = 12  # of a hash: more tell more observations apart

    def __init__(self, env: VecEnv, policy: Policy, **settings: Any) -> None:
        super().__init__(env, policy, **settings)
        generator = torch.Generator().manual_seed(settings.get("seed", 0))
        size = int(np.prod(env.observation_space.shape or ()))
        self._projection = torch.randn(size, self.num_bits, generator=generator)
        self.counts = torch.zeros(2**self.num_bits, dtype=torch.int64)

    def hashes(self, obs: Tensor) -> Tensor:
        """[T, B, ...] observations to [T, B] int64 hashes."""
        signs = obs.flatten(2).float() @ self._projection > 0
        return (signs.long() << torch.arange(self.num_bits)).sum(-1)

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Rollout:
        """Take T steps in every environment, and add the bonus to their rewards."""
        rollout = super().collect(conditioning)
        hashes = self.hashes(rollout["obs"])
        self.counts += torch.bincount(hashes[rollout.valid], minlength=len(self.counts))
        bonus = self.scale / self.counts[hashes].clamp(min=1).sqrt()
        rollout["reward"].add_(bonus.masked_fill(~rollout.valid, 0.0))
        return rollout

    def state_dict(self) -> dict[str, Any]:
        """The counts as well: they are part of what the next rollout depends on."""
        return super().state_dict() | {"counts": self.counts.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self.counts.copy_(torch.as_tensor(state["counts"]))
        return super().load_state_dict(state)


if __name__ == "__main__":
    run = redline.train(
        "ppo", env="MountainCar-v0", collector=CuriousCollector, total_env_steps=200_000
    )
    print(run.evaluate(episodes=20))
