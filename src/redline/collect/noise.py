"""Action noise: one stream per environment, drawn on the host or on a device.

Environment i is given the same numbers whatever runs beside it: its stream depends on the
run's seed, on i, and on how many steps came before.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.envs.games.randomness import (
    draw_words,
    open_uniforms,
    stream_keys,
    word_offsets,
)
from redline.errors import EnvError
from redline.policies.policy import Policy

NoiseSource: TypeAlias = Literal["device", "host"]
"""`device`: counter-based, drawn where the policy acts. `host`: the numpy generators of the
other collectors, drawn on the CPU and copied once per rollout."""
_STREAM = 1  # keeps the action noise apart from the environments' own seeds
_MIN_ROWS = 64  # rows of noise drawn at once where rollouts are shorter


class HostNoise:
    """[T, B, noise_size] arrays from one numpy generator per environment.

    Short rollouts share a draw: calling a generator costs more than what it draws. A
    checkpoint therefore keeps the generators as they were before the last draw, and how many
    of its rows have been used.

    Args:
        policy: says what its noise is.
        num_envs: B.
        rollout_length: T.
        seed: of the run.
        first_env_id: number of the first environment in the whole run.
    """

    def __init__(
        self, policy: Policy, num_envs: int, rollout_length: int, seed: int, first_env_id: int
    ) -> None:
        self._policy, self._length = policy, rollout_length
        self._rngs = [
            np.random.default_rng(np.random.SeedSequence([seed, _STREAM, first_env_id + i]))
            for i in range(num_envs)
        ]
        self._before_draw = [rng.bit_generator.state for rng in self._rngs]
        self._drawn, self._used = np.empty((0, num_envs, 0), np.float32), 0

    def draw(self) -> Array:
        """[T, B, noise_size] float32, the next rows of each stream."""
        if self._used + self._length > len(self._drawn):
            self._draw_rows(max(self._length, _MIN_ROWS // self._length * self._length))
        start, self._used = self._used, self._used + self._length
        return self._drawn[start : self._used]

    def _draw_rows(self, rows: int) -> None:
        self._before_draw = [rng.bit_generator.state for rng in self._rngs]
        streams = [self._policy.draw_noise(rng, rows) for rng in self._rngs]
        self._drawn, self._used = np.stack(streams, axis=1), 0

    def state_dict(self) -> dict[str, Any]:
        """The generators before the last draw, its rows, and how many of them are used."""
        return {
            "noise": self._before_draw,
            "noise_rows": len(self._drawn),
            "noise_used": self._used,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; `state` may hold more than the noise.

        Raises:
            EnvError: if the saved noise was drawn on a device.
        """
        generators = state["noise"]
        if isinstance(generators, dict):
            _require_source(generators.get("source"), "host")
            generators = generators["rngs"]  # as device collectors once saved them
        for rng, saved in zip(self._rngs, generators, strict=True):
            rng.bit_generator.state = saved
        if "noise_rows" in state:
            self._draw_rows(state["noise_rows"])
            self._used = state["noise_used"]
        else:
            self._before_draw = generators
            self._drawn, self._used = self._drawn[:0], 0


class DeviceNoise:
    """[T, B, noise_size] tensors, drawn on the device by a counter-based generator.

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
        self._key = stream_keys(seed, first_env_id, num_envs, device, stream=_STREAM)
        self._position = torch.zeros_like(self._key)
        self._offsets = word_offsets(rollout_length * self._words_per_step, device)

    def draw(self) -> Tensor:
        """[T, B, noise_size] float32, the next rows of each stream."""
        count = self._length * self._words_per_step
        words = draw_words(self._key, self._position, count, self._offsets)
        self._position = self._position + count
        uniform = open_uniforms(words.unflatten(0, (self._length, self._words_per_step)))
        uniform = uniform[:, : self._policy.noise_size].transpose(1, 2).contiguous()
        return self._policy.noise_from_uniform(uniform)

    def state_dict(self) -> dict[str, Any]:
        """How far each stream is."""
        return {"noise": {"source": "device", "position": self._position.cpu()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; `state` may hold more than the noise.

        Raises:
            EnvError: if the saved noise was drawn on the host.
        """
        saved = state["noise"]
        _require_source(saved.get("source") if isinstance(saved, dict) else "host", "device")
        self._position = saved["position"].to(self._key.device)


def _require_source(saved: str | None, mine: str) -> None:
    if saved != mine:
        raise EnvError(
            f"the saved action noise comes from the {saved!r}, this collector draws it on the "
            f"{mine!r}. Resume with the collector of the saved run."
        )
