"""Colored action noise: its spectrum by hand and by measuring, its streams, its states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.algos.a2c import A2C
from redline.algos.appo import APPO
from redline.algos.impala import Impala
from redline.algos.ppo import PPO
from redline.algos.reinforce import Reinforce
from redline.algos.sac import SAC, SACConfig
from redline.algos.td3 import TD3, TD3Config
from redline.collect.noise import DeviceNoise, HostNoise, colored, spectrum_scale
from redline.errors import ConfigError, CorruptCheckpointError
from redline.policies import Policy, SkillPolicy

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (2,), np.float32)
CPU = torch.device("cpu")


def policy(color: float) -> Policy:
    return TD3.make_policy(OBS, ACTION, TD3Config(noise_color=color), hidden_sizes=(4,))


def stream(color: float, length: int = 1, num_envs: int = 1, first: int = 0) -> HostNoise:
    return HostNoise(policy(color), num_envs, length, 7, first)


def device_stream(color: float, length: int = 1) -> DeviceNoise:
    return DeviceNoise(policy(color), 2, length, 7, 0, CPU)


def long_draw(noise: Any, rows: int) -> np.ndarray:
    """[rows, B, k] from as many draws as that takes."""
    first = torch.as_tensor(noise.draw()).clone()
    others = [torch.as_tensor(noise.draw()).clone() for _ in range(-(-rows // len(first)) - 1)]
    return torch.cat([first, *others])[:rows].numpy()


def test_the_spectrum_of_four_steps_by_hand() -> None:
    """Frequencies 0, 1/4, 1/2 per step; the first counts as the second.

    Red noise (2) has amplitudes f^-1 = 4, 4, 2. The four coefficients are 4, 4, 2 and the
    mirror image of the second, 4: their mean square is (16 + 16 + 4 + 16) / 4 = 13.
    """
    expected = np.array([4.0, 4.0, 2.0]) / np.sqrt(13.0)

    np.testing.assert_allclose(spectrum_scale(4, 2.0), expected, rtol=1e-12)


def test_the_spectrum_of_five_steps_by_hand() -> None:
    """Frequencies 0, 1/5, 2/5, both of the latter twice; pink: f^-1/2, squares 5, 5, 5/2.

    Their mean square is (5 + 2 * 5 + 2 * 5/2) / 5 = 4.
    """
    expected = np.sqrt(np.array([5.0, 5.0, 2.5]) / 4.0)

    np.testing.assert_allclose(spectrum_scale(5, 1.0), expected, rtol=1e-12)


@pytest.mark.parametrize("color", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("on_device", [False, True])
def test_the_power_falls_with_frequency_as_the_color_says(color: float, on_device: bool) -> None:
    """A line through log power over log frequency has the slope -color.

    400 blocks of two numbers: the mean power of a frequency is known to 1 / sqrt(800), 4%; over
    511 frequencies the slope is known to about 0.002.
    """
    make: Any = device_stream if on_device else stream
    noise = make(color, length=256) if on_device else make(color, length=256, num_envs=2)
    blocks = long_draw(noise, 200 * 1024).reshape(200, 1024, 4)
    power = (np.abs(np.fft.rfft(blocks, axis=1)) ** 2).mean(axis=(0, 2))[1:-1]
    frequency = np.fft.rfftfreq(1024)[1:-1]

    slope = np.polyfit(np.log(frequency), np.log(power), 1)[0]

    assert slope == pytest.approx(-color, abs=0.02)


def test_each_number_is_standard_normal_and_neighbors_are_alike() -> None:
    """For white noise the correlation with the step before is 0, for red noise nearly 1."""
    correlations = []
    for color in (0.0, 1.0, 2.0):
        blocks = np.stack(
            [
                colored(np.random.default_rng(i).standard_normal((1024, 1), np.float32), color)
                for i in range(2_000)
            ]
        )[:, :, 0]
        one = blocks[:, 500]  # 2,000 independent numbers: one of each block
        assert one.mean() == pytest.approx(0.0, abs=0.1)
        assert one.std() == pytest.approx(1.0, abs=0.07)
        # A share of 0.68 of a normal distribution lies within one deviation.
        assert (np.abs(one) < 1).mean() == pytest.approx(0.683, abs=0.04)
        correlations.append((blocks[:, 1:] * blocks[:, :-1]).mean())
    assert correlations[0] == pytest.approx(0.0, abs=0.01)
    assert 0.5 < correlations[1] < correlations[2]
    assert correlations[2] > 0.98


def test_white_noise_is_what_the_policy_draws() -> None:
    """As before there was a color: 64 rows of each stream at once."""
    white = policy(0.0)
    rng = np.random.default_rng(np.random.SeedSequence([7, 1, 0]))

    np.testing.assert_array_equal(
        long_draw(HostNoise(white, 1, 4, 7, 0), 64)[:, 0], white.draw_noise(rng, 64)
    )


def test_an_environment_has_the_same_noise_wherever_it_runs() -> None:
    """Four environments in one process, or two and two."""
    together = long_draw(stream(1.0, length=8, num_envs=4), 3_000)
    first = long_draw(stream(1.0, length=8, num_envs=2), 3_000)
    second = long_draw(stream(1.0, length=8, num_envs=2, first=2), 3_000)

    np.testing.assert_array_equal(together, np.concatenate([first, second], axis=1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("length", [1, 100, 2_000])
@pytest.mark.parametrize("make", [stream, device_stream], ids=["host", "device"])
def test_a_restored_stream_goes_on_to_the_bit(make: Any, length: int) -> None:
    """From the middle of a block and over its end."""
    noise = make(1.0, length=length)
    long_draw(noise, 700)
    saved = noise.state_dict()
    expected = long_draw(noise, 4_000)
    other = make(1.0, length=length)
    long_draw(other, 50)
    other.load_state_dict(saved)

    np.testing.assert_array_equal(long_draw(other, 4_000), expected)


@pytest.mark.parametrize("color", [0.0, 1.0])
@pytest.mark.parametrize("make", [stream, device_stream], ids=["host", "device"])
def test_a_stream_is_saved_before_its_first_draw(make: Any, color: float) -> None:
    """Of colored noise there was no block of 0 rows to draw again."""
    noise, other = make(color), make(color)
    long_draw(other, 50)
    other.load_state_dict(noise.state_dict())
    np.testing.assert_array_equal(long_draw(other, 700), long_draw(noise, 700))


@pytest.mark.parametrize("make", [stream, device_stream])
@pytest.mark.parametrize(("before", "after"), [(1.0, 0.0), (0.0, 1.0), (1.0, 2.0)])
def test_a_stream_goes_on_in_another_color(make: Any, before: float, after: float) -> None:
    """Rows of a device's white noise depend on their number alone: the fourth follows three."""
    saved = make(before)
    long_draw(saved, 3)
    changed, again = make(after), make(after)
    for each in (changed, again):
        each.load_state_dict(saved.state_dict())
    for_later = changed.state_dict()  # of a run that is stopped before it draws
    rows = long_draw(changed, 5)
    again.load_state_dict(for_later)
    np.testing.assert_array_equal(rows, long_draw(again, 5))
    if after == 0.0:
        np.testing.assert_array_equal(rows, long_draw(make(0.0), 8)[3:])


