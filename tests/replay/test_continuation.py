"""The short way of adding a rollout writes what the general way writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from redline.data import Rollout
from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec

OBS = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32), "n": spaces.Discrete(5)})
ACT = spaces.Box(-1, 1, (1,), np.float32)


class Environments:
    """B environments whose episodes end now and then; every observation is new."""

    def __init__(self, num_envs: int, seed: int, end_rate: float) -> None:
        self.rng, self.num_envs, self.end_rate = np.random.default_rng(seed), num_envs, end_rate
        self.obs, self.episode = self._new(), np.zeros(num_envs, np.int64)

    def _new(self) -> dict[str, Any]:
        return {
            "x": self.rng.normal(size=(self.num_envs, 2)).astype(np.float32),
            "n": self.rng.integers(5, size=self.num_envs),
        }

    def rollout(self, length: int) -> Rollout:
        rows: list[dict[str, Any]] = []
        for _ in range(length):
            ended = self.rng.random(self.num_envs) < self.end_rate
            terminated = ended & (self.rng.random(self.num_envs) < 0.5)
            final = self._new()
            rows.append(
                {
                    "obs": self.obs,
                    "final_obs": {k: (v.T * ended).T for k, v in final.items()},
                    "action": self.rng.uniform(-1, 1, (self.num_envs, 1)).astype(np.float32),
                    "reward": self.rng.normal(size=self.num_envs).astype(np.float32),
                    "terminated": terminated,
                    "truncated": ended & ~terminated,
                    "valid": np.ones(self.num_envs, bool),
                    "episode_id": self.episode.copy(),
                }
            )
            self.episode = self.episode + ended
            self.obs = self._new()
        steps = TensorDict({}, batch_size=[length, self.num_envs])
        for name in rows[0]:
            if name.endswith("obs"):
                leaves = {k: torch.from_numpy(np.stack([r[name][k] for r in rows])) for k in OBS}
                steps[name] = TensorDict(leaves, batch_size=[length, self.num_envs])
            else:
                steps[name] = torch.from_numpy(np.stack([row[name] for row in rows]))
        last = {k: torch.from_numpy(v.copy()) for k, v in self.obs.items()}
        return Rollout(steps=steps, initial_state={}, last_obs=last)


def made(num_envs: int, capacity: int, n_step: int) -> Replay:
    spec = ReplaySpec.from_spaces(OBS, ACT, num_envs)
    return Replay(ReplayConfig(capacity=capacity, n_step=n_step, gamma=0.9), spec)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("end_rate", [0.0, 0.05, 0.5])
def test_both_ways_give_the_same_batches(length: int, end_rate: float) -> None:
    """40 rollouts through a ring that they fill several times."""
    short, general = made(2, 30, 2), made(2, 30, 2)
    general._continuation = None
    taken = 0
    carry_on = short._continuation.carry_on  # type: ignore[union-attr]

    def counted(*args: Any) -> Any:
        nonlocal taken
        goes_on = carry_on(*args)
        taken += goes_on is not None
        return goes_on

    short._continuation.carry_on = counted  # type: ignore[union-attr, method-assign]
    ours, theirs = (Environments(2, 5, end_rate) for _ in range(2))
    for step in range(40):
        short.add(ours.rollout(length))
        general.add(theirs.rollout(length))
        first = short.sample(64, np.random.default_rng(step))
        second = general.sample(64, np.random.default_rng(step))
        for key in first.keys(True, True):
            assert torch.equal(first[key], second[key]), key
    for name, array in general._arena.arrays.items():
        assert torch.equal(short._arena[name], array.tensor), name
        assert (short._arena.arrays[name].changed == array.changed).all(), name
    # The first one, and those around the ring's end, go the general way.
    assert 26 <= taken < 40


@pytest.mark.parametrize("num_envs", [1, 3])
def test_batches_by_numpy_equal_those_by_the_tensor_library(num_envs: int) -> None:
    """One-step transitions, ends of episodes included; memory of the batch before is reused."""
    spec = ReplaySpec.from_spaces(OBS, ACT, num_envs)
    quick, general = (Replay(ReplayConfig(capacity=24, gamma=0.9), spec) for _ in range(2))
    assert quick._plain is not None
    general._plain = None
    ours, theirs = (Environments(num_envs, 5, 0.3) for _ in range(2))
    batch = None
    for step in range(12):
        quick.add(ours.rollout(4))
        general.add(theirs.rollout(4))
        last, batch = batch, quick.sample(64, np.random.default_rng(step), out=batch)
        assert last is None or batch is last
        expected = general.sample(64, np.random.default_rng(step))
        assert set(batch.keys(True, True)) == set(expected.keys(True, True))
        for key in expected.keys(True, True):
            assert batch[key].dtype == expected[key].dtype, key
            assert torch.equal(batch[key], expected[key]), key
    batch["reward"] = batch["reward"] * 100.0
    batch["mine"] = batch["reward"].clone()
    again = quick.sample(64, np.random.default_rng(99), out=batch)
    expected = general.sample(64, np.random.default_rng(99))
    assert set(again.keys()) == set(expected.keys())
    assert torch.equal(again["reward"], expected["reward"])
    with pytest.raises(ConfigError, match="same batch_size"):
        quick.sample(32, np.random.default_rng(0), out=general.sample(8, np.random.default_rng(0)))


@pytest.mark.parametrize("key", ["reward", "action", "episode_id"])
def test_what_does_not_fit_is_refused_as_ever(key: str) -> None:
    """The short way leaves the message to the general one."""
    replay, envs = made(2, 30, 1), Environments(2, 0, 0.0)
    replay.add(envs.rollout(2))
    rollout = envs.rollout(2)
    if key == "episode_id":
        rollout.steps[key] = torch.tensor([[0, 0], [0, 1]])
    else:
        rollout.steps[key] = rollout.steps[key].double()
    head = replay.head
    with pytest.raises(ConfigError):
        replay.add(rollout)
    assert replay.head == head


def test_a_refused_rollout_frees_nothing() -> None:
    """In a full ring of 10 rows, all of them the ends of episodes whose observations are kept."""
    replay, envs = made(1, 10, 1), Environments(1, 0, 1.0)
    for _ in range(4):
        replay.add(envs.rollout(4))
    taken = {leaf.name: leaf.pool.num_taken for leaf in replay._obs.values()}
    wrong = envs.rollout(4)
    wrong.steps["reward"] = wrong.steps["reward"].double()
    with pytest.raises(ConfigError):
        replay.add(wrong)
    assert {leaf.name: leaf.pool.num_taken for leaf in replay._obs.values()} == taken


def test_a_break_is_not_taken_for_a_continuation() -> None:
    replay, envs = made(1, 30, 1), Environments(1, 0, 0.0)
    replay.add(envs.rollout(1))
    replay.break_chain()
    replay.add(envs.rollout(1))
    flags = replay._arena["flags"]
    assert flags[0] & 8  # the chain is cut behind the first row
    assert flags[1] & 16  # and another begins
