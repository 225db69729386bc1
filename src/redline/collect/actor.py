"""One policy acting in one batch of environments: the loop inside every collector."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import ResetMode
from redline.collect.rows import BufferRows, Collected, copy_arrays, copy_tensors
from redline.data import Array, EpisodeRecord, NestedArray, map_leaves, to_tensor
from redline.engines.cpu.packed import Packing
from redline.engines.cpu.single_acting import SingleActor, single_actor
from redline.envs.vec_env import EnvStep, VecEnv
from redline.errors import ConfigError, EnvError
from redline.policies.policy import Policy, State, reset_state
from redline.profile.marks import operation

_INFERENCE, _SIMULATION = operation("inference"), operation("simulation")
_NOISE_ROWS = 64  # rows of noise drawn at once where rollouts are shorter
_PACKED_ROWS = 16  # rollouts of so many rows at least are worth laying out weights anew
_UNSETTLED_S = 0.01  # by so much a look at an unfinished rollout may be late
_NOISE_STREAM = 1  # keeps the action noise apart from the environments' own seeds


class Actor:
    """Steps environments with a policy and writes what happens into a buffer.

    What environment i experiences depends on (seed, i), the weights and nothing else: each
    has a noise stream of its own, so the number of environments, workers or devices around
    it changes nothing.

    `collect` takes a whole rollout. A collector with several actors goes step by step, in
    inference mode, so that the environments of one step while another one acts:

        actor.begin(conditioning)
        while not actor.is_over:        # or actor.run()
            actor.act()                 # choose the actions
            actor.send()                # set the environments off
            actor.observe()             # wait for them and keep what they gave
        made = actor.end()

    Args:
        env: the environments.
        policy: acts, on the device where its parameters are.
        buffer: [T, B] memory to fill.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        first_env_id: number of the first of these environments in the whole run.
        progress: [2] int64 for whoever watches: steps taken so far in all rollouts, and rows
            finished in the present one; None: nobody outside of this process.
        alone: whether these are all environments of the run. A single one is then acted for
            in numpy; of several each must act by the same arithmetic, wherever it is placed.

    Raises:
        ConfigError: if environments should wait but their back end cannot idle.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        buffer: RolloutBuffer,
        *,
        seed: int,
        reset_mode: ResetMode = "immediate",
        first_env_id: int = 0,
        progress: Array | None = None,
        alone: bool = False,
    ) -> None:
        self.env, self.policy = env, policy
        self._wait = reset_mode == "wait"
        if self._wait:
            self._require_idling("reset_mode='wait'")
        self._first_env_id = first_env_id
        self._seed = seed
        self.progress = np.zeros(2, np.int64) if progress is None else progress
        parameter = next(policy.parameters(), None)
        self._device = parameter.device if parameter is not None else torch.device("cpu")
        self._acts_alone = alone and env.num_envs == 1 and self._device.type == "cpu"
        self._single: SingleActor | None = None
        self._single_policy: Policy | None = None
        self._all_valid = np.ones(env.num_envs, np.bool_).tobytes()
        self._env_ids = np.arange(first_env_id, first_env_id + env.num_envs)
        self._rows_of: dict[int, BufferRows] = {}
        self.use_buffer(buffer)
        self._noise_rngs = [
            np.random.default_rng(np.random.SeedSequence([seed, _NOISE_STREAM, int(i)]))
            for i in self._env_ids
        ]
        self._noise_begin = [rng.bit_generator.state for rng in self._noise_rngs]
        self._noise_ahead, self._noise_used = np.empty((0, env.num_envs, 0), np.float32), 0
        self._episode_id = np.zeros(env.num_envs, np.int64)
        self._in_episode = np.zeros(env.num_envs, np.bool_)
        self._all_in_episode = False
        self._quota: Array | None = None
        self._obs: NestedArray | None = None
        self._state: State = self._fresh_state()
        self.is_over = True

    def use_buffer(self, buffer: RolloutBuffer) -> None:
        """Write the next rollouts into `buffer`, of the same shape; the caller keeps it alive."""
        if id(buffer) not in self._rows_of:
            self._rows_of[id(buffer)] = BufferRows(buffer, self.policy.extras_spec)
            buffer.fields["env_id"][:] = self._env_ids
        self.buffer, self._rows = buffer, self._rows_of[id(buffer)]

    def _require_idling(self, purpose: str) -> None:
        if not self.env.can_idle:
            raise ConfigError(
                f"{purpose} needs environments that can stay idle, and the back end "
                f"{self.env.backend!r} steps all of them at once. Use env_backend='gymnasium' or "
                f"'processes', or reset_mode='immediate' without a limit on episodes."
            )

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
        if quota is None:
            self._quota = None
            return
        self._require_idling("a number of episodes")
        if self._in_episode.any():
            self._obs = self.env.reset(None)
            self._state = self._fresh_state()
            self._episode_id += self._in_episode
            self._in_episode[:] = self._all_in_episode = False
        self._quota = quota.astype(np.int64)

    @property
    def num_running(self) -> int:
        """Environments with an episode still to finish; all of them if there is no limit."""
        return self.env.num_envs if self._quota is None else int((self._quota > 0).sum())

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Collected:
        """Fill the buffer with T steps.

        Args:
            conditioning: name -> [B, ...] per-environment inputs of the policy.
        """
        with torch.inference_mode():
            self.begin(conditioning)
            self.run()
            return self.end()

    def run(self, before_each: Callable[[], None] | None = None) -> None:
        """Take all steps of the rollout that are left.

        Args:
            before_each: called before every step; may raise.
        """
        quietly = self._single is not None and self._active is None and self.env.can_step_quietly
        while not self.is_over:
            if quietly:
                step = self._run_quietly(before_each)
                if step is not None:
                    self._keep(step)
                continue
            if before_each is not None:
                before_each()
            self.act()
            self.send()
            self.observe()

    def _run_quietly(self, before_each: Callable[[], None] | None) -> EnvStep | None:
        """Step until something happens but a reward and the next observation.

        What is written after a step takes twice the time of a simple environment: of these steps
        it is written for many at once.

        Returns:
            The step in which something happened, still to be kept; None if the rollout is over.
        """
        obs, obs_rows, action_rows = self._begin(), self._rows.obs, self._rows.action
        act, env_action = self._single.act, self.policy.env_action  # type: ignore[union-attr]
        step_quietly = self.env.step_quietly
        due_s = time.monotonic() + _UNSETTLED_S
        try:
            for t in range(self._t, self.buffer.rollout_length):
                if time.monotonic() > due_s:
                    self._settle()
                    due_s = time.monotonic() + _UNSETTLED_S
                if before_each is not None:
                    before_each()
                obs_row, action = obs_rows[t], action_rows[t]
                obs_row[...] = obs
                with _INFERENCE:
                    act(t, obs_row, action)
                with _SIMULATION:
                    if not step_quietly(env_action(action)):
                        self._settle()
                        return self.env.finish_step()
                self.progress[0] += 1
            return None
        finally:
            self._settle()

    def _settle(self) -> None:
        """Write down the rows of quiet steps; the environment knows how many there were."""
        rewards = self.env.settle()
        if len(rewards) == 0:
            return
        first, stop = self._t, self._t + len(rewards)
        rows, steps = self._rows, slice(first, stop)
        rows.reward[steps, 0] = rewards
        rows.terminated[steps] = rows.truncated[steps] = False
        rows.valid[steps] = True
        rows.episode_id[steps] = self._episode_id
        self._in_episode[:] = self._all_in_episode = True
        self._t = stop
        self.progress[1] += stop - first
        self.is_over = stop == self.buffer.rollout_length

    def begin(self, conditioning: Mapping[str, Tensor] | None = None) -> None:
        """Start a rollout; see `collect`."""
        self._episodes: list[tuple[int, EpisodeRecord]] = []
        self._initial_state = self._state_copy()
        self.buffer.begin()
        self.progress[1] = 0
        self._t, self._conditioning = 0, conditioning
        noise = self._draw_noise()
        self._single = self._single_actor(conditioning)
        if self._single is not None:
            self._single.begin(conditioning, noise)
            # What comes in the end is zero until then.
            for name in self.policy.extras_spec:
                self.buffer.fields[name].fill(0.0)
        else:
            self._noise = torch.from_numpy(noise).to(self._device).unbind(0)
            self._packing = self._packed_weights()
        self._active = None
        if self._wait or self._quota is not None:
            self._active = np.ones(self.env.num_envs, np.bool_)
            if self._quota is not None:
                self._active &= self._quota > 0
        self.is_over = False
        self._finish_if_idle()

    def _single_actor(self, conditioning: Mapping[str, Tensor] | None) -> SingleActor | None:
        """What acts in numpy for the policy as it is now; None: the policy itself acts."""
        if not self._acts_alone:
            return None
        if self._single_policy is not self.policy:
            self._single_policy, self._of_policy = self.policy, single_actor(self.policy)
        serves = self._of_policy is not None and self._of_policy.serves(conditioning)
        return self._of_policy if serves else None

    def _packed_weights(self) -> contextlib.AbstractContextManager[None]:
        """In which the policy acts with the weights of now, laid out for as few rows as here."""
        if self._device.type == "cpu" and self.buffer.rollout_length >= _PACKED_ROWS:
            return Packing(self.policy, self.env.num_envs)
        return contextlib.nullcontext()

    def _draw_noise(self) -> Array:
        """[T, B, noise_size] from one stream per environment."""
        length = self.buffer.rollout_length
        if self._noise_used + length > len(self._noise_ahead):
            self._draw_noise_ahead(max(length, _NOISE_ROWS // length * length))
        start, self._noise_used = self._noise_used, self._noise_used + length
        return self._noise_ahead[start : self._noise_used]

    def _draw_noise_ahead(self, rows: int) -> None:
        """The next rows of every stream at once: for short rollouts calls cost the most.

        The streams as they were before are what a checkpoint keeps, with the rows used since.
        """
        self._noise_begin = [rng.bit_generator.state for rng in self._noise_rngs]
        streams = [self.policy.draw_noise(rng, rows) for rng in self._noise_rngs]
        self._noise_ahead, self._noise_used = np.stack(streams, axis=1), 0

    def act(self) -> None:
        """Choose the actions of the present row."""
        rows, t = self._rows, self._t
        copy_arrays(rows.obs[t], self._begin())
        if self._single is not None:
            with _INFERENCE:
                self._single.act(t, rows.obs[t], rows.action[t])
            self._action = self.policy.env_action(rows.action[t])
            return
        obs = rows.obs_tensors[t]
        if self._device.type != "cpu":
            obs = map_leaves(lambda leaf: leaf.to(self._device, non_blocking=True), obs)
        with _INFERENCE, self._packing:
            output = self.policy.act(obs, self._state, self._noise[t], self._conditioning)
        for name, extra in output.extras.items():
            rows.extras[name][t].copy_(extra, non_blocking=True)
        copy_tensors(rows.action_tensors[t], output.action)  # waits for the device, once
        self._state = output.state
        self._action = self.policy.env_action(rows.action[t])

    def send(self) -> None:
        """Set the environments off."""
        self.env.begin_step(self._action, self._active)

    def observe(self) -> None:
        """Wait for the environments and write down what they gave."""
        with _SIMULATION:
            step = self.env.finish_step()
        self._keep(step)

    def _keep(self, step: EnvStep) -> None:
        """Write down one step."""
        rows, t = self._rows, self._t
        rows.reward[t], rows.terminated[t] = step.reward, step.terminated
        rows.truncated[t], rows.valid[t] = step.truncated, step.valid
        rows.episode_id[t] = self._episode_id
        self._obs = step.obs
        if not self._all_in_episode:
            self._in_episode |= step.valid
            self._all_in_episode = bool(self._in_episode.all())
        if step.final_obs is not None:
            self._end_episodes(t, step, step.final_obs)
        if step.valid.tobytes() != self._all_valid:
            self.buffer.clear_envs(t, ~step.valid)
            self._reset_state(~step.valid)
        self._t = t + 1
        self.progress += 1
        self.is_over = self._t == self.buffer.rollout_length
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        """Clear the rest of the rows if no environment is to be stepped any more."""
        if self.is_over or self._active is None or self._active.any():
            return
        self.buffer.clear_from(self._t)
        self.buffer.fields["episode_id"][self._t :] = self._episode_id
        self.is_over = True

    def end(self) -> Collected:
        """Complete a rollout; see `collect`."""
        if self._single is not None:
            fields, done = self.buffer.fields, slice(0, self._t)
            extras = {name: fields[name][done] for name in self.policy.extras_spec}
            with _INFERENCE:
                self._single.end(fields["obs"][done], fields["action"][done], extras)
            if not fields["valid"][done].all():
                for extra in extras.values():
                    extra[~fields["valid"][done]] = 0.0
        self._bootstrap_last_row()
        self.progress[1] = self.buffer.rollout_length
        self._state = self._state_copy()
        return Collected(self._initial_state, self._episodes, self.num_running)

    def _end_episodes(self, t: int, step: EnvStep, final_obs: NestedArray) -> None:
        """Keep true last observations, value the cut ones, reset the state of all of them."""
        ended = step.terminated | step.truncated
        self.buffer.write_final_obs(t, final_obs, ended)
        cut = step.truncated & ~step.terminated & step.valid
        if cut.any():
            self._bootstrap(t, final_obs, cut)
        self._reset_state(ended)
        if self._wait and self._active is not None:
            self._active &= ~ended
        for record in step.episodes:
            row = record.env_id - self._first_env_id
            self._episode_id[row] = record.episode_id + 1
            self._in_episode[row] = self._all_in_episode = False
            if self._quota is not None and self._active is not None:
                self._quota[row] -= 1
                self._active[row] &= self._quota[row] > 0
        self._episodes += [(t, record) for record in step.episodes]

    def _bootstrap(self, t: int, obs: NestedArray, rows: Array) -> None:
        if not self.policy.has_value:
            return
        value = self.policy.value(to_tensor(obs, self._device), self._state, self._conditioning)
        self.buffer.fields["bootstrap_value"][t][rows] = value.cpu().numpy()[rows]

    def _bootstrap_last_row(self) -> None:
        if not self.policy.has_value:
            return
        fields = self.buffer.fields
        running = fields["valid"][-1] & ~(fields["terminated"][-1] | fields["truncated"][-1])
        if running.any():
            self._bootstrap(self.buffer.rollout_length - 1, self.last_obs, running)

    def _reset_state(self, rows: Array) -> None:
        if self._state:
            self._state = reset_state(self._state, torch.from_numpy(rows).to(self._device))

    def _begin(self) -> NestedArray:
        """The present observations, of the first episodes if none has begun yet."""
        if self._obs is None:
            self._obs = self.env.reset(self._seed)
        return self._obs

    @property
    def last_obs(self) -> NestedArray:
        """[B, ...] the observations to act on next; they hold until the next step."""
        return self._begin()

    def state_dict(self) -> dict[str, Any]:
        """Environments (if they can be saved), noise streams, recurrent state, episode ids."""
        self._begin()
        saved: dict[str, Any] = {
            "noise": self._noise_begin,
            "noise_rows": len(self._noise_ahead),
            "noise_used": self._noise_used,
            "state": {name: leaf.cpu() for name, leaf in self._state.items()},
            "episode_id": self._episode_id.copy(),
            "in_episode": self._in_episode.copy(),
            "quota": None if self._quota is None else self._quota.copy(),
        }
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
        for rng, saved in zip(self._noise_rngs, state["noise"], strict=True):
            rng.bit_generator.state = saved
        self._draw_noise_ahead(state["noise_rows"])
        self._noise_used = state["noise_used"]
        reason = self.env.restorable or "the checkpoint holds no environment state"
        if "env" in state:
            try:
                self._obs = self.env.load_state_dict(state["env"])
            except EnvError as error:
                reason = str(error)
            else:
                self._state = {n: leaf.to(self._device) for n, leaf in state["state"].items()}
                self._episode_id[:] = state["episode_id"]
                self._in_episode[:] = state["in_episode"]
                self._all_in_episode = False
                self._quota = None if state["quota"] is None else np.array(state["quota"])
                return None
        self._obs = self.env.reset(fresh_seed)
        self._state = self._fresh_state()
        self._episode_id[:] = 0
        self._in_episode[:] = self._all_in_episode = False
        self._quota = None
        return reason