def test_skills_explore_in_the_color_of_the_policy_inside() -> None:
    assert SkillPolicy(policy(1.0), OBS, 4).noise_color == 1.0


def test_colors_that_there_are_not_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"noise_color=2\.5 must lie between 0 and 2"):
        SACConfig(noise_color=2.5)
    with pytest.raises(ConfigError, match="is for Box actions"):
        SAC.make_policy(OBS, spaces.Discrete(3), SACConfig(noise_color=1.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [("noise_rows", 10**12), ("noise_rows", -1), ("noise_rows", "7"), ("noise_used", 10**9),
     ("noise_used", -3), ("noise_used", True)],
)  # fmt: skip
def test_a_saved_count_that_no_run_has_is_refused(name: str, value: Any) -> None:
    """A stranger's 10**12 rows would have been drawn, in terabytes."""
    noise = HostNoise(policy(0.0), 2, 8, seed=1, first_env_id=0)
    noise.draw()
    with pytest.raises(CorruptCheckpointError, match=name):
        noise.load_state_dict({**noise.state_dict(), name: value})


@pytest.mark.parametrize("algorithm", [PPO, A2C, Reinforce, APPO, Impala])
def test_on_policy_actors_explore_in_color_and_refuse_what_is_not_normal(algorithm: Any) -> None:
    made = algorithm.make_policy(OBS, ACTION, algorithm.Config(noise_color=0.5), hidden_sizes=(4,))
    assert made.noise_color == 0.5
    with pytest.raises(ConfigError, match=r"noise_color=0\.5 is for Box actions"):
        algorithm.make_policy(OBS, spaces.Discrete(3), algorithm.Config(noise_color=0.5))
    with pytest.raises(ConfigError, match=r"noise_color=-1 must lie between 0 and 2"):
        algorithm.Config(noise_color=-1)
