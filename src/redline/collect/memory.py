"""The rows of a rollout as the acting loop writes them: arrays, or tensors on a device.

| | `ArrayMemory` | `TensorMemory` |
|---|---|---|
| lies | beside the environments, in a `RolloutBuffer` | on the environments' device |
| looks at what ended | after every step: that is free | after the last step: it waits |
| values of cut episodes | asked for at once | asked for together, unless there is a state |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from redline.collect.buffer import RolloutBuffer
from redline.data import Array, NestedArray, leaves, map_leaves, to_tensor
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.envs.vec_env import EnvStep
from redline.policies.policy import ActOutput

_FIELDS_OF_IDLE_ROWS = ("env_id", "episode_id")  # what rows keep that are not valid


class ArrayMemory:
    """[T, B] arrays, written beside the environments.

    The views of the rows are made once: indexing in the loop would cost more than what is copied.

    Args:
        buffer: the memory.
        extras_spec: the policy's extras, name -> trailing shape.
        first_env_id: number of the first environment in the whole run.
    """

    device: ClassVar = torch.device("cpu")

    def __init__(
        self, buffer: RolloutBuffer, extras_spec: Mapping[str, tuple[int, ...]], first_env_id: int
    ) -> None:
        fields, tensors = buffer.fields, buffer.tensors()
        fields["env_id"][:] = np.arange(first_env_id, first_env_id + buffer.num_envs)
        length = self.rollout_length = buffer.rollout_length
        self.fields, self._buffer = fields, buffer
        self.obs = _rows(fields["obs"], length)
        self.obs_tensors = _rows(tensors["obs"], length)
        self.action = _rows(fields["action"], length)
        self._action_tensors = _rows(tensors["action"], length)
        self._extras = {name: tensors[name].unbind(0) for name in extras_spec}
        self._reward: Array = fields["reward"]
        self._terminated: Array = fields["terminated"]
        self._truncated: Array = fields["truncated"]
        self._valid: Array = fields["valid"]
        self._episode_id: Array = fields["episode_id"]
        self._all_valid = np.ones(buffer.num_envs, np.bool_).tobytes()

    def begin(self) -> None:
        """Clear what is written only now and then."""
        self._buffer.begin()

    def clear_extras(self) -> None:
        """Zero the policy's extras, which come after the last step."""
        for name in self._extras:
            self.fields[name].fill(0.0)

    def write_obs(self, t: int, obs: NestedArray) -> None:
        """Keep what is acted on in row t; the structure and the dtypes are the memory's."""
        target = self.obs[t]
        if type(target) is np.ndarray:
            target[...] = obs
        else:
            map_leaves(lambda into, leaf: np.copyto(into, leaf, casting="same_kind"), target, obs)

    def write_output(self, t: int, output: ActOutput, env_action: Callable[[Any], Any]) -> Any:
        """Keep what the policy gave in row t; what the environments take."""
        for name, extra in output.extras.items():
            self._extras[name][t].copy_(extra, non_blocking=True)
        _copy(self._action_tensors[t], output.action)  # waits for the device, once
        return env_action(self.action[t])

    def write_step(
        self, t: int, step: EnvStep, episode_id: Array, active: Array | None
    ) -> tuple[Array | None, Array | None]:
        """Keep what the environments gave in row t.

        Args:
            t: the row.
            step: what they gave.
            episode_id: [B] the episodes that the step belongs to.
            active: [B] bool, which environments were stepped; None: all.

        Returns:
            [B] bool, cut episodes whose value is to be written now, and [B] bool, environments
            whose recurrent state is to be reset; None: there are none.
        """
        del active
        self._reward[t], self._terminated[t] = step.reward, step.terminated
        self._truncated[t], self._valid[t] = step.truncated, step.valid
        self._episode_id[t] = episode_id
        cut = reset = None
        if step.final_obs is not None:
            reset = step.terminated | step.truncated
            self._buffer.write_final_obs(t, step.final_obs, reset)
            cut = step.truncated & ~step.terminated & step.valid
            if not cut.any():
                cut = None
        # Comparing bytes takes a fraction of the time that `all()` takes.
        if step.valid.tobytes() != self._all_valid:
            invalid = ~step.valid
            self._buffer.clear_envs(t, invalid)
            reset = invalid if reset is None else reset | invalid
        return cut, reset

    def write_state(self, t: int, state: Mapping[str, Tensor]) -> None:
        """Nothing: cut episodes are valued at once."""

    def write_quiet_steps(self, first: int, rewards: Array, episode_id: Array) -> None:
        """Keep steps of a single environment in which no episode ended, from row `first` on."""
        steps = slice(first, first + len(rewards))
        self._reward[steps, 0] = rewards
        self._terminated[steps] = self._truncated[steps] = False
        self._valid[steps] = True
        self._episode_id[steps] = episode_id

    def write_value(self, t: int, value: Tensor, envs: Array) -> None:
        """Bootstrap row t of `envs` [B] bool with `value` [B]."""
        self.fields["bootstrap_value"][t][envs] = value.cpu().numpy()[envs]

    def unvalued_cuts(self) -> None:
        """Nothing: `write_step` has named all cut episodes."""

    def running_at_end(self) -> Array | None:
        """[B] bool, environments whose episode goes on after the last row; None: there are none."""
        running = self._valid[-1] & ~(self._terminated[-1] | self._truncated[-1])
        return running if running.any() else None

    def clear_from(self, t: int, episode_id: Array) -> None:
        """Zero all rows from t on: no environment is stepped any more."""
        self._buffer.clear_from(t)
        self._episode_id[t:] = episode_id

    @staticmethod
    def copied(leaf: Array) -> Tensor:
        """A copy of what the environments gave, as a tensor."""
        return to_tensor(leaf.copy())


