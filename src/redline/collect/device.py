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

import torch
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import Collector, ResetMode
from redline.collect.device_noise import DeviceNoise, HostNoise, NoiseSource
from redline.data import EpisodeRecord, NestedTensor, Rollout, leaves, map_leaves
from redline.envs.device.game import exact_device
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.errors import ConfigError, EnvError
from redline.policies.device_check import DeviceCheck
from redline.policies.policy import Policy, State, reset_state
from redline.profile.marks import operation

_INFERENCE, _SIMULATION = operation("inference"), operation("simulation")
_KEPT = ("env_id", "episode_id")  # what rows that are not valid keep


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
        if reset_mode == "wait" and not env.can_idle:
            raise ConfigError(
                f"reset_mode='wait' needs environments that can stay idle, and the back end "
                f"{env.backend!r} steps all of them at once. Use reset_mode='immediate'."
            )
        self.env, self.rollout_length, self.num_envs = env, rollout_length, env.num_envs
        self.version = 0
        self._seed, self._wait = seed, reset_mode == "wait"
        self._learner = policy
        own = DeviceCheck(policy).device
        wanted = own if policy_device is None else exact_device(policy_device)
        self.policy = policy if wanted == own else copy.deepcopy(policy).to(wanted)
        self.policy_device = wanted
        self._check = DeviceCheck(self.policy, wanted)
        source = DeviceNoise if noise == "device" else HostNoise
        self._noise = source(
            self.policy, env.num_envs, rollout_length, seed, env.first_env_id, wanted
        )
        self._make_memory()
        self._obs: NestedTensor | None = None
        self._conditioning: dict[str, Tensor] | None = None
        self._state = self._fresh_state()

    def _make_memory(self) -> None:
        env, shape = self.env, (self.rollout_length, self.num_envs)
        self._steps = (
            RolloutBuffer.create(
                *shape, env.observation_space, env.action_space, self.policy.extras_spec
            )
            .steps()
            .to(env.device)
        )
        env_ids = torch.arange(env.first_env_id, env.first_env_id + self.num_envs)
        self._steps["env_id"].copy_(env_ids.to(env.device).expand(shape))
        # What `step` gives of finished episodes, until it is read at the end of the rollout.
        self._ended = torch.zeros(shape, dtype=torch.bool, device=env.device)
        self._returns = torch.zeros(shape, dtype=torch.float64, device=env.device)
        self._lengths = torch.zeros(shape, dtype=torch.int64, device=env.device)
        self._rows = [
            {name: map_leaves(lambda leaf, t=t: leaf[t], field) for name, field in self._fields()}
            for t in range(self.rollout_length)
        ]

    def _fields(self) -> list[tuple[str, Any]]:
        return [(str(name), self._steps[name]) for name in self._steps.keys()]  # noqa: SIM118

    def _fresh_state(self) -> State:
        state = self.policy.initial_state(self.num_envs)
        return {name: leaf.to(self.policy_device) for name, leaf in state.items()}

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return self.env.restorable

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Rollout:
        """Take T steps in every environment; see `Collector.collect`."""
        self._begin()
        initial_state = {name: leaf.clone() for name, leaf in self._state.items()}
        self._steps["bootstrap_value"].zero_()
        self._conditioning = None
        if conditioning:
            self._conditioning = self._at_policy(dict(conditioning))
        with torch.inference_mode():
            noise = self._noise.draw().unbind(0)
            active = None
            if self._wait:
                active = torch.ones(self.num_envs, dtype=torch.bool, device=self.env.device)
            for t in range(self.rollout_length):
                step = self._step(t, noise[t], active)
                if active is not None:
                    active = active & ~(step.terminated | step.truncated)
            self._bootstrap()
            episodes = self._read_episodes()
        self.env.raise_faults()
        # What inference mode makes cannot enter a graph that is differentiated later.
        self._state = {name: leaf.clone() for name, leaf in self._state.items()}
        return Rollout(
            steps=self._steps,
            initial_state={n: leaf.to(self.env.device) for n, leaf in initial_state.items()},
            last_obs=map_leaves(lambda leaf: leaf.clone(), self._obs),
            episodes=episodes,
            version=self.version,
        )

    def _step(self, t: int, noise: Tensor, active: Tensor | None) -> DeviceStep:
        row = self._rows[t]
        _write(row["obs"], self._obs)
        policy = self._check if t == 0 else self.policy
        with _INFERENCE:
            obs = self._at_policy(self._obs)
            output = policy.act(obs, self._state, noise, self._conditioning)
            action = map_leaves(self._at_env, self.policy.env_action(output.action))
        _write(row["action"], output.action)
        for name, extra in output.extras.items():
            row[name].copy_(extra)
        with _SIMULATION:
            step = self.env.step(action, active)
        ended = step.terminated | step.truncated
        for name in ("reward", "terminated", "truncated", "valid", "episode_id"):
            row[name].copy_(getattr(step, name))
        _write(row["final_obs"], map_leaves(lambda leaf: _zero_but(ended, leaf), step.final_obs))
        self._ended[t], self._returns[t] = step.episode_ended, step.episode_return
        self._lengths[t] = step.episode_length
        self._obs, self._state = step.obs, output.state
        if self._state:
            self._bootstrap_now(row, step, ended)
        if active is not None or self.env.has_fillers:
            self._clear(row, ~step.valid)
            ended = ended | ~step.valid
        if self._state:
            self._state = reset_state(self._state, ended.to(self.policy_device))
        return step

    def _at_policy(self, tree: Any) -> Any:
        return map_leaves(lambda leaf: leaf.to(self.policy_device, non_blocking=True), tree)

    def _at_env(self, leaf: Tensor) -> Tensor:
        # Not without waiting: a copy to the CPU would be read before it has arrived.
        return leaf.to(self.env.device)

    def _clear(self, row: Mapping[str, Any], invalid: Tensor) -> None:
        """Zero the environments `invalid` [B] of a row: they are no transitions."""
        for name, field in row.items():
            if name not in _KEPT:
                for _, leaf in leaves(field):
                    leaf.masked_fill_(_like(invalid, leaf), 0)

    # -- values of what was cut ------------------------------------------------------------

    def _bootstrap_now(self, row: Mapping[str, Any], step: DeviceStep, ended: Tensor) -> None:
        """Value cut episodes with the recurrent state that they had.

        To keep that state of all T steps would take more than to look whether there are any,
        so a recurrent policy waits for the device here, once per step.
        """
        cut = step.truncated & ~step.terminated & step.valid
        if self.policy.has_value and bool(cut.any()):
            final_obs = self._at_policy(step.final_obs)
            value = self.policy.value(final_obs, self._state, self._conditioning)
            row["bootstrap_value"].copy_(value.to(self.env.device).masked_fill(~cut, 0.0))

    def _bootstrap(self) -> None:
        """Value the cut episodes of a policy without state, and what goes on after the end."""
        if not self.policy.has_value:
            return
        steps, target = self._steps, self._steps["bootstrap_value"]
        if not self._state:
            at = (steps["truncated"] & ~steps["terminated"] & steps["valid"]).nonzero(as_tuple=True)
            if len(at[0]):
                final_obs = map_leaves(lambda leaf: leaf[at], steps["final_obs"])
                value = self.policy.value(self._at_policy(final_obs), {}, self._of(at[1]))
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

    # -- episodes --------------------------------------------------------------------------

    def _read_episodes(self) -> list[EpisodeRecord]:
        """The finished episodes in the order in which they ended; waits for the device."""
        at = self._ended.nonzero(as_tuple=True)
        parts = (self._steps["episode_id"], self._returns, self._lengths)
        # float64 holds numbers below 2^53 exactly.
        table = torch.stack([at[1].double(), *(part[at].double() for part in parts)])
        return [
            EpisodeRecord(
                env_id=self.env.first_env_id + int(env),
                episode_id=int(episode),
                return_=total,
                length=int(length),
            )
            for env, episode, total, length in table.t().tolist()
        ]

    def _begin(self) -> None:
        if self._obs is None:
            self._obs = self.env.reset(self._seed)

    # -- weights and saving ----------------------------------------------------------------

    def update_weights(self, version: int) -> None:
        """Take the learner's present weights, if they are not the very ones that act."""
        self.version = version
        if self.policy is self._learner:
            return
        with torch.no_grad():
            for mine, theirs in zip(_tensors(self.policy), _tensors(self._learner), strict=True):
                mine.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        """Environments (if they can be saved), noise streams, recurrent state, version."""
        self._begin()
        saved: dict[str, Any] = {
            "version": self.version,
            "noise": self._noise.state_dict(),
            "state": {name: leaf.cpu() for name, leaf in self._state.items()},
        }
        if self.env.restorable is None:
            saved["env"] = self.env.state_dict()
        return saved

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
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
                return None
        self._obs = self.env.reset(self._seed + 1 + self.version)
        self._state = self._fresh_state()
        return reason

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def _tensors(policy: Policy) -> itertools.chain[Tensor]:
    """Parameters and all buffers, those that checkpoints leave out too."""
    return itertools.chain(policy.parameters(), policy.buffers())


def _write(target: Any, source: Any) -> None:
    """Copy nested tensors leaf by leaf, from whatever device."""
    map_leaves(lambda into, leaf: into.copy_(leaf), target, source)


def _zero_but(rows: Tensor, leaf: Tensor) -> Tensor:
    """`leaf` [B, ...] with zeros outside of `rows` [B]."""
    return leaf.masked_fill(~_like(rows, leaf), 0)


def _like(mask: Tensor, leaf: Tensor) -> Tensor:
    """[B] as [B, 1, ...] with the dimensions of `leaf`."""
    return mask.view(-1, *([1] * (leaf.dim() - 1)))
