"""Action noise: one stream per environment, drawn on the host or on a device.

Environment i is given the same numbers whatever runs beside it: its stream depends on the
run's seed, on i, and on how many steps came before.

A policy may ask for noise that is correlated over time (`Policy.noise_color`; Eberhard et al.
2023, "Pink Noise Is All You Need: Colored Noise Exploration in Deep Reinforcement Learning").
White noise is then drawn for about 1,000 steps at once and given the wanted spectrum. Each number
is standard normal as before; what changes is how alike neighbors are. Such blocks are independent
of each other and of where episodes end.
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
from redline.errors import CorruptCheckpointError, EnvError
from redline.generator_states import set_numpy_state
from redline.policies.policy import Policy

NoiseSource: TypeAlias = Literal["device", "host"]
"""`device`: counter-based, drawn where the policy acts. `host`: the numpy generators of the
other collectors, drawn on the CPU and copied once per rollout."""
_STREAM = 1  # keeps the action noise apart from the environments' own seeds
_MIN_ROWS = 64  # rows of noise drawn at once where rollouts are shorter
_COLORED_ROWS = 1_024  # the same of colored noise: the longest period that it has
_MOST_ROWS = 16_384  # of a saved state whose run had longer rollouts


def spectrum_scale(rows: int, color: float) -> Array:
    """[rows // 2 + 1] factors of the Fourier coefficients of white noise that color it.

    Eberhard et al. 2023, section 2: a power spectral density proportional to f^-color, so
    amplitudes go with f^(-color / 2). The constant term, where that is infinite, gets the factor
    of the lowest frequency. The factors' mean square over all `rows` coefficients is 1, so the
    variance stays what it was (Parseval).

    Args:
        rows: n > 1 steps.
        color: exponent; 0 is white, 1 pink, 2 red.
    """
    frequency = np.fft.rfftfreq(rows)
    frequency[0] = frequency[1]
    scale = frequency ** (-color / 2)
    # Each coefficient but the constant and, for an even number, the last stands for two.
    twice = np.full(len(scale), 2.0)
    twice[0] = 1.0
    if rows % 2 == 0:
        twice[-1] = 1.0
    return scale / np.sqrt((twice * scale**2).sum() / rows)


def colored(white: Array, color: float) -> Array:
    """White noise with the power spectral density of another color.

    Args:
        white: [n, noise_size] standard normal.
        color: exponent of `spectrum_scale`.

    Returns:
        [n, noise_size] float32, each number standard normal.
    """
    rows = len(white)
    # In float64: numpy transforms float32 in float32, and rounding would whiten low frequencies.
    coefficients = np.fft.rfft(white.astype(np.float64), axis=0)
    coefficients *= spectrum_scale(rows, color)[:, None]
    return np.fft.irfft(coefficients, n=rows, axis=0).astype(np.float32)


def rows_at_once(rollout_length: int, color: float) -> int:
    """Rows of noise to draw together: whole rollouts, and as many as coloring needs."""
    wanted = _COLORED_ROWS if color else _MIN_ROWS
    return max(rollout_length, wanted // rollout_length * rollout_length)


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
            self._draw_rows(rows_at_once(self._length, self._policy.noise_color))
        start, self._used = self._used, self._used + self._length
        return self._drawn[start : self._used]

    def _draw_rows(self, rows: int) -> None:
        self._before_draw = [rng.bit_generator.state for rng in self._rngs]
        streams = [self._policy.draw_noise(rng, rows) for rng in self._rngs]
        if self._policy.noise_color:
            streams = [colored(stream, self._policy.noise_color) for stream in streams]
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
            CorruptCheckpointError: if it says that more was drawn than any run draws at once.
        """
        generators = state["noise"]
        if isinstance(generators, dict):
            _require_source(generators.get("source"), "host")
            generators = generators["rngs"]  # as device collectors once saved them
        for rng, saved in zip(self._rngs, generators, strict=True):
            set_numpy_state(rng, saved)
        if "noise_rows" in state:
            rows, used = state["noise_rows"], state["noise_used"]
            most = rows_at_once(self._length, self._policy.noise_color)
            _require_within("noise_rows", rows, max(most, _MOST_ROWS))
            _require_within("noise_used", used, rows)
            if rows:
                self._draw_rows(rows)
            else:  # saved before the first draw
                self._before_draw, self._drawn = generators, self._drawn[:0]
            self._used = used
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
        self._position = self._before_draw = torch.zeros_like(self._key)
        # White rows need not wait for others: a rollout's are drawn with it.
        color = policy.noise_color
        self._rows = rows_at_once(rollout_length, color) if color else rollout_length
        self._offsets = word_offsets(self._rows * self._words_per_step, device)
        self._scale = None
        if color:
            scale = torch.from_numpy(spectrum_scale(self._rows, color))
            self._scale = scale[:, None, None].to(device, torch.float32)
        self._drawn, self._used = torch.empty((0, num_envs, 0), device=device), 0

    def draw(self) -> Tensor:
        """[T, B, noise_size] float32, the next rows of each stream."""
        if self._used + self._length > len(self._drawn):
            self._draw_rows()
        start, self._used = self._used, self._used + self._length
        return self._drawn[start : self._used]

    def _draw_rows(self) -> None:
        self._before_draw = self._position
        count = self._rows * self._words_per_step
        words = draw_words(self._key, self._position, count, self._offsets)
        self._position = self._position + count
        uniform = open_uniforms(words.unflatten(0, (self._rows, self._words_per_step)))
        uniform = uniform[:, : self._policy.noise_size].transpose(1, 2).contiguous()
        noise = self._policy.noise_from_uniform(uniform)
        if self._scale is not None:
            coefficients = torch.fft.rfft(noise, dim=0) * self._scale
            noise = torch.fft.irfft(coefficients, n=self._rows, dim=0)
        self._drawn, self._used = noise, 0

    def state_dict(self) -> dict[str, Any]:
        """How far each stream is; of colored noise, where its block began and how far that is."""
        if self._scale is None:
            return {"noise": {"source": "device", "position": self._position.cpu()}}
        state = {"source": "device", "position": self._before_draw.cpu(), "used": self._used}
        return {"noise": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; `state` may hold more than the noise.

        Raises:
            EnvError: if the saved noise was drawn on the host.
            CorruptCheckpointError: if it says that more is used than any run draws at once.
        """
        saved = state["noise"]
        _require_source(saved.get("source") if isinstance(saved, dict) else "host", "device")
        self._position = self._before_draw = saved["position"].to(self._key.device)
        self._drawn, self._used = self._drawn[:0], 0
        used = saved.get("used")
        if not used:
            return
        _require_within("used", used, rows_at_once(self._length, 1.0))
        if self._scale is None:  # colored until now: white rows go on where that block was left
            self._position = self._position + used * self._words_per_step
            return
        self._draw_rows()
        self._used = used


def _require_within(name: str, value: Any, most: int) -> None:
    """Refuse a saved count that no run could have: it says how much is drawn and skipped."""
    if type(value) is not int or not 0 <= value <= most:
        raise CorruptCheckpointError(
            f"the saved action noise has {name}={value!r}, which must be from 0 to {most:,}: the "
            f"state was altered. Use an earlier checkpoint."
        )


def _require_source(saved: str | None, mine: str) -> None:
    if saved != mine:
        raise EnvError(
            f"the saved action noise comes from the {saved!r}, this collector draws it on the "
            f"{mine!r}. Resume with the collector of the saved run."
        )
