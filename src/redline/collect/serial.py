"""Collection in the learner's own process: the simplest placement, and the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from redline.collect.actor import Actor
from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import Collector, ResetMode
from redline.data import Rollout, map_leaves, to_tensor
from redline.envs.vec_env import VecEnv
from redline.policies.policy import Policy


class SerialCollector(Collector):
    """Steps the environments and the policy in turn, in this process.

    It acts with the learner's own module: nothing else runs while it collects, so the
    weights cannot change under a rollout.

    Args:
        env: the environments; closed with the collector.
        policy: the learner's policy.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        *,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
    ) -> None:
        self.env = env
        self.num_envs, self.rollout_length = env.num_envs, rollout_length
        self.version = 0
        self._seed = seed
        self._buffer = RolloutBuffer.create(
            rollout_length,
            env.num_envs,
            env.observation_space,
            env.action_space,
            policy.extras_spec,
        )
        self._steps = self._buffer.steps()
        self._actor = Actor(env, policy, self._buffer, seed=seed, reset_mode=reset_mode)

    @property
    def restorable(self) -> str | None:
        """None if the environments can be saved bit for bit, else why not."""
        return self.env.restorable

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Rollout:
        """Take T steps in every environment; see `Collector.collect`."""
        initial_state, episodes = self._actor.collect(conditioning)
        return Rollout(
            steps=self._steps,
            initial_state=initial_state,
            last_obs=map_leaves(lambda leaf: leaf.clone(), to_tensor(self._actor.last_obs)),
            episodes=episodes,
            version=self.version,
        )

    def update_weights(self, version: int) -> None:
        """Name the weights that act from now on; they are the learner's own."""
        self.version = version

    def state_dict(self) -> dict[str, Any]:
        """Environments, noise streams, recurrent state and the version of the weights."""
        return {"version": self.version, "actor": self._actor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self.version = state["version"]
        return self._actor.load_state_dict(state["actor"], fresh_seed=self._seed + 1 + self.version)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
