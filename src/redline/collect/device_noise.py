"""Action noise for environments on a device: one stream per environment, from either side."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from redline.envs.games.randomness import (
    draw_words,
    open_uniforms,
    stream_keys,
    word_offsets,
)
from redline.errors import EnvError
from redline.policies.policy import Policy

NoiseSource: TypeAlias = Literal["device", "host"]
"""`device`: counted, drawn where the policy acts. `host`: the numpy streams of the other
collectors, drawn on the CPU and copied once per rollout."""
HOST_STREAM = 1  # keeps the action noise apart from the environments' own seeds
_DEVICE_STREAM = 1


class DeviceNoise:
    """[B, noise_size] per step, drawn by counting on the device.

    What environment i is given depends on (seed, i) and how many steps came before.

    Args:
        policy: says what its noise is.
        num_envs: B.
        rollout_length: T.
        seed: of the run.
        first_env_id: number of the first environment in the whole run.
        device: where the policy acts.
    """

    def __init__(
        self,
        policy: Policy,
        num_envs: int,
        rollout_length: int,
        seed: int,
        first_env_id: int,
        device: torch.device,
    ) -> None:
        self._policy, self._length = policy, rollout_length
        self._words_per_step = -(-policy.noise_size // 2)
        self._key = stream_keys(seed, first_env_id, num_envs, device, stream=_DEVICE_STREAM)
        self._position = torch.zeros_like(self._key)
        self._offsets = word_offsets(rollout_length * self._words_per_step, device)

    def draw(self) -> Tensor:
        """[T, B, noise_size] float32, the next of each stream."""
        count = self._length * self._words_per_step
        words = draw_words(self._key, self._position, count, self._offsets)
        self._position = self._position + count
        uniform = open_uniforms(words.unflatten(0, (self._length, self._words_per_step)))
        uniform = uniform[:, : self._policy.noise_size].transpose(1, 2).contiguous()
        return self._policy.noise_from_uniform(uniform)

    def state_dict(self) -> dict[str, Any]:
        """How far each stream is."""
        return {"source": "device", "position": self._position.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        _require_source(state, "device")
        self._position = state["position"].to(self._key.device)


class HostNoise:
    """The same from the numpy generators that other collectors have; arguments as there."""

    def __init__(
        self,
        policy: Policy,
        num_envs: int,
        rollout_length: int,
        seed: int,
        first_env_id: int,
        device: torch.device,
    ) -> None:
        self._policy, self._length, self._device = policy, rollout_length, device
        self._rngs = [
            np.random.default_rng(np.random.SeedSequence([seed, HOST_STREAM, first_env_id + i]))
            for i in range(num_envs)
        ]

    def draw(self) -> Tensor:
        """[T, B, noise_size] float32, the next of each stream."""
        streams = [self._policy.draw_noise(rng, self._length) for rng in self._rngs]
        return torch.from_numpy(np.stack(streams, axis=1)).to(self._device)

    def state_dict(self) -> dict[str, Any]:
        """The generators."""
        return {"source": "host", "rngs": [rng.bit_generator.state for rng in self._rngs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        _require_source(state, "host")
        for rng, saved in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = saved


def _require_source(state: dict[str, Any], mine: str) -> None:
    if state.get("source") != mine:
        raise EnvError(
            f"the saved action noise comes from the {state.get('source')!r}, this collector draws "
            f"it on the {mine!r}. Resume with the collector of the saved run."
        )
