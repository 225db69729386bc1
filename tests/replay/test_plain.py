"""The quick path of plain transitions writes and draws what the general way does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

import redline.replay.buffer as buffer_module
from redline.data import Rollout
from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.frames import FrameStore
from redline.replay.plain import SameTensors

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


class Collector:
    """Writes the rollouts of environments into the memory of a few of its own, in turn."""

    def __init__(self, envs: Environments, num_buffers: int) -> None:
        self.envs, self.steps = envs, [TensorDict() for _ in range(num_buffers)]

    def rollout(self, length: int) -> Rollout:
        rollout = self.envs.rollout(length)
        steps = self.steps.pop(0)
        if steps.is_empty():
            steps = rollout.steps
        else:
            steps.update_(rollout.steps)
        self.steps.append(steps)
        return Rollout(steps=steps, initial_state={}, last_obs=rollout.last_obs)


def count_taken(replay: Replay) -> list[bool]:
    """Whether each rollout that is added from here on goes the short way."""
    taken: list[bool] = []
    add = replay._plain.add  # type: ignore[union-attr]

    def counted(*args: Any) -> Any:
        goes_on = add(*args)
        taken.append(goes_on is not None)
        return goes_on

    replay._plain.add = counted  # type: ignore[union-attr, method-assign]
    return taken


def require_equal(short: Replay, general: Replay) -> None:
    """The arrays, and which parts of them are new since the last save."""
    assert short._plain is not None
    short._plain.mark_changed(short.head)
    for name, array in general._arena.arrays.items():
        assert torch.equal(short._arena[name], array.tensor), name
        assert (short._arena.arrays[name].changed == array.changed).all(), name
        assert (short._arena.arrays[name].written == array.written).all(), name


def made(num_envs: int, capacity: int, n_step: int) -> Replay:
    spec = ReplaySpec.from_spaces(OBS, ACT, num_envs)
    return Replay(ReplayConfig(capacity=capacity, n_step=n_step, gamma=0.9), spec)


@pytest.mark.parametrize("num_buffers", [0, 1, 2, 11])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("end_rate", [0.0, 0.05, 0.5])
def test_both_ways_give_the_same_batches(length: int, end_rate: float, num_buffers: int) -> None:
    """40 rollouts through a ring that they fill several times, from new memory or reused."""
    short, general = made(2, 30, 2), made(2, 30, 2)
    general._plain = None
    taken = count_taken(short)
    envs, theirs = (Environments(2, 5, end_rate) for _ in range(2))
    ours = Collector(envs, num_buffers) if num_buffers else envs
    for step in range(40):
        short.add(ours.rollout(length))
        general.add(theirs.rollout(length))
        first = short.sample(64, np.random.default_rng(step))
        second = general.sample(64, np.random.default_rng(step))
        for key in first.keys(True, True):
            assert torch.equal(first[key], second[key]), key
    require_equal(short, general)
    # The first one, and those around the ring's end, go the general way.
    assert 26 <= sum(taken) < 40


@pytest.mark.parametrize("chunk_bytes", [4096, 5000, 1 << 20])
def test_both_ways_record_the_same_changes_between_saves(tmp_path: Path, chunk_bytes: int) -> None:
    """190 rows a time, round a ring of 2,000 of up to 8 bytes: many chunks per array, or one."""
    spec = ReplaySpec.from_spaces(OBS, ACT, 1)
    config = ReplayConfig(capacity=2000, gamma=0.9, chunk_bytes=chunk_bytes)
    short, general = Replay(config, spec), Replay(config, spec)
    general._plain = None
    ours, theirs = Collector(Environments(1, 3, 0.02), 1), Environments(1, 3, 0.02)
    previous: dict[int, Path | None] = {0: None, 1: None}
    for step in range(12):
        short.add(ours.rollout(190))
        general.add(theirs.rollout(190))
        require_equal(short, general)
        for i, replay in enumerate((short, general)):
            directory = tmp_path / f"{i}-{step}"
            replay.save(directory, previous[i])
            previous[i] = directory
    loaded = Replay(config, spec)
    loaded.load(tmp_path / "0-11")
    for name, array in general._arena.arrays.items():
        assert torch.equal(loaded._arena[name], array.tensor), name


def replaced_reward(steps: TensorDict) -> None:
    steps["reward"] = steps["reward"] + 1.0


def replaced_leaf(steps: TensorDict) -> None:
    steps["obs", "x"] = torch.cat([steps["obs", "x"][:1], steps["obs", "x"][1:] + 1.0])


def replaced_observation(steps: TensorDict) -> None:
    x = torch.cat([steps["obs", "x"][:1], steps["obs", "x"][1:] * 2.0])
    leaves = {"x": x, "n": steps["obs", "n"].clone()}
    steps["obs"] = TensorDict(leaves, batch_size=steps.batch_size)


def replaced_last_observation(steps: TensorDict) -> None:
    steps["final_obs"] = steps["final_obs"].clone()
    steps["final_obs", "x"].add_(1.0)


def exchanged_ends(steps: TensorDict) -> None:
    terminated, truncated = steps["terminated"], steps["truncated"]
    steps["terminated"], steps["truncated"] = truncated, terminated


@pytest.mark.parametrize(
    "change",
    [
        replaced_reward,
        replaced_leaf,
        replaced_observation,
        replaced_last_observation,
        exchanged_ends,
    ],
)
def test_a_replaced_entry_is_noticed(change: Callable[[TensorDict], None]) -> None:
    """Its memory is not that of the rollouts before: what it holds now is what counts."""
    short, general = made(2, 60, 1), made(2, 60, 1)
    general._plain = None
    taken = count_taken(short)
    ours, theirs = Collector(Environments(2, 7, 0.4), 1), Environments(2, 7, 0.4)
    for step in range(6):
        first, second = ours.rollout(4), theirs.rollout(4)
        if step == 3:
            change(first.steps)
            change(second.steps)
        short.add(first)
        general.add(second)
    require_equal(short, general)
    assert taken == [True] * 5  # the first of the six is not asked about


def test_rollouts_of_two_collectors_are_told_apart() -> None:
    """Rollouts of the same shapes, of which every other is in memory that is seen once only."""
    short, general = made(2, 60, 1), made(2, 60, 1)
    general._plain = None
    taken = count_taken(short)
    ours, theirs = Collector(Environments(2, 7, 0.4), 1), Environments(2, 7, 0.4)
    for step in range(12):
        short.add((ours if step % 2 else ours.envs).rollout(2))
        general.add(theirs.rollout(2))
    require_equal(short, general)
    assert taken == [True] * 11


def without_reward(steps: TensorDict) -> None:
    del steps["reward"]


def with_more_observed(steps: TensorDict) -> None:
    steps["obs", "more"] = steps["obs", "x"].clone()


def of_other_numbers(steps: TensorDict) -> None:
    steps["obs", "x"] = steps["obs", "x"].double()


@pytest.mark.parametrize("change", [without_reward, with_more_observed, of_other_numbers])
def test_reused_memory_that_fits_no_more_is_refused(change: Callable[[TensorDict], None]) -> None:
    """As a rollout in new memory is."""
    replay, collector = made(2, 60, 1), Collector(Environments(2, 0, 0.0), 1)
    for _ in range(3):
        replay.add(collector.rollout(2))
    rollout = collector.rollout(2)
    change(rollout.steps)
    before = {name: array.tensor.clone() for name, array in replay._arena.arrays.items()}
    with pytest.raises((ConfigError, KeyError)):
        replay.add(rollout)
    assert replay.head == 6
    for name, value in before.items():
        assert torch.equal(replay._arena[name], value), name


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


def slots_taken(replay: Replay) -> list[int]:
    return [leaf.pool.num_taken for leaf in replay._obs.values() if isinstance(leaf, FrameStore)]


def test_a_refused_rollout_frees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full ring of 10 rows, all of them ends of episodes; observations stored with links."""
    monkeypatch.setattr(buffer_module, "LARGEST_PAIRED_BYTES", 0)
    replay, envs = made(1, 10, 1), Environments(1, 0, 1.0)
    for _ in range(4):
        replay.add(envs.rollout(4))
    taken = slots_taken(replay)
    assert min(taken) > 0
    wrong = envs.rollout(4)
    wrong.steps["reward"] = wrong.steps["reward"].double()
    with pytest.raises(ConfigError):
        replay.add(wrong)
    assert slots_taken(replay) == taken


