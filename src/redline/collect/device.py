"""Collection on a device: environments, policy and rollout stay there.

Nothing is read back within a rollout, but for the actions and observations themselves where
environments and policy are on different devices. Once it is over, the finished episodes are
read together.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redline.collect.acting_loop import ActingLoop
from redline.collect.collector import CollectorSetup, RolloutsFor
from redline.collect.episodes import ResetMode, TensorEpisodes
from redline.collect.local import LocalCollector
from redline.collect.memory import TensorMemory
from redline.collect.noise import DeviceNoise, HostNoise, NoiseSource
from redline.data import NestedTensor, Rollout, map_leaves
from redline.devices import exact_device
from redline.envs.device.mirrored import MirroredEnv
from redline.envs.device.vec_env import DeviceVecEnv
from redline.policies.device_check import DeviceCheck
from redline.policies.policy import Policy


class DeviceCollector(LocalCollector):
    """Steps environments of tensors and the policy in turn, in this process.

    It acts with the learner's own module if that is on `policy_device`, else with a copy
    there that takes the learner's weights whenever they get a new number. The rollout lies
    on the environments' device. The first step of each rollout goes through `DeviceCheck`.

    Args:
        env: the environments; closed with the collector.
        policy: the learner's policy.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        policy_device: where to act; None: where the policy is.
        rollouts_for: loop -> what takes all steps of a rollout at once; None: nothing does.
        noise: where action noise is drawn. From the host, rollouts equal those of
            `SerialCollector` over the same environments.

    Raises:
        ConfigError: if environments should wait but their back end cannot idle.
        PlacementError: if the policy or what goes through it is not where it should be.
    """

    name = "device"
    takes_devices = True
    options = ()

    def __init__(
        self,
        env: DeviceVecEnv,
        policy: Policy,
        *,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        policy_device: torch.device | str | None = None,
        rollouts_for: RolloutsFor | None = None,
        noise: NoiseSource = "device",
    ) -> None:
        present = DeviceCheck(policy).device
        wanted = present if policy_device is None else exact_device(policy_device)
        acting = policy if wanted == present else copy.deepcopy(policy).to(wanted)
        memory = TensorMemory(
            env,
            rollout_length,
            policy.extras_spec,
            has_state=bool(policy.initial_state(1)),
            has_value=policy.has_value,
        )
        stream = (acting, env.num_envs, rollout_length, seed, env.first_env_id)
        loop = ActingLoop(
            env,
            acting,
            memory,
            TensorEpisodes(env, reset_mode, memory.steps()["episode_id"]),
            DeviceNoise(*stream, wanted) if noise == "device" else HostNoise(*stream),
            seed=seed,
            device=wanted,
            check=True,
        )
        super().__init__([loop], policy, memory, seed=seed)
        self._rollouts_for = rollouts_for
        self._kept_obs: Any = None
        self.env, self.policy_device = env, wanted

    @classmethod
    def make(cls, setup: CollectorSetup) -> DeviceCollector:
        """See `Collector.make`; environments of other back ends are delivered to a device."""
        policy_device = setup.policy_device or setup.device
        if setup.settings.backend_class.on_device:
            setup.env.close()  # the numpy view; the games themselves are wanted
            device = setup.env_device or policy_device
            first = setup.env.first_env_id
            env: DeviceVecEnv = setup.settings.make_on_device(setup.num_envs, device, first)
        else:
            env = MirroredEnv(setup.env, setup.env_device or "cpu")
        return cls(
            env,
            setup.policy,
            rollout_length=setup.rollout_length,
            seed=setup.seed,
            reset_mode=setup.reset_mode,
            policy_device=policy_device,
            rollouts_for=setup.rollouts_for,
        )

    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        loop = self._loops[0]
        _ = loop.last_obs  # resets here, as environments may not in inference mode
        if self._rollouts_for is not None:  # only now, for what has been reset
            loop.rollouts, self._rollouts_for = self._rollouts_for(loop), None
        super()._start(conditioning, background=background)
        if self._conditioning:
            self._conditioning = {
                name: leaf.to(self.policy_device, non_blocking=True)
                for name, leaf in self._conditioning.items()
            }

    def _last_obs(self) -> NestedTensor:
        """A copy of what is seen now, on a device always in the same memory."""
        seen = self._loops[0].last_obs
        if self._kept_obs is None or self.env.device.type == "cpu":
            self._kept_obs = map_leaves(lambda leaf: leaf.clone(), seen)
        else:
            map_leaves(lambda into, leaf: into.copy_(leaf), self._kept_obs, seen)
        return self._kept_obs

    def _finish(self) -> Rollout:
        rollout = super()._finish()
        self.env.raise_faults()
        state = {name: leaf.to(self.env.device) for name, leaf in rollout.initial_state.items()}
        return dataclasses.replace(rollout, initial_state=state)

    def state_dict(self) -> dict[str, Any]:
        """Environments (if they can be saved), noise streams, recurrent state, version."""
        self._refuse_if_busy("state_dict()")
        return {"version": self.version, **self._loops[0].state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self._refuse_if_busy("load_state_dict()")
        self.version = state["version"]
        return self._loops[0].load_state_dict(state, self._seed + 1 + self.version)
