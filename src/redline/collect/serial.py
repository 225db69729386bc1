"""Collection in the learner's own process: the simplest placement, and the reference."""

from __future__ import annotations

from redline.collect.collector import ResetMode
from redline.collect.local import LocalCollector
from redline.envs.vec_env import VecEnv
from redline.policies.policy import Policy


class SerialCollector(LocalCollector):
    """Steps the environments and the policy in turn, in this process.

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
        super().__init__(
            [env], policy, rollout_length=rollout_length, seed=seed, reset_mode=reset_mode
        )
        self.env = env
