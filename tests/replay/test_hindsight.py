"""Replaced goals against a reference that walks along every episode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

import redline
from redline.data import Array, Rollout
from redline.envs.games.goal_tasks import BitFlipping, PointReach
from redline.errors import ConfigError
from redline.offline import RecordedEpisodes, as_rollouts
from redline.replay import ReplayConfig, ReplaySpec
from redline.replay.hindsight import (
    HindsightReplay,
    _of_each_row,
    goal_functions,
    require_own_rewards,
)
from tests.replay.streams import Stream

MEANT = -1.0  # the goal of every transition as it was collected
GAMMA = 0.9


class Pixels(gymnasium.Env[Any, Any]):
    """Its reward is 10 times the goal's first number, minus what was achieved."""

    def __init__(self) -> None:
        goal = spaces.Box(-1.0, 255.0, (4,), np.float32)
        self.observation_space = spaces.Dict({"achieved_goal": goal, "desired_goal": goal})

    def compute_reward(self, achieved: Array, desired: Array, info: Any) -> Array:
        return 10.0 * desired[:, 0] - achieved[:, 0]


class EndsAtGoal(Pixels):
    """An episode ends where the goal's first number is even."""

    def compute_terminated(self, achieved: Array, desired: Array, info: Any) -> Array:
        return desired[:, 0] % 2 == 0


def as_goal(frames: Any) -> Any:
    """[..., 4] float32 of observations [..., 1, 2, 2]."""
    return torch.as_tensor(np.asarray(frames)).flatten(-3).to(torch.float32)


def with_goals(rollout: Rollout) -> Rollout:
    """The same rows; what was seen is what was achieved."""

    def goals(obs: torch.Tensor, *batch: int) -> TensorDict:
        achieved = as_goal(obs)
        meant = torch.full_like(achieved, MEANT)
        return TensorDict({"achieved_goal": achieved, "desired_goal": meant}, list(batch))

    shape = rollout.rollout_length, rollout.num_envs
    steps = rollout.steps.clone()
    steps["obs"], steps["final_obs"] = (
        goals(steps["obs"], *shape),
        goals(steps["final_obs"], *shape),
    )
    return Rollout(steps=steps, initial_state={}, last_obs=goals(rollout.last_obs, shape[1]))


def make(first: Rollout, env: Any = None, **settings_: Any) -> HindsightReplay:
    share = settings_.pop("share", 0.8)
    config = ReplayConfig(gamma=GAMMA, **settings_)
    return HindsightReplay(config, ReplaySpec.from_rollout(first), env or Pixels(), share=share)


def possible_goals(stream: Stream, t: int, b: int) -> set[float]:
    """First numbers of what the rest of the episode of row (t, b) achieves."""
    found = set()
    while True:
        found.add(float(as_goal(stream.rows[t][b].successor)[0]))
        if not stream.continues(t, b):
            return found
        t += 1


