"""Time limit, autoreset, accounting, streams and saving of the native games."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

from redline import devices
from redline.devices import DeviceKind
from redline.envs import EnvSettings, make_device_vec, make_vec
from redline.envs.games.game import Game, GameState
from redline.envs.games.ids import GAMES, ORIGINALS
from redline.envs.games.native import NativeEnv, make_game
from redline.envs.games.randomness import draw_words, stream_keys, uniforms, word_offsets
from redline.errors import (
    ActionError,
    ConfigError,
    DeviceError,
    EnvDataError,
    EnvError,
    UnknownNameError,
)


class Counting(Game):
    """Begins at 10 * (first draw > 1/2); counts steps; action 1 ends, action 2 gives NaN."""

    env_id = "redline/CartPole-v1"
    max_episode_steps = 3
    reset_draws = 1
    step_draws = 1
    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, uniform: torch.Tensor) -> GameState:
        return {"count": 10.0 * (uniform[0] > 0.5)}

    def step(
        self, state: GameState, action: torch.Tensor, uniform: torch.Tensor
    ) -> tuple[GameState, torch.Tensor, torch.Tensor]:
        count = state["count"] + 1
        reward = torch.where(action == 2, torch.nan, 2 * count)
        return {"count": count}, reward.float(), action == 1

    def observe(self, state: GameState) -> torch.Tensor:
        return state["count"].unsqueeze(1).float()


def numbers(tensor: Any) -> list[float]:
    return tensor.flatten().tolist()


def test_ends_truncations_and_new_beginnings_by_hand() -> None:
    """Two environments; the first ends at its second step, the second is cut after three.

    The draws: word n of environment i gives the step's draw (upper bits) and the reset's.
    """
    env = NativeEnv(Counting(), 2)
    env.reset(5)
    keys = stream_keys(5, 0, 2, "cpu")

    def beginning(call: int) -> list[float]:
        position = torch.full((2,), call)  # one word per call
        draws = uniforms(draw_words(keys, position, 1, word_offsets(1, "cpu")))
        return (10.0 * (draws[1] > 0.5)).tolist()

    first = beginning(0)
    zero, one = torch.tensor([0, 0]), torch.tensor([1, 0])
    steps = [env.step(zero), env.step(one), env.step(zero), env.step(zero)]
    a, b = first
    second_a, second_b = beginning(2)[0], beginning(3)[1]
    assert numbers(steps[0].obs) == [a + 1, b + 1]
    assert numbers(steps[0].reward) == [2 * a + 2, 2 * b + 2]
    assert numbers(steps[1].obs) == [second_a, b + 2]
    assert numbers(steps[1].final_obs)[0] == a + 2
    assert numbers(steps[1].terminated) == [True, False]
    assert numbers(steps[1].episode_ended) == [True, False]
    assert numbers(steps[1].episode_length) == [2, 2]
    assert numbers(steps[1].episode_return) == [4 * a + 6, 4 * b + 6]
    assert numbers(steps[2].obs) == [second_a + 1, second_b]
    assert numbers(steps[2].final_obs)[1] == b + 3
    assert numbers(steps[2].truncated) == [False, True]
    assert numbers(steps[2].terminated) == [False, False]
    assert numbers(steps[2].episode_id) == [1, 0]
    assert numbers(steps[3].episode_id) == [1, 1]
    assert numbers(steps[3].episode_length) == [2, 1]
    assert all(step.valid.all() for step in steps)


def test_an_end_at_the_time_limit_is_both() -> None:
    """As Gymnasium's TimeLimit has it."""
    env = NativeEnv(Counting(), 1)
    env.reset(0)
    env.step(torch.tensor([0]))
    env.step(torch.tensor([0]))
    step = env.step(torch.tensor([1]))
    assert bool(step.terminated)
    assert bool(step.truncated)


