"""One policy acting in one batch of environments: the loop inside every collector.

The loop is the same for environments that give arrays and for those that give tensors on a
device. What differs lies beside it: how rows are written (`memory`), how episodes are counted
(`episodes`), where action noise comes from (`noise`), and the fast path of a single
environment (`quiet_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.collect.episodes import ArrayEpisodes, EndedEpisode, Episodes, ResetMode
from redline.collect.memory import ArrayMemory, TensorMemory
from redline.collect.noise import DeviceNoise, HostNoise
from redline.collect.quiet_steps import step_quietly
from redline.data import Array, NestedTensor, map_leaves, to_tensor
from redline.envs.device.vec_env import DeviceVecEnv
from redline.envs.vec_env import VecEnv
from redline.errors import EnvError
from redline.policies.device_check import DeviceCheck
from redline.policies.policy import Policy, State, reset_state
from redline.profile.marks import metadata, operation

_INFERENCE, _SIMULATION = operation("inference"), operation("simulation")


class PolicyWatch(Protocol):
    """Knows what a policy was made of."""

    def changed(self) -> bool:
        """Whether anything is different from what it was when this was asked last."""
        ...


class FastActor(Protocol):
    """Acts in a policy's place, in less time.

    `act` stands in for `Policy.act`, unless the actor is rowwise. Then it is for the only
    environment of a run and works in numpy: `act(t, obs, action)` writes the action of row t,
    all [1, ...], and after the last row `end(obs, action, extras)` writes the policy's extras,
    name -> [t, 1, ...], of all rows that were acted on.

    Attributes:
        is_rowwise: which of the two.
        takes_arrays: whether `act` is given observations and noise as they lie on the host,
            wherever the policy is, and answers there.
    """

    is_rowwise: bool
    takes_arrays: bool
    act: Callable[..., Any]

    @property
    def watch(self) -> PolicyWatch:
        """Says whether the policy has become another one than this was made for."""
        ...

    def serves(self, conditioning: Mapping[str, Tensor] | None) -> bool:
        """Whether it understands this conditioning; else the policy acts."""
        ...

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """Take the present weights, and the noise [T, B, noise_size] of the next rollout."""
        ...


ActorFor: TypeAlias = Callable[[Policy, int, int], "FastActor | None"]
"""(policy, num_envs, rollout_length) -> what acts in the policy's place; None: the policy itself.
A function of a module, so that it can be sent to worker processes."""


class Collected(NamedTuple):
    """What a loop's rollout has beside its rows.

    Attributes:
        initial_state: the recurrent state before the first step.
        episodes: those that ended, each after its row.
        num_running: environments with an episode still to finish.
    """

    initial_state: State
    episodes: Sequence[EndedEpisode]
    num_running: int


class ActingLoop:
    """Steps environments with a policy and writes what happens into a rollout's memory.

    What environment i experiences depends on (seed, i), the weights and nothing else: each
    has a noise stream of its own, so the number of environments, workers or devices around
    it changes nothing.

    `collect` takes a whole rollout. A collector with several loops goes step by step, in
    inference mode, so that the environments of one step while another one acts:

        loop.begin(conditioning)
        while not loop.is_over:         # or loop.run()
            loop.act()                  # choose the actions
            loop.send()                 # set the environments off
            loop.observe()              # wait for them and keep what they gave
        collected = loop.end()

    Args:
        env: the environments.
        policy: acts, on the device where its parameters are. May be replaced between rollouts.
        memory: of the rollout. May be replaced by one of the same shape between rollouts.
        episodes: accounts for them.
        noise: draws the action noise.
        seed: of the run.
        progress: [2] int64 for whoever watches: steps taken so far in all rollouts, and rows
            finished in the present one; None: nobody outside of this process.
        actor_for: gives what acts in the policy's place, where anything does.
        alone: whether these are all environments of the run. Only then may a rowwise actor
            act: of several environments each must be acted for by the same arithmetic,
            wherever it is placed.
        device: where the policy acts; None: where its parameters are.
        check: whether the first step of each rollout goes through a `DeviceCheck`.

    Attributes:
        t: the next row.
        is_over: whether the rollout has all of its rows.
        rollouts: takes all steps of a rollout at once, and says whether it could; None: nothing.
        drawn_noise: [T, B, noise_size] of the present rollout.
    """

    # They come in pairs, arrays or tensors, and no type here can say so.
    env: Any
    memory: Any
    episodes: Any

    def __init__(
        self,
        env: VecEnv | DeviceVecEnv,
        policy: Policy,
        memory: ArrayMemory | TensorMemory,
        episodes: Episodes,
        noise: HostNoise | DeviceNoise,
        *,
        seed: int,
        progress: Array | None = None,
        actor_for: ActorFor | None = None,
        alone: bool = False,
        device: torch.device | None = None,
        check: bool = False,
    ) -> None:
        self.env, self.policy, self.memory, self.episodes = env, policy, memory, episodes
        metadata(num_envs=env.num_envs)  # that one simulation mark stands for
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        self._noise, self._seed, self._check = noise, seed, check
        if device is None:
            parameter = next(policy.parameters(), None)
            device = parameter.device if parameter is not None else torch.device("cpu")
        self._device = device
        self._moves_obs = self._device != memory.device
        self._actor_for = actor_for
        self._may_act_rowwise = alone and env.num_envs == 1
        self._acting_for: Policy | None = None
        self._actor: Any = None
        self._checked: DeviceCheck | None = None
        self._rowwise: Any = None
        self._takes_arrays = False
        self.rollouts: Callable[[], bool] | None = None
        self.drawn_noise = torch.empty(0)
        self._conditioning: Mapping[str, Tensor] | None = None
        self._obs: Any = None
        self._state: State = self._fresh_state()
        self.t, self.is_over = 0, True

    @classmethod
    def beside_arrays(
        cls,
        env: VecEnv,
        policy: Policy,
        buffer: RolloutBuffer,
        *,
        seed: int,
        reset_mode: ResetMode,
        first_env_id: int,
        **further: Any,
    ) -> ActingLoop:
        """A loop over environments of arrays.

        Args:
            env: the environments.
            policy: acts.
            buffer: [T, B] memory to fill.
            seed: of the run.
            reset_mode: what an environment does after its episode ends.
            first_env_id: number of the first of these environments in the whole run.
            further: as for `ActingLoop`.

        Raises:
            ConfigError: if environments should wait but their back end cannot idle.
        """
        episodes = ArrayEpisodes(env, reset_mode, first_env_id)
        memory = ArrayMemory(buffer, policy.extras_spec, first_env_id)
        noise = HostNoise(policy, env.num_envs, buffer.rollout_length, seed, first_env_id)
        return cls(env, policy, memory, episodes, noise, seed=seed, **further)

    # -- a rollout ------------------------------------------------------------------------

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Collected:
        """Fill the memory with T steps.

        Args:
            conditioning: name -> [B, ...] per-environment inputs of the policy.
        """
        with torch.inference_mode():
            self.begin(conditioning)
            self.run()
            return self.end()

    def begin(self, conditioning: Mapping[str, Tensor] | None = None) -> None:
        """Start a rollout; see `collect`."""
        actor = self._actor
        if self._acting_for is not self.policy or (actor is not None and actor.watch.changed()):
            self._find_actor()
        self._initial_state = self._state_copy()
        self.memory.begin()
        self.episodes.begin_rollout()
        self.progress[1] = self.t = 0
        self._conditioning = conditioning
        self._choose_actor(conditioning, self._noise.draw())
        self.is_over = False
        self._finish_if_idle()

    def run(self, before_each: Callable[[], None] | None = None) -> None:
        """Take all steps of the rollout that are left.

        Args:
            before_each: called before every step; may raise.
        """
        if self.rollouts is not None and self.rollouts():
            return
        # A single environment that still has an episode to run is stepped as if none could idle;
        # `_keep` ends the rollout after the episode that is its last.
        if self._rowwise is not None and self.env.can_step_quietly:
            while not self.is_over:
                step = step_quietly(self, self._rowwise, before_each)
                if step is not None:
                    self._keep(step)
            return
        self.take_steps(before_each)

    def take_steps(self, before_each: Callable[[], None] | None = None) -> None:
        """`run`, one step after the other."""
        while not self.is_over:
            if before_each is not None:
                before_each()
            self.act()
            with _SIMULATION:
                step = self.env.step(self._action, self.episodes.active)
            self._keep(step)

    def rewind(self, noise: Tensor, conditioning: Mapping[str, Tensor] | None) -> None:
        """Go back to the first row, to take all steps again from wherever everything is.

        Args:
            noise: [T, B, noise_size] in place of what was drawn.
            conditioning: in place of what the rollout began with.
        """
        self.progress[0] -= self.t
        self.progress[1] = self.t = 0
        self.is_over = False
        self._noise_rows, self._conditioning = noise.unbind(0), conditioning

    def have_been_taken(self) -> None:
        """All steps have been taken, by something else."""
        missing = self.memory.rollout_length - self.t
        self.progress += missing
        self.t, self.is_over = self.memory.rollout_length, True

    @property
    def state(self) -> State:
        """The recurrent state to act with next."""
        return self._state

    @property
    def conditioning(self) -> Mapping[str, Tensor] | None:
        """What the present rollout acts with."""
        return self._conditioning

    def go_on_from(self, obs: Any, state: State) -> None:
        """Act next on these observations with this state."""
        self._obs, self._state = obs, state

    def act(self) -> None:
        """Choose the actions of the present row."""
        memory, t, policy = self.memory, self.t, self.policy
        memory.write_obs(t, self.last_obs)
        if self._rowwise is not None:
            action = memory.action[t]
            with _INFERENCE:
                self._rowwise.act(t, memory.obs[t], action)
            self._action = policy.env_action(action)
            return
        obs = memory.obs_tensors[t]
        if self._moves_obs and not self._takes_arrays:
            obs = self._at_policy(obs)
        with _INFERENCE:
            output = self._act(obs, self._state, self._noise_rows[t], self._conditioning)
        if t == 0 and self._checked is not None:
            self._act = policy.act  # one look per rollout is enough
        self._action = memory.write_output(t, output, policy.env_action)
        self._state = output.state

    def send(self) -> None:
        """Set the environments off."""
        self.env.begin_step(self._action, self.episodes.active)

    def observe(self) -> None:
        """Wait for the environments and keep what they gave."""
        with _SIMULATION:
            step = self.env.finish_step()
        self._keep(step)

    def _keep(self, step: Any) -> None:
        """Write one step, value and reset what was cut and what ended in it."""
        t, episodes = self.t, self.episodes
        cut, reset = self.memory.write_step(t, step, episodes.ids, episodes.active)
        self._obs = step.obs
        if cut is not None:
            self._bootstrap(t, step.final_obs, cut)
        if self._state:
            self.memory.write_state(t, self._state)
        if reset is not None and self._state:
            self._state = reset_state(self._state, torch.as_tensor(reset, device=self._device))
        episodes.record_step(t, step)
        self.t = t + 1
        self.progress += 1
        self.is_over = self.t == self.memory.rollout_length
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        """Clear the rest of the rows if no environment is to be stepped any more."""
        active = self.episodes.active
        if self.is_over or not isinstance(active, np.ndarray) or active.any():
            return  # a device is not asked: it would have to be waited for
        self.memory.clear_from(self.t, self.episodes.ids)
        self.is_over = True

    def end(self) -> Collected:
        """Complete a rollout; see `collect`."""
        if self._rowwise is not None:
            self._write_rowwise_extras()
        if self.policy.has_value:
            self._bootstrap_rest()
        self.progress[1] = self.memory.rollout_length
        self._state = self._state_copy()
        ended = self.episodes.read_ended()
        return Collected(self._initial_state, ended, self.episodes.num_running)

    @property
    def last_obs(self) -> Any:
        """[B, ...] what the environments gave to act on next; it holds until the next step.

        The first observations, if no episode has begun yet.
        """
        if self._obs is None:
            self._obs = self.env.reset(self._seed)
        return self._obs

    def copy_last_obs(self) -> NestedTensor:
        """[B, ...] a copy of `last_obs`."""
        return map_leaves(self.memory.copied, self.last_obs)

    # -- who acts -------------------------------------------------------------------------

    def _find_actor(self) -> None:
        """Ask what acts in place of this policy, and what checks it."""
        policy = self._acting_for = self.policy
        self._checked = DeviceCheck(policy, self._device) if self._check else None
        self._actor = None
        if self._actor_for is not None:
            actor = self._actor_for(policy, self.env.num_envs, self.memory.rollout_length)
            if actor is not None and (self._may_act_rowwise or not actor.is_rowwise):
                self._actor = actor

    def _choose_actor(
        self, conditioning: Mapping[str, Tensor] | None, noise: Array | Tensor
    ) -> None:
        """Take the actor if it understands the conditioning, else the policy."""
        actor = self._actor
        if actor is not None and not actor.serves(conditioning):
            actor = None
        self._rowwise = None
        self._takes_arrays = actor is not None and actor.takes_arrays
        if actor is not None:
            actor.begin(conditioning, noise)
            if actor.is_rowwise:
                self._rowwise = actor
                self.memory.clear_extras()
                return
        self._act = (self._checked or actor or self.policy).act
        device = None if self._takes_arrays else self._device
        self.drawn_noise = torch.as_tensor(noise, device=device)
        self._noise_rows = self.drawn_noise.unbind(0)

    def _write_rowwise_extras(self) -> None:
        fields, done = self.memory.fields, slice(0, self.t)
        extras = {name: fields[name][done] for name in self.policy.extras_spec}
        with _INFERENCE:
            self._rowwise.end(fields["obs"][done], fields["action"][done], extras)
        valid = fields["valid"][done]
        if not valid.all():
            for extra in extras.values():
                extra[~valid] = 0.0

    # -- values of what was cut -----------------------------------------------------------

    def _bootstrap(self, t: int, obs: Any, envs: Any) -> None:
        if self.policy.has_value:
            value = self.policy.value(self._at_policy(obs), self._state, self._conditioning)
            self.memory.write_value(t, value, envs)

    def _bootstrap_rest(self) -> None:
        """Value what has no value yet: cut episodes, and those that go on after the last row."""
        unvalued = self.memory.unvalued_cuts()
        if unvalued is not None:
            at, obs, state = unvalued
            near = self._at_policy(obs), self._at_policy(state)
            value = self.policy.value(*near, self._conditioning_of(at[1]))
            self.memory.write_values(at, value)
        running = self.memory.running_at_end()
        if running is not None:
            policy = self._checked or self.policy
            value = policy.value(self._at_policy(self.last_obs), self._state, self._conditioning)
            self.memory.write_value(self.memory.rollout_length - 1, value, running)

    def _conditioning_of(self, envs: Tensor) -> dict[str, Tensor] | None:
        """The conditioning of some environments, [n] int64, which may occur repeatedly."""
        if self._conditioning is None:
            return None
        index = envs.to(self._device)
        return {name: value[index] for name, value in self._conditioning.items()}

    def _at_policy(self, tree: Any) -> NestedTensor:
        """Arrays or tensors as tensors where the policy is."""

        def place(leaf: Any) -> Tensor:
            if isinstance(leaf, Tensor):
                return leaf.to(self._device, non_blocking=True)
            return to_tensor(leaf, self._device)

        return map_leaves(place, tree)

    # -- state ----------------------------------------------------------------------------

    def _fresh_state(self) -> State:
        state = self.policy.initial_state(self.env.num_envs)
        return {name: leaf.to(self._device) for name, leaf in state.items()}

    def _state_copy(self) -> State:
        """What inference mode makes cannot enter a graph that is differentiated later."""
        if not self._state:
            return {}
        with torch.inference_mode(False):
            return {name: leaf.clone() for name, leaf in self._state.items()}

    def limit_episodes(self, quota: Array | None) -> None:
        """Run so many whole episodes from here on, then stay idle; None: run without end.

        Episodes in the middle are given up: environment by environment, the next row begins
        a new one, with a new id.

        Args:
            quota: [B] int64, episodes of each environment.

        Raises:
            ConfigError: if the environments cannot idle.
        """
        if self.episodes.limit(quota):
            self._obs = self.env.reset(None)
            self._state = self._fresh_state()

    def state_dict(self) -> dict[str, Any]:
        """Environments (if they can be saved), noise streams, recurrent state, episodes."""
        _ = self.last_obs  # there is nothing to save before the first reset
        saved: dict[str, Any] = self._noise.state_dict() | self.episodes.state_dict()
        saved["state"] = {name: leaf.cpu() for name, leaf in self._state.items()}
        if self.env.restorable is None:
            saved["env"] = self.env.state_dict()
        return saved

    def load_state_dict(self, state: Mapping[str, Any], fresh_seed: int) -> str | None:
        """Go on from `state`.

        Args:
            state: what `state_dict` gave.
            fresh_seed: seeds the new episodes of environments that cannot be restored.

        Returns:
            None if the environments go on exactly, else why they began new episodes.
        """
        self._noise.load_state_dict(dict(state))
        reason = self.env.restorable or "the checkpoint holds no environment state"
        if "env" in state:
            try:
                self._obs = self.env.load_state_dict(state["env"])
            except EnvError as error:
                reason = str(error)
            else:
                self._state = {n: leaf.to(self._device) for n, leaf in state["state"].items()}
                self.episodes.load_state_dict(state)
                return None
        self._obs = self.env.reset(fresh_seed)
        self._state = self._fresh_state()
        self.episodes.load_state_dict(None)
        return reason