@given(
    seed=st.integers(0, 2**20),
    num_envs=st.integers(1, 3),
    rows=st.integers(4, 12),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    end_rate=st.sampled_from([0.1, 0.5]),
    idle_rate=st.sampled_from([0.0, 0.2]),
    break_rate=st.sampled_from([0.0, 0.3]),
    late_reset=st.booleans(),
    draws_often=st.booleans(),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_goals_come_from_the_rest_of_the_episode(
    seed: int,
    num_envs: int,
    rows: int,
    lengths: list[int],
    end_rate: float,
    idle_rate: float,
    break_rate: float,
    late_reset: bool,
    draws_often: bool,
) -> None:
    stream = Stream(
        seed,
        num_envs,
        end_rate=end_rate,
        idle_rate=idle_rate,
        break_rate=break_rate,
        late_reset=late_reset,
    )
    first = with_goals(stream.rollout(lengths[0]))
    replay = make(first, capacity=rows * num_envs, share=0.5)
    replay.add(first)
    rng = np.random.default_rng(seed)
    for length in lengths[1:]:
        if draws_often and len(replay):
            replay.sample(2, rng)
        replay.add(with_goals(stream.rollout(length)))
    if not len(replay):
        return
    # So many that a share outside the bounds below is eight standard deviations away.
    batch = replay.sample(max(400, 40 * len(replay)), rng)
    seen: dict[int, set[float]] = {}
    meant = 0
    for i, index in enumerate(batch["index"].tolist()):
        t, b = divmod(index, num_envs)
        step = stream.rows[t][b]
        goal = float(batch["obs"]["desired_goal"][i, 0])
        assert torch.equal(batch["obs"]["desired_goal"][i], batch["next_obs"]["desired_goal"][i])
        assert torch.equal(batch["obs"]["achieved_goal"][i], as_goal(step.obs))
        achieved = batch["next_obs"]["achieved_goal"][i]
        assert torch.equal(achieved, as_goal(step.successor))
        assert batch["discount"][i] == pytest.approx(0.0 if step.terminated else GAMMA)
        if goal == MEANT:
            meant += 1
            assert batch["reward"][i] == pytest.approx(step.reward)
        else:
            seen.setdefault(index, set()).add(goal)
            assert batch["reward"][i] == pytest.approx(10.0 * goal - float(achieved[0]))
    assert 0.3 < meant / len(batch["index"]) < 0.7
    for index, goals in seen.items():
        assert goals <= possible_goals(stream, *divmod(index, num_envs))


def test_every_later_goal_is_equally_likely() -> None:
    """An episode of four rows: the first one's goals are each drawn with probability 1/4."""
    stream = Stream(3, 1, end_rate=0.0)
    first = with_goals(stream.rollout(4))
    replay = make(first, capacity=8, share=1.0)
    replay.add(first)
    batch = replay.sample(20_000, np.random.default_rng(0))
    goals = batch["obs"]["desired_goal"][batch["index"] == 0]
    _, counts = goals.unique(dim=0, return_counts=True)
    # Of some 5,000 draws; three standard deviations of a share of 1/4 are 0.018.
    assert counts.div(counts.sum()).tolist() == pytest.approx([0.25] * 4, abs=0.018)
    last = batch["obs"]["desired_goal"][batch["index"] == 3]
    assert len(last.unique(dim=0)) == 1


def test_the_end_at_a_goal_is_computed_again() -> None:
    stream = Stream(4, 1, end_rate=0.3)
    first = with_goals(stream.rollout(8))
    replay = make(first, EndsAtGoal(), capacity=8, share=1.0)
    replay.add(first)
    batch = replay.sample(200, np.random.default_rng(0))
    even = batch["obs"]["desired_goal"][:, 0] % 2 == 0
    assert torch.equal(batch["discount"], torch.where(even, 0.0, torch.tensor(GAMMA)))
    assert 0 < even.sum() < 200


def test_what_was_collected_stays_and_batches_can_be_drawn_into() -> None:
    stream = Stream(5, 2)
    first = with_goals(stream.rollout(6))
    replay = make(first, capacity=40, share=1.0)
    replay.add(first)
    drawn = replay.sample(32, np.random.default_rng(0))
    again = replay.sample(32, np.random.default_rng(0))
    into = replay.sample(32, np.random.default_rng(1))
    into = replay.sample(32, np.random.default_rng(0), out=into)
    for other in (again, into):
        assert all(torch.equal(drawn[k], other[k]) for k in ("index", "reward", "discount"))
        assert (drawn["obs"] == other["obs"]).all()
    plain = make(first, capacity=40, share=0.0)
    plain.add(first)
    assert (plain.sample(32, np.random.default_rng(0))["obs"]["desired_goal"] == MEANT).all()


def test_a_loaded_replay_draws_the_same(tmp_path: Path) -> None:
    stream = Stream(6, 2)
    first = with_goals(stream.rollout(5))
    replay = make(first, capacity=16)
    replay.add(first)
    for _ in range(4):  # the ring is written over
        replay.add(with_goals(stream.rollout(3)))
    replay.save(tmp_path)
    loaded = make(first, capacity=16)
    loaded.load(tmp_path)
    one, other = (each.sample(64, np.random.default_rng(2)) for each in (replay, loaded))
    assert torch.equal(one["reward"], other["reward"])
    assert (one["obs"] == other["obs"]).all()
    loaded.clear()
    assert len(loaded) == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"n_step": 3}, "n_step above 1"), ({"prioritized": True}, "prioritized")],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], named: str) -> None:
    first = with_goals(Stream(1, 1).rollout(2))
    with pytest.raises(ConfigError, match=named):
        make(first, capacity=64, **changes)


