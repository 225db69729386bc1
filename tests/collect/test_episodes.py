"""Exactly N whole episodes, over as many collections as they take."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import pytest

from redline.collect import SerialCollector
from redline.data import EpisodeRecord, Rollout
from redline.errors import ConfigError, CorruptCheckpointError
from tests.collect.placements import PLACEMENTS, make
from tests.collect.scripted import ExactPolicy, ScriptedEnv


def scripted() -> SerialCollector:
    """Episodes of environment 0 take 2 steps, those of environment 1 take 5."""
    env = ScriptedEnv([[2], [5]], ["terminated", "truncated"])
    return SerialCollector(env, ExactPolicy(), rollout_length=4)


def valid_rows(rollout: Rollout, env: int) -> list[bool]:
    return rollout["valid"][:, env].tolist()


def test_three_episodes_in_two_environments() -> None:
    """Environment 0 gets two of them, environment 1 one: rows 0-3 and 0-4, in chunks of 4."""
    with scripted() as collector:
        collector.begin_episodes(3)
        first = collector.collect()
        assert valid_rows(first, 0) == [True] * 4
        assert valid_rows(first, 1) == [True] * 4
        assert first.num_running == 1
        assert first["episode_id"][:, 0].tolist() == [0, 0, 1, 1]
        second = collector.collect()
        assert valid_rows(second, 0) == [False] * 4
        assert valid_rows(second, 1) == [True, False, False, False]
        assert second["env_id"].tolist() == [[0, 1]] * 4
        assert second["obs"][:, 1, 0].tolist() == [104, 0, 0, 0]
        assert second.initial_state["steps"].tolist() == [[0.0], [4.0]]
        assert second.num_running == 0
        third = collector.collect()
        assert third.num_valid() == 0
        collector.begin_episodes(None)
        endless = collector.collect()
        assert endless.num_valid() == 8
        assert endless["episode_id"][0].tolist() == [2, 1]
        assert endless.num_running == 2


def test_fewer_episodes_than_environments() -> None:
    with scripted() as collector:
        rollouts = [(rollout.num_valid(), rollout.num_running) for rollout in collector.episodes(1)]
        assert rollouts == [(2, 0)]
        assert collector.collect().num_valid() == 8


def test_a_saved_limit_is_a_number_of_episodes_or_refused() -> None:
    """Text there was a numpy error of the next rollout; half of an episode was taken for none."""
    with scripted() as collector:
        collector.begin_episodes(3)
        state = collector.state_dict()
        collector.load_state_dict(copy.deepcopy(state))
        assert collector.collect().num_running == 1
        for wrong in (["1", "2"], [1.0, 2.0], [1, 2, 3], [-1, 1], 3, True, "", {}, [[1], [2]]):
            damaged = _with_quota(copy.deepcopy(state), wrong)
            with pytest.raises(
                CorruptCheckpointError, match=r"quota is .* for each of 2 environments"
            ):
                collector.load_state_dict(damaged)


def _with_quota(state: Any, quota: Any) -> Any:
    """A state whose every limit is another one."""
    if isinstance(state, dict):
        return {k: quota if k == "quota" else _with_quota(v, quota) for k, v in state.items()}
    if isinstance(state, list):
        return [_with_quota(each, quota) for each in state]
    return state


def test_wrong_numbers_are_refused() -> None:
    with scripted() as collector:
        with pytest.raises(ConfigError, match="num_episodes=0 must be at least 1"):
            collector.begin_episodes(0)
        collector.env.can_idle = False
        with pytest.raises(ConfigError, match="a number of episodes needs environments that can"):
            collector.begin_episodes(1)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_exactly_n_whole_episodes_in_every_placement(placement: str) -> None:
    """7 episodes of 3 environments that were in the middle of others.

    Shares are 3, 2, 2. Each record's length and return (1 per step in CartPole) are those of
    the rows with its env and episode id, so that no episode misses its beginning, and a
    second round gives ids that were not used before.
    """
    seen: set[tuple[int, int]] = set()
    with make(placement, ExactPolicy(), num_envs=3) as collector:
        abandoned = collector.collect()
        seen |= set(zip(*ids(abandoned), strict=True))
        for _ in range(2):
            records, rows = run_episodes(collector, 7)
            assert [sum(e.env_id == i for e in records) for i in range(3)] == [3, 2, 2]
            assert {(e.env_id, e.episode_id): (e.length, e.return_) for e in records} == rows
            assert not seen & set(rows)
            seen |= set(rows)


def ids(rollout: Rollout) -> tuple[list[int], list[int]]:
    valid = rollout["valid"]
    return rollout["env_id"][valid].tolist(), rollout["episode_id"][valid].tolist()


def run_episodes(collector: Any, count: int) -> tuple[list[EpisodeRecord], dict[Any, Any]]:
    records: list[EpisodeRecord] = []
    rows: dict[tuple[int, int], int] = defaultdict(int)
    running = [collector.num_envs]
    for rollout in collector.episodes(count):
        records += rollout.episodes
        running.append(rollout.num_running)
        for key in zip(*ids(rollout), strict=True):
            rows[key] += 1
    assert running == sorted(running, reverse=True)
    assert running[-1] == 0
    assert len(records) == count
    return records, {key: (length, float(length)) for key, length in rows.items()}
