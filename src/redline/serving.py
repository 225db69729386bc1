"""Acting for others: one observation as an environment gives it in, an action for it out.

```python
policy = redline.load("runs/ppo-CartPole-v1-seed1").policy()
obs, _ = env.reset()
state = None
action, state = policy.predict(obs, state)
```

`Predictor` stands behind `Policy.predict`. It takes what `env.reset()` and `env.step()` give, one
or a batch, and gives what `env.step()` takes: NumPy in, NumPy or Python numbers out. For one vector
and a plain network, a kernel for the CPU acts where there is one; everything else goes through
torch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from redline.data import to_numpy, to_tensor
from redline.engines.acting import actor_for
from redline.engines.watch import QuickLook
from redline.envs.previous_inputs import joined
from redline.envs.spaces.action_mask import KEY as MASK
from redline.envs.spaces.action_mask import flat_mask
from redline.envs.spaces.actions import ActionCodec, make_codec
from redline.envs.spaces.layout import batch_to_carried, carried_space, make_writer
from redline.envs.vec_env import zeros_like_space
from redline.errors import ConfigError, EnvDataError
from redline.nested import NestedArray
from redline.policies.modes import evaluation_mode
from redline.policies.policy import Policy, reset_state
from redline.previous_inputs import ACTION, REWARD, ActionColumns, has_previous, without_previous

_TAKEN = "previous_action"


class Predictor:
    """Acts with a policy for whoever steps the environment; threads take turns.

    Args:
        policy: acts; it may be on any device, and is not changed.
        observation_space: of one environment, as that one has it.
        action_space: likewise.
        seed: of actions that are sampled; None: a different one each time.
        clips_reward: whether the policy has learned from the signs of rewards, and so sees the sign
            of the previous one.

    Raises:
        SpaceError: if a space has no array form.
    """

    def __init__(
        self,
        policy: Policy,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        seed: int | None = None,
        clips_reward: bool = False,
    ) -> None:
        self._policy, self._clips_reward = policy, clips_reward
        self._space, self._action_space = observation_space, action_space
        self._rng = np.random.default_rng(seed)
        seen = getattr(policy, "observation_space", None)
        self._adds_previous = seen is not None and has_previous(seen)
        self._takes_mask = mask_in_info(seen, observation_space)
        # What lies in this buffer is one observation; the kernel and torch read it in place.
        self._one = zeros_like_space(carried_space(observation_space), 1)
        self._write = make_writer(observation_space, self._one, lambda _: "predict")
        self._codecs = {1: self._codec(1)}
        self._state_names = self._policy.initial_state(1).keys()
        self._columns = ActionColumns(self._codecs[1].space) if self._adds_previous else None
        self._turn = threading.Lock()  # the buffers are one caller's at a time
        self._take_policy()

    def _take_policy(self) -> None:
        """Look where it is, and at what can act in its place."""
        parameter = next(self._policy.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device
        self._conditioning: dict[int, dict[str, Tensor]] = {}
        self._parts = list(self._policy.modules())
        self._look = QuickLook(self._policy)
        with evaluation_mode(self._policy):
            self._find_actor()

    def _in_evaluation_mode(self) -> AbstractContextManager[None]:
        """For a policy that learns; one that was loaded is in that mode, which costs nothing."""
        if any(part.training for part in self._parts):
            return evaluation_mode(self._policy)
        return nullcontext()

    def _codec(self, num: int) -> ActionCodec:
        return make_codec(self._action_space, num, lambda i: f"predict, observation {i}")

    def _find_actor(self) -> None:
        """A kernel that acts on single vectors in the policy's place, if there is one."""
        self._actor: Any = None
        plain = isinstance(self._one, np.ndarray) and self._one.dtype == np.float32
        if not plain or self._policy.is_recurrent or self._adds_previous or self._takes_mask:
            return
        actor = actor_for(self._policy, 1, 1)
        conditioning = self._policy.evaluation_conditioning(1)
        if actor is None or not actor.is_rowwise or not actor.serves(conditioning):
            return
        self._actor = actor
        self._kernel_conditioning = conditioning
        self._zero_noise = np.zeros((1, 1, self._policy.noise_size), np.float32)
        stored = getattr(self._policy, "stored_action_space", self._codecs[1].space)
        self._kernel_action = zeros_like_space(stored, 1)

    def __call__(
        self,
        obs: Any,
        state: Any = None,
        deterministic: bool = True,
        *,
        episode_start: Any = None,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Any, Any]:
        """Choose the action for one observation or a batch; see `Policy.predict`."""
        with self._turn:
            if not self._look.is_the_same():
                self._take_policy()
            return self._predict(obs, state, deterministic, episode_start, action_mask, reward)

    def _predict(
        self,
        obs: Any,
        state: Any,
        deterministic: bool,
        episode_start: Any,
        action_mask: Any,
        reward: Any,
    ) -> tuple[Any, Any]:
        if action_mask is not None and not self._takes_mask:
            raise ConfigError(
                "action_mask was given to a policy that knows no masks: its environment reported "
                "none in info. Leave it out."
            )
        if self._takes_mask:
            return self._predict_masked(
                obs, action_mask, state, deterministic, episode_start, reward
            )
        batch = _batch_size(self._space, obs)
        if batch is None and self._actor is not None:
            return self._by_kernel(obs, deterministic), None
        carried = self._carried(obs, batch)
        with self._in_evaluation_mode():
            return self._by_torch(carried, batch, state, deterministic, episode_start, reward)

    def _by_kernel(self, obs: Any, deterministic: bool) -> Any:
        self._write(0, obs)
        noise = self._zero_noise if deterministic else self._policy.draw_noise(self._rng, 1)[None]
        actor, action = self._actor, self._kernel_action
        actor.begin(self._kernel_conditioning, noise)
        actor.act(0, self._one, action)
        return self._codecs[1].only_row(self._policy.env_action(action))

    def _carried(self, obs: Any, batch: int | None) -> NestedArray:
        if batch is None:
            self._write(0, obs)
            return self._one
        carried = zeros_like_space(carried_space(self._space), batch)
        batch_to_carried(self._space, carried, obs, "predict")
        return carried

    def _predict_masked(
        self,
        obs: Any,
        action_mask: Any,
        state: Any,
        deterministic: bool,
        episode_start: Any,
        reward: Any,
    ) -> tuple[Any, Any]:
        """For masks that come in info: they lie beside the observation, as in training."""
        if isinstance(obs, Mapping) and set(obs) == {"obs", MASK}:
            obs, action_mask = obs["obs"], obs[MASK]
        if action_mask is None:
            raise ConfigError(
                "this policy was trained with action masks. Give them with each observation: "
                'predict(obs, action_mask=info["action_mask"]).'
            )
        batch = _batch_size(self._space, obs)
        masks = self._masks(action_mask, batch)
        carried = {"obs": self._carried(obs, batch), MASK: masks}
        with self._in_evaluation_mode():
            return self._by_torch(carried, batch, state, deterministic, episode_start, reward)

    def _masks(self, action_mask: Any, batch: int | None) -> Any:
        """[B, width] one row for each observation."""
        own: Any = self._policy.observation_space
        seen: Any = without_previous(own)
        width: int = seen.spaces[MASK].shape[0]
        rows = [action_mask] if batch is None else list(action_mask)
        if batch is not None and len(rows) != batch:
            raise EnvDataError(
                f"predict: {len(rows)} action masks were given with {batch} observations. Give one "
                "for each."
            )
        masks = [flat_mask(row) for row in rows]
        for mask in masks:
            if mask.shape != (width,):
                raise EnvDataError(
                    f"predict: an action mask has {mask.size} entries, and the policy's actions "
                    f"have {width}. Give action_mask as the environment reports it, for each "
                    "observation one."
                )
        return np.stack(masks)

    @torch.inference_mode()
    def _by_torch(
        self,
        carried: Any,
        batch: int | None,
        state: Any,
        deterministic: bool,
        episode_start: Any,
        reward: Any,
    ) -> tuple[Any, Any]:
        num, policy = batch or 1, self._policy
        state = self._state(state, num, episode_start)
        if self._adds_previous:
            carried = self._with_previous(carried, state, num, reward)
        inner = {name: leaf for name, leaf in state.items() if name != _TAKEN}
        obs = to_tensor(carried, self._device)
        if num not in self._conditioning:
            found = policy.evaluation_conditioning(num)
            self._conditioning[num] = {n: leaf.to(self._device) for n, leaf in found.items()}
        conditioning = self._conditioning[num] or None
        act_greedily: Any = getattr(policy, "act_greedily", None)
        if deterministic and conditioning is None and act_greedily is not None:
            action, new_state = act_greedily(obs, inner)  # nothing but the action
        else:
            noise = None
            if not deterministic:
                noise = torch.from_numpy(policy.draw_noise(self._rng, num)).to(self._device)
            output = policy.act(obs, inner, noise, conditioning)
            action, new_state = output.action, output.state
        taken = policy.env_action(to_numpy(action))
        if self._adds_previous:
            new_state = {**new_state, _TAKEN: taken}
        codec = self._codecs.get(num)
        if codec is None:
            codec = self._codecs[num] = self._codec(num)
        native = (
            codec.only_row(taken)
            if batch is None
            else _as_tuples(self._action_space, codec.encode(taken))
        )
        return native, new_state or None

    def _state(self, state: Any, num: int, episode_start: Any) -> dict[str, Any]:
        """What precedes these observations: zeros at the start of an episode."""
        if state is None:
            fresh = self._policy.initial_state(num)
            return {name: leaf.to(self._device) for name, leaf in fresh.items()}
        names = self._state_names
        if not isinstance(state, Mapping) or not names <= state.keys():
            raise ConfigError(
                f"state is {type(state).__name__}, and not what predict gave. Give None at the "
                f"start of an episode, and then the second value that predict returned."
            )
        own = {name: state[name] for name in names}
        if any(len(leaf) != num for leaf in own.values()):
            raise ConfigError(
                f"state is not of {num} observations. Give None, or what predict gave for as many."
            )
        if episode_start is not None:
            begins = torch.as_tensor(np.asarray(episode_start, dtype=bool)).reshape(-1)
            if len(begins) != num:
                raise EnvDataError(
                    f"predict: episode_start has {len(begins)} values, and there are {num} "
                    f"observations. Give one for each."
                )
            own = reset_state(own, begins.to(self._device))
            state = {**state, "begins": begins.numpy()}
        extra = {name: state[name] for name in (_TAKEN, "begins") if name in state}
        return {**own, **extra}

    def _with_previous(
        self, carried: Any, state: dict[str, Any], num: int, reward: Any
    ) -> dict[str, Any]:
        """The observation with the action before and its reward, zeros where an episode begins."""
        columns = self._columns
        begins = state.pop("begins", None)
        previous = {
            ACTION: np.zeros((num, 0 if columns is None else columns.size), np.float32),
            REWARD: np.zeros((num, 1), np.float32),
        }
        if columns is not None and _TAKEN in state:
            columns.write(previous[ACTION], state[_TAKEN])
            if reward is None:
                raise ConfigError(
                    "this policy sees the reward of its action before. Give it: "
                    "predict(obs, state, reward=reward)."
                )
            given = np.asarray(reward, dtype=np.float32)
            previous[REWARD][:, 0] = np.sign(given) if self._clips_reward else given
            if begins is not None:
                for leaf in previous.values():
                    leaf[begins] = 0.0
        space: Any = self._policy.observation_space
        return joined(carried, previous, space)