def test_goals_below_a_mask_or_in_a_dict_are_refused_for_what_they_are() -> None:
    """The reason given was that they are larger than 4096 bytes."""
    spec = ReplaySpec.from_rollout(with_goals(Stream(1, 1).rollout(2)))
    masked = replace(spec, obs={("obs", *path): leaf for path, leaf in spec.obs.items()})
    with pytest.raises(ConfigError, match=r"its parts are obs\.achieved_goal, obs\.desired_goal"):
        HindsightReplay(ReplayConfig(gamma=GAMMA, capacity=64), masked, Pixels())


class Rooms(gymnasium.Env[Any, Any]):
    """Rooms are numbered from 1, and looked up by their numbers."""

    prices = np.array([0.0, 1.0, 4.0, 9.0])

    def __init__(self) -> None:
        room = spaces.Discrete(4, start=1)
        self.observation_space = spaces.Dict({"achieved_goal": room, "desired_goal": room})

    def compute_reward(self, achieved: Array, desired: Array, info: Any) -> Array:
        return self.prices[desired - 1] + 100.0 * achieved


def test_goal_functions_are_given_the_numbers_of_the_environment() -> None:
    """Replay counts from 0: the prices of the rooms before were paid."""
    first = with_goals(Stream(1, 2).rollout(16))
    for part in (first.steps["obs"], first.steps["final_obs"], first.last_obs):
        for key, goals in part.items():
            part[key] = goals[..., 0].long() % 4
    replay = make(first, Rooms(), capacity=64, share=1.0)
    replay.add(first)
    batch = replay.sample(200, np.random.default_rng(0))
    goal, achieved = batch["obs"]["desired_goal"], batch["next_obs"]["achieved_goal"]
    assert set(goal.tolist()) <= {0, 1, 2, 3}
    paid = {0: 0.0, 1: 1.0, 2: 4.0, 3: 9.0}
    expected = [
        paid[g] + 100.0 * (a + 1) for g, a in zip(goal.tolist(), achieved.tolist(), strict=True)
    ]
    assert batch["reward"].tolist() == expected


def test_an_environment_without_goals_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"CartPoleEnv lacks .*'achieved_goal'.*compute_reward"):
        goal_functions(gymnasium.make("CartPole-v1"))
    assert goal_functions(BitFlipping())[1] is None


def test_the_goal_tasks_pay_as_they_say() -> None:
    bits = BitFlipping(3)
    obs, _ = bits.reset(seed=0)
    wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
    rewards = [bits.step(int(i))[1] for i in wrong]
    assert rewards == [-1.0] * (len(wrong) - 1) + [0.0]
    pairs = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]], np.float32)
    assert bits.compute_reward(pairs, pairs[::-1], {}).tolist() == [-1.0, -1.0]
    assert bits.compute_reward(pairs, pairs, {}).tolist() == [0.0, 0.0]

    point = PointReach()
    obs, _ = point.reset(seed=1)
    for _ in range(50):
        way = (obs["desired_goal"] - obs["achieved_goal"]) / 0.1
        obs, reward, terminated, truncated, info = point.step(np.clip(way, -1.0, 1.0))
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, False, True, True)
    place = np.array([0.3, 0.4], np.float32)
    near, far = place + np.float32(0.03), place + np.float32(0.04)
    rewards = point.compute_reward(np.stack([place, place]), np.stack([near, far]), {})
    assert rewards.tolist() == [0.0, -1.0]  # distances 0.042 and 0.057, of at most 0.05


