"""The physics step by step against Gymnasium, from the same states with the same actions.

Gymnasium computes in float64 and ours in float32, so each step starts from our state and may
differ by roundings only. An end is compared where the original is not within a rounding of
the limit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from redline.envs.games.game import Game, pick_state
from redline.envs.games.native import make_game

B, STEPS = 8, 400
# Name of our state's parts in the order of the original's state; and the absolute tolerance,
# some float32 roundings of the largest number in a step.
CASES: dict[str, tuple[tuple[str, ...], float]] = {
    "redline/CartPole-v1": (("x", "x_velocity", "angle", "angle_velocity"), 2e-6),
    "redline/Acrobot-v1": (("angle_1", "angle_2", "velocity_1", "velocity_2"), 3e-5),
    "redline/MountainCar-v0": (("position", "velocity"), 5e-7),
    "redline/MountainCarContinuous-v0": (("position", "velocity"), 5e-7),
    "redline/Pendulum-v1": (("angle", "velocity"), 1e-5),
}


def margin(env_id: str, env: Any) -> float:
    """How far the original is from the limit that ends an episode."""
    s = np.asarray(env.state, np.float64)
    if "CartPole" in env_id:
        return min(abs(abs(s[0]) - 2.4), abs(abs(s[2]) - env.theta_threshold_radians))
    if "Acrobot" in env_id:
        return abs(-np.cos(s[0]) - np.cos(s[0] + s[1]) - 1.0)
    if "MountainCar" in env_id:
        return abs(s[0] - env.goal_position)
    return np.inf


def spread(game: Game, state: dict[str, torch.Tensor], rng: np.random.Generator) -> Any:
    """States all over the space instead of those that random play sees."""
    low, high = game.observation_space.low, game.observation_space.high
    if "Acrobot" in game.env_id:
        low = np.array([-np.pi, -np.pi, low[4], low[5]])
        high = -low
    elif "Pendulum" in game.env_id:
        low, high = np.array([-20.0, -8.0]), np.array([20.0, 8.0])
    low, high = np.maximum(low, -5.0), np.minimum(high, 20.0)
    return {
        name: torch.from_numpy(rng.uniform(low[k], high[k], B).astype(np.float32))
        for k, name in enumerate(state)
    }


@pytest.mark.parametrize("env_id", CASES)
def test_each_step_equals_gymnasiums(env_id: str) -> None:
    names, tolerance = CASES[env_id]
    game = make_game(env_id, "cpu", {})
    originals = [gymnasium.make(env_id.removeprefix("redline/")).unwrapped for _ in range(B)]
    rng = np.random.default_rng(0)

    def begin() -> dict[str, torch.Tensor]:
        return game.reset(torch.from_numpy(rng.random((game.reset_draws, B), np.float32)))

    game.action_space.seed(0)
    state, ends, compared = begin(), 0, 0
    assert set(names) == set(state)
    for env in originals:
        env.reset(seed=0)
    for t in range(STEPS):
        if t % 5 == 4:
            state = spread(game, {name: state[name] for name in names}, rng)
        for i, env in enumerate(originals):
            env.state = np.array([float(state[name][i]) for name in names])
            if "CartPole" in env_id:
                env.steps_beyond_terminated = None  # type: ignore[attr-defined]
        actions = np.stack([game.action_space.sample() for _ in range(B)])
        state, reward, terminated = game.step(state, torch.from_numpy(actions), torch.empty(0, B))
        theirs = [env.step(action) for env, action in zip(originals, actions, strict=True)]
        obs = game.observe(state)
        assert (obs.dtype, reward.dtype) == (torch.float32, torch.float32)
        for i, (their_obs, their_reward, their_end, _, _) in enumerate(theirs):
            scale = max(1.0, float(np.abs(their_obs).max()))
            np.testing.assert_allclose(obs[i], their_obs, rtol=0, atol=tolerance * scale)
            if margin(env_id, originals[i]) > 10 * tolerance * scale:
                compared += 1
                assert bool(terminated[i]) == their_end
                np.testing.assert_allclose(float(reward[i]), their_reward, rtol=2e-6, atol=1e-6)
        ends += int(terminated.sum())
        state = pick_state(terminated, begin(), state)
    assert compared > 0.99 * B * STEPS
    assert ends > 20 or env_id == "redline/Pendulum-v1"


@pytest.mark.parametrize("env_id", CASES)
def test_spaces_and_time_limits_are_gymnasiums(env_id: str) -> None:
    original = gymnasium.make(env_id.removeprefix("redline/"))
    game = make_game(env_id, "cpu", {})
    assert game.observation_space == original.observation_space
    assert game.action_space == original.action_space
    assert original.spec is not None
    assert game.max_episode_steps == original.spec.max_episode_steps


@pytest.mark.parametrize("env_id", CASES)
def test_beginnings_span_the_originals_range(env_id: str) -> None:
    """The ends of the range are what draws of 0 and almost 1 give."""
    game = make_game(env_id, "cpu", {})
    draws = torch.tensor([0.0, 1 - 2**-24]).expand(game.reset_draws, 2)
    got = {name: leaf.tolist() for name, leaf in game.reset(draws).items()}
    expected = {
        "redline/CartPole-v1": dict.fromkeys(CASES[env_id][0], (-0.05, 0.05)),
        "redline/Acrobot-v1": dict.fromkeys(CASES[env_id][0], (-0.1, 0.1)),
        "redline/MountainCar-v0": {"position": (-0.6, -0.4), "velocity": (0, 0)},
        "redline/MountainCarContinuous-v0": {"position": (-0.6, -0.4), "velocity": (0, 0)},
        "redline/Pendulum-v1": {"angle": (-np.pi, np.pi), "velocity": (-1, 1)},
    }[env_id]
    for name, ends in expected.items():
        assert got[name] == pytest.approx(ends, abs=1e-6)


def test_arguments_of_the_originals() -> None:
    """A pendulum without gravity at angle pi / 2: only the torque of 2 turns it, by 3 * 2 * dt."""
    game = make_game("redline/Pendulum-v1", "cpu", {"g": 0.0})
    state = {"angle": torch.tensor([1.5]), "velocity": torch.tensor([0.0])}
    after, _, _ = game.step(state, torch.tensor([[2.0]]), torch.empty(0, 1))
    assert after["velocity"].tolist() == pytest.approx([0.3])
    car = make_game("redline/MountainCar-v0", "cpu", {"goal_velocity": 0.05})
    state = {"position": torch.tensor([0.499, 0.48]), "velocity": torch.tensor([0.02, 0.06])}
    _, _, reached = car.step(state, torch.tensor([1, 1]), torch.empty(0, 2))
    assert reached.tolist() == [False, True]