def test_a_break_is_not_taken_for_a_plain() -> None:
    replay, envs = made(1, 30, 1), Environments(1, 0, 0.0)
    replay.add(envs.rollout(1))
    replay.break_chain()
    replay.add(envs.rollout(1))
    flags = replay._arena["flags"]
    assert flags[0] & 8  # the chain is cut behind the first row
    assert flags[1] & 16  # and another begins


def tree() -> TensorDict:
    part = TensorDict({"x": torch.zeros(2), "y": torch.ones(2)}, batch_size=[2])
    return TensorDict({"a": torch.zeros(2), "b": torch.ones(2), "part": part}, batch_size=[2])


def test_values_may_change_but_not_tensors() -> None:
    held = tree()
    same = SameTensors(held)
    held["a"].fill_(5.0)
    held.update_(tree())
    assert same.are_held()
    assert same.are_held()  # asking changes nothing
    held["a"] = held["a"].clone()
    assert not same.are_held()


def nothing(held: TensorDict) -> None:
    del held["a"]


def more(held: TensorDict) -> None:
    held["c"] = torch.zeros(2)


def more_below(held: TensorDict) -> None:
    held["part", "z"] = torch.zeros(2)


def other_below(held: TensorDict) -> None:
    held["part", "x"] = torch.zeros(2)


def other_part(held: TensorDict) -> None:
    held["part"] = held["part"].copy()


def moved(held: TensorDict) -> None:
    held["a"].share_memory_()


def moved_below(held: TensorDict) -> None:
    held["part", "x"].data = torch.zeros(2)


def other_names(held: TensorDict) -> None:
    held["a"], held["b"] = held["b"], held["a"]


@pytest.mark.parametrize(
    "change",
    [nothing, more, more_below, other_below, other_part, moved, moved_below, other_names],
)
def test_any_other_entry_is_noticed(change: Callable[[TensorDict], None]) -> None:
    held = tree()
    same = SameTensors(held)
    change(held)
    assert not same.are_held()


@pytest.mark.parametrize(
    ("change", "matters"),
    [(nothing, False), (more, False), (other_below, True), (more_below, True)],
)
def test_only_named_entries_matter_with_all_below(
    change: Callable[[TensorDict], None], matters: bool
) -> None:
    held = tree()
    same = SameTensors(held, ["b", "part"])
    change(held)
    assert same.are_held() is not matters


def test_a_missing_entry_is_an_error() -> None:
    with pytest.raises(KeyError):
        SameTensors(tree(), ["a", "q"])