def test_a_run_learns_from_other_goals_and_resumes(tmp_path: Path) -> None:
    settings_: dict[str, Any] = {
        "env": "redline/PointReach-v1",
        "replay": "her",
        "learning_starts": 100,
        "batch_size": 16,
        "replay_ratio": 4.0,
        "hidden_sizes": (16,),
        "seed": 3,
        "quiet": True,
        "num_threads": 1,
    }
    whole = redline.train("sac", total_env_steps=400, out=tmp_path / "whole", **settings_)
    half = redline.train("sac", total_env_steps=200, out=tmp_path / "half", **settings_)
    at_half = half.inspect()["params_sha256"]
    resumed = redline.train(resume=tmp_path / "half", total_env_steps=400, quiet=True)
    assert at_half != resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    with pytest.raises(ConfigError, match="needs a goal environment"):
        redline.train("sac", total_env_steps=400, **(settings_ | {"env": "Pendulum-v1"}))


class OneAtATime(Pixels):
    """Goal functions that take single goals alone: of a batch they would give one number."""

    def compute_reward(self, achieved: Array, desired: Array, info: Any) -> Any:
        return 10.0 * desired.reshape(-1)[0] - achieved.reshape(-1)[0]

    def compute_terminated(self, achieved: Array, desired: Array, info: Any) -> bool:
        return bool(desired.reshape(-1)[0] % 2 == 0)


def test_goal_functions_of_single_goals_are_called_row_by_row() -> None:
    class Batched(EndsAtGoal):
        """The same rewards and ends, for batches."""

    first = with_goals(Stream(7, 2, end_rate=0.3).rollout(8))
    drawn = []
    for env in (OneAtATime(), Batched()):
        replay = make(first, env, capacity=16, share=1.0)
        replay.add(first)
        drawn.append(replay.sample(64, np.random.default_rng(0)))
    for name in ("reward", "discount"):
        assert torch.equal(drawn[0][name], drawn[1][name])
    assert drawn[0]["reward"].unique().numel() > 2


@pytest.mark.parametrize("kind", ["raises", "one in a list"])
def test_goal_functions_that_fail_on_batches_are_called_row_by_row(kind: str) -> None:
    """At 0 of a goal at 0 it pays 1, elsewhere 0: 1, 0, 0 of the three rows."""

    def reward(achieved: Array, desired: Array, info: Any) -> Any:
        if kind == "raises":
            return float((achieved == desired).item())  # ValueError for more than one
        return np.array([float((achieved == desired).all())])

    achieved, goal = np.array([[0.0], [1.0], [2.0]]), np.zeros((3, 1))
    assert _of_each_row(reward, achieved, goal).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["compute_reward", "compute_terminated"])
def test_goal_functions_that_need_more_than_goals_are_refused(name: str) -> None:
    """They failed at the first update, after the first steps at random had been taken."""

    class NeedsInfo(Reach):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return (*rest, {"crashed": False})

    def asked(achieved: Array, desired: Array, info: Any) -> Any:
        return info["crashed"] * 0.0

    env: Any = NeedsInfo()
    env.compute_terminated = lambda achieved, desired, info: False
    require_own_rewards(env)
    if name == "compute_reward":
        env.compute_reward = lambda achieved, desired, info: (
            asked(achieved, desired, info or {}) if achieved.ndim > 1 else 0.0
        )
    else:
        env.compute_terminated = asked
    with pytest.raises(ConfigError, match=rf"{name} .* raised KeyError: .*crashed"):
        require_own_rewards(env)


def test_rewards_on_two_scales_are_refused(tmp_path: Path) -> None:
    class Tenfold(gymnasium.RewardWrapper[Any, Any]):
        """compute_reward knows nothing of it."""

        def reward(self, reward: Any) -> Any:
            return 10.0 * reward

    settings_: dict[str, Any] = {"replay": "her", "total_env_steps": 200, "quiet": True}
    settings_ |= {"learning_starts": 50}
    with pytest.raises(ConfigError, match="paid -10 where compute_reward says -1"):
        redline.train("sac", env=lambda: Tenfold(PointReach()), out=tmp_path / "a", **settings_)
    with pytest.raises(ConfigError, match="clip_reward changes those"):
        redline.train(
            "sac", env="redline/PointReach-v1", clip_reward=True, out=tmp_path / "b", **settings_
        )
    many = gymnasium.vector.SyncVectorEnv([PointReach])
    with pytest.raises(ConfigError, match="VectorEnv object is only one"):
        redline.train("sac", env=many, out=tmp_path / "c", **settings_)