def test_idle_environments_keep_everything() -> None:
    env = NativeEnv(Counting(), 2)
    env.reset(5)
    active = torch.tensor([True, False])
    before = env.step(torch.tensor([0, 0]))
    steps = [env.step(torch.tensor([1, 1]), active), env.step(torch.tensor([0, 7]), active)]
    for step in steps:
        assert numbers(step.valid) == [True, False]
        assert numbers(step.reward)[1] == 0
        assert not step.terminated[1]
        assert not step.episode_ended[1]
        assert torch.equal(step.obs[1], before.obs[1])  # type: ignore[index]
    env.raise_faults()  # what an idle one was told does not count
    after = env.step(torch.tensor([0, 0]))
    assert numbers(after.episode_length) == [2, 2]


@pytest.mark.parametrize("env_id", GAMES)
def test_a_stream_depends_on_seed_and_index_alone(env_id: str) -> None:
    """Environments 2 and 3 of five are those of a batch that begins with number 2."""
    rng = np.random.default_rng(0)
    whole, part = device_env(env_id, 5), device_env(env_id, 2, first_env_id=2)
    with whole, part:
        obs = whole.reset(9)
        assert torch.equal(obs[2:4], part.reset(9))
        for _ in range(120):
            action = sample(whole.action_space, 5, rng)
            one, two = whole.step(action), part.step(action[2:4])
            for name in ("obs", "reward", "terminated", "truncated", "episode_return"):
                assert torch.equal(getattr(one, name)[2:4], getattr(two, name)), name


def device_env(env_id: str, num_envs: int, **settings: Any) -> Any:
    return make_device_vec(env_id, num_envs, device="cpu", **settings)


def sample(space: spaces.Space[Any], num_envs: int, rng: np.random.Generator) -> torch.Tensor:
    if isinstance(space, spaces.Discrete):
        return torch.from_numpy(rng.integers(int(space.n), size=num_envs))
    low, high = space.low, space.high  # type: ignore[attr-defined]
    return torch.from_numpy(rng.uniform(low, high, (num_envs, 1)).astype(np.float32))


@pytest.mark.parametrize("env_id", GAMES)
def test_a_saved_state_goes_on_bit_for_bit(env_id: str) -> None:
    rng = np.random.default_rng(1)
    env, other = device_env(env_id, 3), device_env(env_id, 3)
    env.reset(4)
    for _ in range(60):
        last = env.step(sample(env.action_space, 3, rng)).obs
    saved = env.state_dict()
    assert torch.equal(other.load_state_dict(saved), last)
    for _ in range(60):
        action = sample(env.action_space, 3, rng)
        for one, two in zip(env.step(action), other.step(action), strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("env_id", ["redline/CartPole-v1", "redline/Seaquest-v1"])
def test_the_numpy_view_shows_the_same(env_id: str) -> None:
    """What `make_vec` gives equals the tensors, its episode records included."""
    rng = np.random.default_rng(2)
    with make_vec(env_id, 4) as view, device_env(env_id, 4) as env:
        assert view.backend == env.backend == "device"
        assert view.restorable is None
        np.testing.assert_array_equal(view.reset(3), env.reset(3))
        records, ended = [], []
        for t in range(200):
            action = sample(env.action_space, 4, rng)
            active = torch.tensor([True, True, True, t % 3 > 0]) if t % 2 else None
            mine = env.step(action, active)
            theirs = view.step(action.numpy(), None if active is None else active.numpy())
            np.testing.assert_array_equal(theirs.obs, mine.obs)  # type: ignore[arg-type]
            for name in ("reward", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(theirs, name), getattr(mine, name))
            if theirs.final_obs is not None:
                np.testing.assert_array_equal(
                    theirs.final_obs[mine.episode_ended],  # type: ignore[index]
                    mine.final_obs[mine.episode_ended],  # type: ignore[index]
                )
            records += [(r.env_id, r.episode_id, r.return_, r.length) for r in theirs.episodes]
            ended += [
                (i, int(mine.episode_id[i]), float(mine.episode_return[i]),
                 int(mine.episode_length[i]))
                for i in mine.episode_ended.nonzero().flatten().tolist()
            ]  # fmt: skip
        assert records == ended
        assert len(records) > 3
        saved = view.state_dict()
        np.testing.assert_array_equal(view.load_state_dict(saved), mine.obs)  # type: ignore[arg-type]


WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "lift_fresh")