def mask_in_info(seen: Any, own: Space[Any]) -> bool:
    """Whether the policy sees masks that the environment gives in info, not in its observations."""
    declared = isinstance(own, spaces.Dict) and MASK in own.spaces
    seen = without_previous(seen)
    return not declared and isinstance(seen, spaces.Dict) and set(seen.spaces) == {"obs", MASK}


def _batch_size(space: Space[Any], obs: Any) -> int | None:
    """The number of observations; None for one alone."""
    leaf, value = space, obs
    while isinstance(leaf, (spaces.Dict, spaces.Tuple)):
        key = next(iter(leaf.spaces)) if isinstance(leaf, spaces.Dict) else 0
        try:
            leaf, value = leaf.spaces[key], value[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError) as error:
            raise EnvDataError(
                f"predict: the observation has no part {key!r}. Give what the environment gives."
            ) from error
    if isinstance(value, Tensor):
        raise EnvDataError("predict takes NumPy arrays, and the observation is a tensor. Use act.")
    dims, shape = np.ndim(value), leaf.shape or ()
    if dims == len(shape):
        return None
    if dims == len(shape) + 1:
        if len(value) == 0:
            raise EnvDataError("predict: the batch is empty. Give at least one observation.")
        return len(value)
    raise EnvDataError(
        f"predict: the observation has shape {np.shape(value)}. Give one of shape {shape}, or a "
        f"batch of shape [B, {', '.join(map(str, shape))}]."
    )


def _as_tuples(space: Space[Any], action: Any) -> Any:
    """A batch of native actions in the space's own structure."""
    if isinstance(space, spaces.Dict):
        return {key: _as_tuples(sub, action[str(key)]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_tuples(sub, action[str(n)]) for n, sub in enumerate(space.spaces))
    return action


def serve(
    policy: Policy,
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    clips_reward: bool = False,
    seed: int | None = None,
) -> None:
    """Let `policy.predict` answer in these spaces; what it needs is made when it is first called.

    Args:
        policy: of a run.
        observation_space: of one environment, as that one has it.
        action_space: likewise.
        clips_reward: see `Predictor`.
        seed: likewise.
    """
    kind = functools.partial(Predictor, clips_reward=clips_reward, seed=seed)
    policy.served = (kind, observation_space, action_space)