class Reach(gymnasium.Env[Any, Any]):
    """A point on a line, paid 0 within `radius` of its goal and -1 elsewhere; 10 steps."""

    def __init__(self) -> None:
        self.action_space = goal = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Dict(
            observation=goal, achieved_goal=goal, desired_goal=goal
        )
        self.radius = 2.5  # everywhere

    def compute_reward(self, achieved: Array, desired: Array, info: Any) -> Any:
        return (np.abs(achieved - desired)[..., 0] < self.radius).astype(np.float32) - 1

    def _obs(self) -> dict[str, Array]:
        return {"observation": self.at, "achieved_goal": self.at, "desired_goal": self.goal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.at, self.goal = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.at = np.clip(self.at + 0.5 * np.asarray(action, np.float32), -1, 1)
        reward = float(self.compute_reward(self.at, self.goal, {}))
        return self._obs(), reward, False, self.steps >= 10, {}


class Narrow:
    """A callback that makes the goal hard to reach, once."""

    def on_start(self, state: Any) -> None:
        if state.env_steps == 0:
            state.envs.set_attr("radius", 0.05)


def test_replaced_goals_are_paid_as_the_environments_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were paid by an environment that no callback reached, and no resumed run set again."""
    wrong: list[int] = []
    drawn = HindsightReplay.sample

    def sample(*args: Any, **more: Any) -> Any:
        batch = drawn(*args, **more)
        after = batch["next_obs"]
        distance = (after["achieved_goal"] - after["desired_goal"]).abs()[:, 0]
        wrong.append(int(((batch["reward"] == 0) != (distance < 0.05)).sum()))
        return batch

    monkeypatch.setattr(HindsightReplay, "sample", sample)
    given: dict[str, Any] = {"env": Reach, "callbacks": [Narrow()], "quiet": True}
    out = tmp_path / "run"
    redline.train(
        "sac", replay="her", her_share=1.0, learning_starts=30, total_env_steps=40, out=out,
        hidden_sizes=(8,), batch_size=16, tensorboard=False, **given,
    )  # fmt: skip
    first = len(wrong)
    redline.train(resume=out, total_env_steps=50, **given)
    assert len(wrong) > first > 0
    assert set(wrong) == {0}


def test_a_last_observation_that_nobody_knows_is_no_goal() -> None:
    """Zeros stand in its place, and counted as what every earlier step had achieved in the end."""
    at = np.arange(1, 11, dtype=np.float32)[:, None] / 10
    data = RecordedEpisodes.of_arrays(
        {
            "observations": {"observation": at, "achieved_goal": at, "desired_goal": at * 0 + 1},
            "actions": at * 0,
            "rewards": -np.ones(10),
            "terminations": np.arange(10) == 9,
            "truncations": np.zeros(10, bool),
        },
        "data",
    )
    assert data.with_successors().num_steps == 10  # what follows a terminal step is worth nothing
    known = data.with_successors(terminal=True)
    assert known.num_steps == 9
    assert known.truncated.tolist() == [False] * 8 + [True]
    np.testing.assert_array_equal(known.final_obs["achieved_goal"], at[9:])  # type: ignore[index]
    env = Reach()
    spec = ReplaySpec.from_spaces(env.observation_space, env.action_space, 1)
    replay = HindsightReplay(ReplayConfig(capacity=100), spec, env, share=1.0)
    for rollout in as_rollouts(known, 1):
        replay.add(rollout)
    batch = replay.sample(2000, np.random.default_rng(0))
    goals = {round(float(each), 1) for each in batch["obs"]["desired_goal"][:, 0]}
    assert goals == {0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}
