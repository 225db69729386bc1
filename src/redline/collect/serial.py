"""Collection of arrays in the learner's own process: the simplest placement, and the reference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from redline.collect.acting_loop import ActingLoop, ActorFor
from redline.collect.buffer import RolloutBuffer, pinned_zeros
from redline.collect.collector import Collector, CollectorSetup
from redline.collect.device import DeviceCollector
from redline.collect.episodes import ResetMode
from redline.collect.local import LocalCollector
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError
from redline.policies.policy import Policy


class ArrayCollector(LocalCollector):
    """Acts in this process for environments that give arrays, in one or more groups.

    Args:
        envs: the groups, in the order of their environments' numbers; closed with the collector.
        policy: the learner's policy, which acts.
        overlap: whether a group may begin to step while another one still does.

    The other arguments are those of `SerialCollector`.
    """

    def __init__(
        self,
        envs: Sequence[VecEnv],
        policy: Policy,
        *,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        overlap: bool = True,
        actor_for: ActorFor | None = None,
    ) -> None:
        num_envs = sum(env.num_envs for env in envs)
        parameter = next(policy.parameters(), None)
        device = parameter.device if parameter is not None else "cpu"
        buffer = RolloutBuffer.create(
            rollout_length,
            num_envs,
            envs[0].observation_space,
            envs[0].action_space,
            policy.extras_spec,
            allocate=pinned_zeros(device),
        )
        # Not 0 where other processes have the environments before these.
        before = envs[0].first_env_id
        first_ids = itertools.accumulate((env.num_envs for env in envs), initial=before)
        loops = [
            ActingLoop.beside_arrays(
                env,
                policy,
                buffer.columns(first - before, first - before + env.num_envs),
                seed=seed,
                reset_mode=reset_mode,
                first_env_id=first,
                actor_for=actor_for,
                alone=num_envs == 1,
            )
            for env, first in zip(envs, first_ids, strict=False)
        ]
        super().__init__(loops, policy, buffer, seed=seed, overlap=overlap)


class SerialCollector(ArrayCollector):
    """Steps the environments and the policy in turn, in this process: the reference.

    Args:
        env: the environments; closed with the collector.
        policy: the learner's policy, which acts.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        actor_for: gives what acts in the policy's place; None: the policy always acts.
    """

    name = "serial"
    takes_devices = True
    options = ()

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        *,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        actor_for: ActorFor | None = None,
    ) -> None:
        super().__init__(
            [env],
            policy,
            rollout_length=rollout_length,
            seed=seed,
            reset_mode=reset_mode,
            actor_for=actor_for,
        )
        self.env = env

    @classmethod
    def make(cls, setup: CollectorSetup) -> Collector:
        """See `Collector.make`; what is placed on devices is collected by `DeviceCollector`.

        Raises:
            ConfigError: if a class derived from this one is to collect on devices.
        """
        placed = setup.env_device is not None or setup.policy_device is not None
        if cls is SerialCollector and (placed or setup.settings.backend_class.on_device):
            return DeviceCollector.make(setup)
        if placed:
            raise ConfigError(
                f"{cls.__qualname__} collects arrays in this process, and env_device="
                f"{setup.env_device!r}, policy_device={setup.policy_device!r} place them on "
                f"devices. Leave both out, or derive it from DeviceCollector."
            )
        return cls(setup.env, setup.policy, **setup.in_process)