class TensorMemory:
    """[T, B] tensors where the environments are; the methods are those of `ArrayMemory`.

    Args:
        env: says shapes, dtypes, device and numbers.
        rollout_length: T.
        extras_spec: the policy's extras, name -> trailing shape.
        has_state: whether the policy is recurrent.
        has_value: whether it can value observations.
    """

    def __init__(
        self,
        env: DeviceVecEnv,
        rollout_length: int,
        extras_spec: Mapping[str, tuple[int, ...]],
        *,
        has_state: bool,
        has_value: bool,
    ) -> None:
        shape = (rollout_length, env.num_envs)
        self.rollout_length, self.device = rollout_length, env.device
        # On the CPU looking is free. Elsewhere it waits, so the states that cut episodes are to be
        # valued with are kept instead, T of them.
        self._has_state = has_state
        self._values_now = has_state and has_value and env.device.type == "cpu"
        self._keeps_states = has_state and has_value and env.device.type != "cpu"
        self._states: dict[str, Tensor] = {}
        self._has_fillers = env.has_fillers
        buffer = RolloutBuffer.create(*shape, env.observation_space, env.action_space, extras_spec)
        self._steps = buffer.steps().to(env.device)
        env_ids = torch.arange(env.first_env_id, env.first_env_id + env.num_envs)
        self._steps["env_id"].copy_(env_ids.to(env.device).expand(shape))
        # Made once: indexing in the loop would cost more than what is copied.
        self._row_fields = [
            {name: map_leaves(lambda leaf, t=t: leaf[t], f) for name, f in _fields(self._steps)}
            for t in range(rollout_length)
        ]
        self.obs = self.obs_tensors = [row["obs"] for row in self._row_fields]

    def steps(self) -> TensorDict:
        """The memory itself."""
        return self._steps

    def begin(self) -> None:
        """See `ArrayMemory`."""
        self._steps["bootstrap_value"].zero_()

    def write_obs(self, t: int, obs: Any) -> None:
        """See `ArrayMemory`."""
        _copy(self.obs[t], obs)

    def write_output(self, t: int, output: ActOutput, env_action: Callable[[Any], Any]) -> Any:
        """See `ArrayMemory`."""
        row = self._row_fields[t]
        _copy(row["action"], output.action)
        for name, extra in output.extras.items():
            row[name].copy_(extra)
        # Not without waiting: a copy to the CPU would be read before it has arrived.
        return map_leaves(lambda leaf: leaf.to(self.device), env_action(output.action))

    def write_step(
        self, t: int, step: DeviceStep, episode_id: Array | None, active: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """See `ArrayMemory`; the step itself says which episodes it belongs to."""
        del episode_id
        row = self._row_fields[t]
        for name in ("reward", "terminated", "truncated", "valid", "episode_id"):
            row[name].copy_(getattr(step, name))
        reset = step.terminated | step.truncated
        _copy(row["final_obs"], map_leaves(lambda leaf: _zero(leaf, ~reset), step.final_obs))
        if active is not None or self._has_fillers:
            invalid = ~step.valid
            for name, field in row.items():
                if name not in _FIELDS_OF_IDLE_ROWS:
                    for _, leaf in leaves(field):
                        leaf.masked_fill_(_expand_mask(invalid, leaf), 0)
            reset = reset | invalid
        if not self._has_state:
            return None, None
        return self._cut_now(step), reset

    def write_state(self, t: int, state: Mapping[str, Tensor]) -> None:
        """Keep the recurrent state after row t, before any reset, if that is to be asked for."""
        if not self._keeps_states:
            return
        for name, leaf in state.items():
            if name not in self._states:
                shape = (self.rollout_length, *leaf.shape)
                self._states[name] = torch.zeros(shape, dtype=leaf.dtype, device=self.device)
            self._states[name][t].copy_(leaf)

    def _cut_now(self, step: DeviceStep) -> Tensor | None:
        """Cut episodes, to be valued with the recurrent state that they have now."""
        if not self._values_now:
            return None
        cut = step.truncated & ~step.terminated & step.valid
        return cut if bool(cut.any()) else None

    def write_value(self, t: int, value: Tensor, envs: Tensor) -> None:
        """See `ArrayMemory`."""
        row = self._row_fields[t]["bootstrap_value"]
        row.copy_(torch.where(envs, value.to(self.device), row))

    def unvalued_cuts(self) -> tuple[tuple[Tensor, ...], Any, dict[str, Tensor]] | None:
        """Where episodes were cut whose values are still to come, and what they are valued by.

        Returns:
            Rows [n] and environments [n], the last observations [n, ...], and the recurrent
            states [n, ...]; None: there are none.
        """
        if self._has_state and not self._keeps_states:
            return None
        steps = self._steps
        cut = steps["truncated"] & ~steps["terminated"] & steps["valid"]
        at = cut.nonzero(as_tuple=True)
        if not len(at[0]):
            return None
        states = {name: leaf[at] for name, leaf in self._states.items()}
        return at, map_leaves(lambda leaf: leaf[at], steps["final_obs"]), states

    def write_values(self, at: tuple[Tensor, ...], value: Tensor) -> None:
        """Bootstrap rows and environments `at` with `value` [n]."""
        self._steps["bootstrap_value"][at] = value.to(self.device)

    def running_at_end(self) -> Tensor:
        """See `ArrayMemory`; whether there are any is not looked at."""
        steps = self._steps
        return steps["valid"][-1] & ~(steps["terminated"][-1] | steps["truncated"][-1])

    def first_rows(self, num_rows: Array) -> TensorDict:
        """A copy in which only the first rows are left; the others are zero, so not valid.

        Args:
            num_rows: [B] int64, the same for all environments.
        """
        done, steps = int(num_rows[0]), self._steps.clone()
        for name, field in _fields(steps):
            if name != "env_id":
                for _, leaf in leaves(field):
                    leaf[done:] = 0
        return steps

    @staticmethod
    def copied(leaf: Tensor) -> Tensor:
        """See `ArrayMemory`."""
        return leaf.clone()


def _rows(tree: Any, length: int) -> list[Any]:
    """[T, ...] leaves as T trees of rows."""
    return [map_leaves(lambda leaf, t=t: leaf[t], tree) for t in range(length)]


def _copy(target: Any, source: Any) -> None:
    """Copy nested tensors leaf by leaf, from whatever device."""
    if isinstance(target, Tensor):
        target.copy_(source)
    else:
        map_leaves(lambda into, leaf: into.copy_(leaf), target, source)


def _fields(steps: TensorDict) -> list[tuple[str, Any]]:
    return [(str(name), steps[name]) for name in steps.keys()]  # noqa: SIM118


def _zero(leaf: Tensor, rows: Tensor) -> Tensor:
    """`leaf` [B, ...] with zeros in `rows` [B] bool."""
    return leaf.masked_fill(_expand_mask(rows, leaf), 0)


def _expand_mask(mask: Tensor, leaf: Tensor) -> Tensor:
    """[B] as [B, 1, ...] with the dimensions of `leaf`."""
    return mask.view(-1, *([1] * (leaf.dim() - 1)))
