"""One policy acting in one batch of environments: the loop inside every collector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import ResetMode
from redline.data import Array, EpisodeRecord, NestedArray, map_leaves, to_tensor
from redline.envs.vec_env import EnvStep, VecEnv
from redline.errors import ConfigError, EnvError
from redline.policies.policy import Policy, State, reset_state
from redline.profile.marks import operation

_INFERENCE, _SIMULATION = operation("inference"), operation("simulation")
_NOISE_STREAM = 1  # keeps the action noise apart from the environments' own seeds


class _Rows:
    """The buffer's memory row by row.

    The views are made once: indexing in the loop would cost more than what is copied.
    """

    def __init__(self, buffer: RolloutBuffer, extras: Mapping[str, tuple[int, ...]]) -> None:
        fields, tensors = buffer.fields, buffer.tensors()
        length = range(buffer.rollout_length)
        self.obs = [map_leaves(lambda leaf, t=t: leaf[t], fields["obs"]) for t in length]
        self.obs_tensors = [map_leaves(lambda leaf, t=t: leaf[t], tensors["obs"]) for t in length]
        self.action = [map_leaves(lambda leaf, t=t: leaf[t], fields["action"]) for t in length]
        self.action_tensors = [
            map_leaves(lambda leaf, t=t: leaf[t], tensors["action"]) for t in length
        ]
        self.extras = {name: tensors[name].unbind(0) for name in extras}
        self.reward: Array = fields["reward"]
        self.terminated: Array = fields["terminated"]
        self.truncated: Array = fields["truncated"]
        self.valid: Array = fields["valid"]
        self.episode_id: Array = fields["episode_id"]


def _copy(target: Any, source: Any) -> None:
    """Copy nested arrays leaf by leaf."""
    if isinstance(target, np.ndarray):
        np.copyto(target, source, casting="same_kind")
    else:
        map_leaves(lambda into, leaf: np.copyto(into, leaf, casting="same_kind"), target, source)


def _copy_tensors(target: Any, source: Any) -> None:
    """Copy nested tensors leaf by leaf, from whatever device."""
    if isinstance(target, Tensor):
        target.copy_(source)
    else:
        map_leaves(lambda into, leaf: into.copy_(leaf), target, source)


class Actor:
    """Steps environments with a policy and writes what happens into a buffer.

    What environment i experiences depends on (seed, i), the weights and nothing else: each
    has a noise stream of its own, so the number of environments, workers or devices around
    it changes nothing.

    Args:
        env: the environments.
        policy: acts, on the device where its parameters are.
        buffer: [T, B] memory to fill.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        first_env_id: number of the first of these environments in the whole run.
        heartbeat: [1] int64 that counts steps, for whoever watches this process; None: nobody.

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
        heartbeat: Array | None = None,
    ) -> None:
        if reset_mode == "wait" and not env.can_idle:
            raise ConfigError(
                f"reset_mode='wait' needs environments that can stay idle, and the back end "
                f"{env.backend!r} steps all of them at once. Use env_backend='gymnasium' or "
                f"'processes', or reset_mode='immediate'."
            )
        self.env, self.policy, self.buffer = env, policy, buffer
        self._wait = reset_mode == "wait"
        self._first_env_id = first_env_id
        self._seed = seed
        self._heartbeat = heartbeat
        parameter = next(policy.parameters(), None)
        self._device = parameter.device if parameter is not None else torch.device("cpu")
        self._rows = _Rows(buffer, policy.extras_spec)
        self._all_valid = np.ones(env.num_envs, np.bool_).tobytes()
        env_ids = np.arange(first_env_id, first_env_id + env.num_envs)
        self._noise_rngs = [
            np.random.default_rng(np.random.SeedSequence([seed, _NOISE_STREAM, int(i)]))
            for i in env_ids
        ]
        buffer.fields["env_id"][:] = env_ids
        self._episode_id = np.zeros(env.num_envs, np.int64)
        self._obs: NestedArray | None = None
        self._state: State = self._fresh_state()

    def _fresh_state(self) -> State:
        state = self.policy.initial_state(self.env.num_envs)
        return {name: leaf.to(self._device) for name, leaf in state.items()}

    def collect(
        self, conditioning: Mapping[str, Tensor] | None = None
    ) -> tuple[State, list[EpisodeRecord]]:
        """Fill the buffer with T steps.

        Args:
            conditioning: name -> [B, ...] per-environment inputs of the policy.

        Returns:
            The recurrent state before the first step, and the episodes that ended.
        """
        buffer, heartbeat = self.buffer, self._heartbeat
        episodes: list[EpisodeRecord] = []
        initial_state = {name: leaf.clone() for name, leaf in self._state.items()}
        buffer.begin()
        noise = self._draw_noise().unbind(0)
        active = np.ones(self.env.num_envs, np.bool_) if self._wait else None
        last = buffer.rollout_length - 1
        with torch.inference_mode():
            for t in range(buffer.rollout_length):
                step = self._step(t, noise[t], active, conditioning)
                if step.episodes:
                    episodes.extend(step.episodes)
                if heartbeat is not None:
                    heartbeat += 1
                if active is not None:
                    active &= ~(step.terminated | step.truncated)
                    if not active.any():
                        if t < last:
                            buffer.clear_from(t + 1)
                            buffer.fields["episode_id"][t + 1 :] = self._episode_id
                        break
            self._bootstrap_last_row()
        # What inference mode makes cannot enter a graph that is differentiated later.
        self._state = {name: leaf.clone() for name, leaf in self._state.items()}
        return initial_state, episodes

    def _draw_noise(self) -> Tensor:
        """[T, B, noise_size] from one stream per environment."""
        length = self.buffer.rollout_length
        streams = [self.policy.draw_noise(rng, length) for rng in self._noise_rngs]
        return torch.from_numpy(np.stack(streams, axis=1)).to(self._device)

    def _step(
        self,
        t: int,
        noise: Tensor,
        active: Array | None,
        conditioning: Mapping[str, Tensor] | None,
    ) -> EnvStep:
        rows = self._rows
        _copy(rows.obs[t], self.last_obs)
        obs = rows.obs_tensors[t]
        if self._device.type != "cpu":
            obs = map_leaves(lambda leaf: leaf.to(self._device, non_blocking=True), obs)
        with _INFERENCE:
            output = self.policy.act(obs, self._state, noise, conditioning)
        _copy_tensors(rows.action_tensors[t], output.action)
        for name, extra in output.extras.items():
            rows.extras[name][t].copy_(extra)
        action = self.policy.env_action(rows.action[t])
        with _SIMULATION:
            step = self.env.step(action, active)
        rows.reward[t], rows.terminated[t] = step.reward, step.terminated
        rows.truncated[t], rows.valid[t] = step.truncated, step.valid
        rows.episode_id[t] = self._episode_id
        self._obs, self._state = step.obs, output.state
        if step.final_obs is not None:
            self._end_episodes(t, step, step.final_obs)
        if step.valid.tobytes() != self._all_valid:
            self.buffer.clear_envs(t, ~step.valid)
            self._reset_state(~step.valid)
        return step

    def _end_episodes(self, t: int, step: EnvStep, final_obs: NestedArray) -> None:
        """Keep true last observations, value the cut ones, reset the state of all of them."""
        ended = step.terminated | step.truncated
        self.buffer.write_final_obs(t, final_obs, ended)
        cut = step.truncated & ~step.terminated & step.valid
        if cut.any():
            self._bootstrap(t, final_obs, cut)
        self._reset_state(ended)
        for record in step.episodes:
            self._episode_id[record.env_id - self._first_env_id] = record.episode_id + 1

    def _bootstrap(self, t: int, obs: NestedArray, rows: Array) -> None:
        if not self.policy.has_value:
            return
        value = self.policy.value(to_tensor(obs, self._device), self._state)
        self.buffer.fields["bootstrap_value"][t][rows] = value.cpu().numpy()[rows]

    def _bootstrap_last_row(self) -> None:
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
            "noise": [rng.bit_generator.state for rng in self._noise_rngs],
            "state": {name: leaf.cpu() for name, leaf in self._state.items()},
            "episode_id": self._episode_id.copy(),
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
        reason = self.env.restorable or "the checkpoint holds no environment state"
        if "env" in state:
            try:
                self._obs = self.env.load_state_dict(state["env"])
            except EnvError as error:
                reason = str(error)
            else:
                self._state = {n: leaf.to(self._device) for n, leaf in state["state"].items()}
                self._episode_id[:] = state["episode_id"]
                return None
        self._obs = self.env.reset(fresh_seed)
        self._state = self._fresh_state()
        self._episode_id[:] = 0
        return reason