class NoWaiting(TorchDispatchMode):
    """Refuses what would wait for a device, or whose result's shape depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        kwargs = kwargs or {}
        moves = name == "_to_copy" and kwargs.get("device") is not None
        if name in WAITING or moves:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **kwargs)


@pytest.mark.parametrize("env_id", GAMES)
def test_a_step_never_waits_for_the_device(env_id: str) -> None:
    """No value is read, no shape depends on values, and nothing is made from Python data."""
    env = device_env(env_id, 3)
    env.reset(0)
    action = sample(env.action_space, 3, np.random.default_rng(0))
    active = torch.tensor([True, False, True])
    with NoWaiting():
        env.step(action)
        env.step(action, active)


@pytest.mark.parametrize("env_id", ["redline/CartPole-v1", "redline/Seaquest-v1"])
def test_a_step_is_one_graph(env_id: str) -> None:
    """`torch.compile` finds no reason to break it, and the traced step gives the same."""
    torch._dynamo.reset()
    env, traced = device_env(env_id, 3), device_env(env_id, 3)
    env.reset(1)
    traced.reset(1)
    advance = torch.compile(traced.advance, fullgraph=True, backend="eager")
    rng = np.random.default_rng(3)
    carry = traced._carry
    for _ in range(20):
        action = sample(env.action_space, 3, rng)
        expected = env.step(action)
        carry, step = advance(carry, action)
        for one, two in zip(expected, step, strict=True):
            torch.testing.assert_close(two, one)  # a traced step may round in another way


def test_actions_outside_the_space_are_found_at_the_next_look() -> None:
    env = device_env("redline/CartPole-v1", 3)
    env.reset(0)
    env.step(torch.tensor([0, 1, 2]))
    with pytest.raises(ActionError, match=r"environment 2: an action lay outside Discrete\(2\)"):
        env.raise_faults()
    env.raise_faults()  # it was said once
    pendulum = device_env("redline/Pendulum-v1", 2, first_env_id=6)
    pendulum.reset(0)
    pendulum.step(torch.tensor([[0.0], [torch.nan]]))
    with pytest.raises(ActionError, match=r"environment 7: an action lay outside Box"):
        pendulum.raise_faults()


def test_a_reward_of_nan_is_found_at_the_next_look() -> None:
    env = NativeEnv(Counting(), 2)
    env.reset(0)
    env.step(torch.tensor([0, 2]))
    with pytest.raises(EnvDataError, match="environment 1: a reward was NaN or infinite"):
        env.raise_faults()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(3), r"must be torch.int64 of shape \(2,\).*got torch.float32 of shape \(3,\)"),
        (torch.zeros(2), "got torch.float32"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "action is on meta, .* on cpu"),
    ],
)
def test_misfitting_actions_are_refused_at_once(action: torch.Tensor, message: str) -> None:
    env = device_env("redline/CartPole-v1", 2)
    env.reset(0)
    with pytest.raises(ActionError, match=message):
        env.step(action)


def test_what_does_not_fit_is_refused() -> None:
    env = device_env("redline/CartPole-v1", 2)
    with pytest.raises(ConfigError, match=r"before reset\(\)"):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(EnvError, match=r"no state to save before reset\(\)"):
        env.state_dict()
    env.reset(0)
    with pytest.raises(EnvError, match=r"'key' in the saved state is torch.int64 of \(2,\)"):
        device_env("redline/CartPole-v1", 3).load_state_dict(env.state_dict())
    with pytest.raises(EnvError, match="env_id 'redline/CartPole-v1', this one has"):
        device_env("redline/Acrobot-v1", 2).load_state_dict(env.state_dict())
    with pytest.raises(DeviceError, match="'cuda:99' cannot be used"):
        make_device_vec("redline/CartPole-v1", 1, device="cuda:99")
    with pytest.raises(ConfigError, match="num_envs=0; at least one"):
        device_env("redline/CartPole-v1", 0)
    with pytest.raises(UnknownNameError, match="no native game 'redline/Pong-v1'"):
        make_game("redline/Pong-v1", "cpu", {})
    with pytest.raises(ConfigError, match=r"do not fit redline/Breakout-v1"):
        make_game("redline/Breakout-v1", "cpu", {"sticky_action_prob": "often"})


def test_which_back_end_steps_which_id() -> None:
    assert EnvSettings(env="redline/CartPole-v1").backend == "device"
    assert EnvSettings(env="redline/TMaze-v1").backend == "gymnasium"
    with pytest.raises(ConfigError, match=r"Leave it at 'auto', or give 'MinAtar/Breakout-v1'"):
        EnvSettings(env="redline/Breakout-v1", backend="processes")
    with pytest.raises(ConfigError, match=r"not CartPole-v1. Give 'redline/CartPole-v1'"):
        EnvSettings(env="CartPole-v1", backend="device")
    with pytest.raises(ConfigError, match=r"Its original is 'CartPole-v1'"):
        EnvSettings(env="redline/CartPole-v1").single()
    with pytest.raises(UnknownNameError, match="redline/CartPole-v1"):
        EnvSettings(env="redline/CartPol-v1").make(1)


def test_the_originals_are_there() -> None:
    for env_id, original in ORIGINALS.items():
        with make_vec(original, 1) as one, make_vec(env_id, 1) as ours:
            assert ours.observation_space == one.observation_space
            assert ours.action_space == one.action_space


def test_clipped_rewards_leave_the_score_alone() -> None:
    env = device_env("redline/Pendulum-v1", 2, clip_reward=True)
    env.reset(0)
    first = env.step(torch.zeros(2, 1))
    assert numbers(first.reward) == [-1.0, -1.0]
    assert (first.episode_return != -1.0).all()


def test_an_episode_given_up_by_a_reset_keeps_its_number() -> None:
    env = device_env("redline/CartPole-v1", 2)
    env.reset(0)
    env.step(torch.zeros(2, dtype=torch.int64))
    env.reset()
    assert numbers(env.step(torch.zeros(2, dtype=torch.int64)).episode_id) == [1, 1]
    env.reset(0)
    assert numbers(env.step(torch.zeros(2, dtype=torch.int64)).episode_id) == [0, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("env_id", GAMES)
def test_a_gpu_gives_the_same_games(env_id: str) -> None:
    """Exactly where the state is whole numbers; physics to float tolerance, step by step."""
    env, gpu = device_env(env_id, 16), make_device_vec(env_id, 16, device="cuda")
    rng = np.random.default_rng(0)
    torch.testing.assert_close(gpu.reset(0).cpu(), env.reset(0))  # type: ignore[union-attr]
    for _ in range(200):
        gpu.load_state_dict(env.state_dict())
        action = sample(env.action_space, 16, rng)
        for one, two in zip(env.step(action), gpu.step(action.cuda()), strict=True):
            torch.testing.assert_close(two.cpu(), one, rtol=1e-4, atol=1e-4)


def test_a_device_without_doubles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS is one: what sums returns there was a TypeError of torch."""

    class WithoutDoubles(DeviceKind):
        has_float64 = False

    monkeypatch.setitem(devices._KINDS, "meta", WithoutDoubles())
    for env_id in ("redline/CartPole-v1", "CartPole-v1"):
        with pytest.raises(DeviceError, match=r"'meta'.*float64.*Use --env-device cpu"):
            make_device_vec(env_id, 1, device="meta")
