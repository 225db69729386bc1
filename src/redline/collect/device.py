"""Collection on a device: environments, policy and rollout stay there.

Nothing is read back within a rollout, but for the actions and observations themselves where
environments and policy are on different devices. Once it is over, the finished episodes are
read together.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.collector import Collector, ResetMode
from redline.collect.device_memory import DeviceMemory, write
from redline.collect.device_noise import DeviceNoise, HostNoise, NoiseSource
from redline.data import Array, NestedTensor, Rollout, map_leaves
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.envs.games.game import exact_device
from redline.errors import ConfigError, EnvError, RedlineError
from redline.policies.device_check import DeviceCheck
from redline.policies.policy import Policy, State, reset_state
from redline.profile.marks import operation

_INFERENCE, _SIMULATION = operation("inference"), operation("simulation")


class DeviceCollector(Collector):
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
        noise: where action noise is drawn. From the host, rollouts equal those of
            `SerialCollector` over the same environments.

    Raises:
        ConfigError: if environments should wait but their back end cannot idle.
        PlacementError: if the policy or what goes through it is not where it should be.
    """

    def __init__(
        self,
        env: DeviceVecEnv,
        policy: Policy,
        *,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        policy_device: torch.device | str | None = None,
        noise: NoiseSource = "device",
    ) -> None:
        self.env, self.rollout_length, self.num_envs = env, rollout_length, env.num_envs
        if reset_mode == "wait":
            self._require_idling("reset_mode='wait'")
        self.version = self._acting_version = 0
        self._seed, self._wait = seed, reset_mode == "wait"
        self._learner = policy
        own = DeviceCheck(policy).device
        wanted = own if policy_device is None else exact_device(policy_device)
        self.policy = policy if wanted == own else copy.deepcopy(policy).to(wanted)
        self.policy_device = wanted
        self._frozen: Policy | None = None
        self._act_with(self.policy)
        source = DeviceNoise if noise == "device" else HostNoise
        self._noise = source(
            self.policy, env.num_envs, rollout_length, seed, env.first_env_id, wanted
        )
        self._memory = DeviceMemory(env, rollout_length, policy.extras_spec)
        self._obs: NestedTensor | None = None
        self._conditioning: dict[str, Tensor] | None = None
        self._state = self._fresh_state()
        self._quota: Tensor | None = None
        self._cancelled = False

    def _act_with(self, policy: Policy) -> None:
        self._acting, self._check = policy, DeviceCheck(policy, self.policy_device)

    def _require_idling(self, purpose: str) -> None:
        if not self.env.can_idle:
            raise ConfigError(
                f"{purpose} needs environments that can stay idle, and the back end "
                f"{self.env.backend!r} steps all of them at once. Use reset_mode='immediate' "
                f"without a limit on episodes."
            )

    def _fresh_state(self) -> State:
        state = self.policy.initial_state(self.num_envs)
        return {name: leaf.to(self.policy_device) for name, leaf in state.items()}

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return self.env.restorable

    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        self._begin()
        self._acting_version, self._memory.num_rows = self.version, 0
        self._conditioning = self._at_policy(dict(conditioning)) if conditioning else None
        acting = self._frozen_policy() if background else self.policy
        if acting is not self._acting:
            self._act_with(acting)

    def _frozen_policy(self) -> Policy:
        """A copy with the weights of this moment."""
        if self._frozen is None:
            self._frozen = copy.deepcopy(self.policy)
        else:
            _copy_weights(self._frozen, self.policy)
        return self._frozen.train(self.policy.training)

    def _finish(self) -> Rollout:
        initial_state = {name: leaf.clone() for name, leaf in self._state.items()}
        self._memory.begin()
        with torch.inference_mode():
            noise = self._noise.draw().unbind(0)
            active = self._first_active()
            for t in range(self.rollout_length):
                if self._cancelled:
                    raise RedlineError("the collector was closed while it collected.")
                active = self._next_active(active, self._step(t, noise[t], active))
                self._memory.num_rows = t + 1
            self._bootstrap()
            episodes = self._memory.read_episodes()
        self.env.raise_faults()
        # What inference mode makes cannot enter a graph that is differentiated later.
        self._state = {name: leaf.clone() for name, leaf in self._state.items()}
        return Rollout(
            steps=self._memory.steps,
            initial_state={n: leaf.to(self.env.device) for n, leaf in initial_state.items()},
            last_obs=map_leaves(lambda leaf: leaf.clone(), self._obs),
            episodes=episodes,
            version=self._acting_version,
            num_running=self._num_running(),
        )

    # -- which environments are stepped ------------------------------------------------------

    def _first_active(self) -> Tensor | None:
        """[B] bool at the start of a rollout; None: all, throughout."""
        if self._quota is not None:
            return self._quota > 0
        if self._wait:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.env.device)
        return None

    def _next_active(self, active: Tensor | None, step: DeviceStep) -> Tensor | None:
        if active is None:
            return None
        if self._wait:
            active = active & ~(step.terminated | step.truncated)
        if self._quota is not None:
            self._quota = self._quota - step.episode_ended.long()
            active = active & (self._quota > 0)
        return active

    def _limit_episodes(self, quota: Array | None) -> None:
        if quota is None:
            self._quota = None
            return
        self._require_idling("a number of episodes")
        if self._obs is not None and bool(self.env.in_episode.any()):
            self._obs = self.env.reset(None)
            self._state = self._fresh_state()
        self._quota = torch.from_numpy(quota.astype(np.int64)).to(self.env.device)

    def _num_running(self) -> int:
        return self.num_envs if self._quota is None else int((self._quota > 0).sum())

    def _partial(self) -> Rollout:
        return Rollout(
            steps=self._memory.first_rows(),
            initial_state={},
            last_obs={},
            version=self._acting_version,
            num_running=self._num_running(),
        )

    def _step(self, t: int, noise: Tensor, active: Tensor | None) -> DeviceStep:
        row = self._memory.rows[t]
        write(row["obs"], self._obs)
        policy = self._check if t == 0 else self._acting
        with _INFERENCE:
            obs = self._at_policy(self._obs)
            output = policy.act(obs, self._state, noise, self._conditioning)
            action = map_leaves(self._at_env, self._acting.env_action(output.action))
        write(row["action"], output.action)
        for name, extra in output.extras.items():
            row[name].copy_(extra)
        with _SIMULATION:
            step = self.env.step(action, active)
        ended = step.terminated | step.truncated
        self._memory.write_step(t, step, ended)
        self._obs, self._state = step.obs, output.state
        if self._state:
            self._bootstrap_now(row, step)
        if active is not None or self.env.has_fillers:
            self._memory.clear(t, ~step.valid)
            ended = ended | ~step.valid
        if self._state:
            self._state = reset_state(self._state, ended.to(self.policy_device))
        return step

    def _at_policy(self, tree: Any) -> Any:
        return map_leaves(lambda leaf: leaf.to(self.policy_device, non_blocking=True), tree)

    def _at_env(self, leaf: Tensor) -> Tensor:
        # Not without waiting: a copy to the CPU would be read before it has arrived.
        return leaf.to(self.env.device)

    # -- values of what was cut ------------------------------------------------------------

    def _bootstrap_now(self, row: Mapping[str, Any], step: DeviceStep) -> None:
        """Value cut episodes with the recurrent state that they had.

        To keep that state of all T steps would take more than to look whether there are any,
        so a recurrent policy waits for the device here, once per step.
        """
        cut = step.truncated & ~step.terminated & step.valid
        if self.policy.has_value and bool(cut.any()):
            final_obs = self._at_policy(step.final_obs)
            value = self._acting.value(final_obs, self._state, self._conditioning)
            row["bootstrap_value"].copy_(value.to(self.env.device).masked_fill(~cut, 0.0))

    def _bootstrap(self) -> None:
        """Value the cut episodes of a policy without state, and what goes on after the end."""
        if not self.policy.has_value:
            return
        steps = self._memory.steps
        target = steps["bootstrap_value"]
        if not self._state:
            at = (steps["truncated"] & ~steps["terminated"] & steps["valid"]).nonzero(as_tuple=True)
            if len(at[0]):
                final_obs = map_leaves(lambda leaf: leaf[at], steps["final_obs"])
                value = self._acting.value(self._at_policy(final_obs), {}, self._of(at[1]))
                target[at] = value.to(self.env.device)
        running = steps["valid"][-1] & ~(steps["terminated"][-1] | steps["truncated"][-1])
        last_obs = self._at_policy(self._obs)
        value = self._check.value(last_obs, self._state, self._conditioning)
        target[-1] += value.to(self.env.device).masked_fill(~running, 0.0)

    def _of(self, envs: Tensor) -> dict[str, Tensor] | None:
        """The conditioning of some environments, [n] int64, which may occur repeatedly."""
        if self._conditioning is None:
            return None
        index = envs.to(self.policy_device)
        return {name: value[index] for name, value in self._conditioning.items()}

    def _begin(self) -> None:
        if self._obs is None:
            self._obs = self.env.reset(self._seed)

    # -- weights and saving ----------------------------------------------------------------

    def update_weights(self, version: int) -> None:
        """Take the learner's present weights, if they are not the very ones that act."""
        self.version = version
        if self.policy is not self._learner:
            _copy_weights(self.policy, self._learner)

    def state_dict(self) -> dict[str, Any]:
        """Environments (if they can be saved), noise streams, recurrent state, version."""
        self._refuse_if_busy("state_dict()")
        self._begin()
        saved: dict[str, Any] = {
            "version": self.version,
            "noise": self._noise.state_dict(),
            "state": {name: leaf.cpu() for name, leaf in self._state.items()},
            "quota": None if self._quota is None else self._quota.cpu(),
        }
        if self.env.restorable is None:
            saved["env"] = self.env.state_dict()
        return saved

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self._refuse_if_busy("load_state_dict()")
        self.version = state["version"]
        self._noise.load_state_dict(state["noise"])
        reason = self.env.restorable or "the checkpoint holds no environment state"
        if "env" in state:
            try:
                self._obs = self.env.load_state_dict(state["env"])
            except EnvError as error:
                reason = str(error)
            else:
                self._state = {
                    name: leaf.to(self.policy_device) for name, leaf in state["state"].items()
                }
                quota = state["quota"]
                self._quota = None if quota is None else quota.to(self.env.device)
                return None
        self._obs = self.env.reset(self._seed + 1 + self.version)
        self._state, self._quota = self._fresh_state(), None
        return reason

    def close(self) -> None:
        """Close the environments."""
        self._cancelled = True
        if self._future is not None:
            self._future.wait()
        self.env.close()


def _copy_weights(target: Policy, source: Policy) -> None:
    with torch.no_grad():
        for mine, theirs in zip(_tensors(target), _tensors(source), strict=True):
            mine.copy_(theirs)


def _tensors(policy: Policy) -> itertools.chain[Tensor]:
    """Parameters and all buffers, those that checkpoints leave out too."""
    return itertools.chain(policy.parameters(), policy.buffers())
