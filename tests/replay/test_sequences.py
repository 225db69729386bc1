"""Sequences with stored states, resets and masks, against the remembered stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redline.data import Array
from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec, mixed_priority
from redline.replay.samplers import PrioritizedSampler
from tests.replay.streams import Stream

GAMMA = 0.9
RATES = st.sampled_from([0.0, 0.1, 0.4])


def check_sequences(replay: Replay, stream: Stream) -> None:
    config, envs = replay.config, stream.num_envs
    interval, rows = config.state_interval, config.sequence_rows
    oldest = max(replay.head - replay.ring_rows, 0)
    expected = {
        (start // interval) * envs + b
        for start in range(0, replay.head - rows + 1, interval)
        for b in range(envs)
        if start >= oldest
        and any(
            stream.rows[start + config.burn_in + i][b].valid for i in range(config.sequence_length)
        )
    }
    assert len(replay) == len(expected)
    if not expected:
        return
    batch = replay.sample(3 * len(expected), np.random.default_rng(0))
    assert set(batch.index.tolist()) <= expected
    for n, index in enumerate(batch.index.tolist()):
        start, b = index // envs * interval, index % envs
        assert batch.initial_state["h"][n].tolist() == [start, b]
        column = {key: value[:, n].numpy() for key, value in batch.steps.items()}
        check_column(column, stream, start, b, config.n_step)


def check_column(column: dict[str, Array], stream: Stream, start: int, b: int, n: int) -> None:
    episode = None
    for i in range(len(column["valid"])):
        row, step = {key: v[i] for key, v in column.items()}, stream.rows[start + i][b]
        assert bool(row["valid"]) == step.valid
        if not step.valid:
            assert not any(value.any() for value in row.values())
            continue
        reward, discount, k, successor = stream.window(start + i, b, n, GAMMA)
        assert np.array_equal(row["obs"], step.obs)
        assert np.array_equal(row["next_obs"], successor)
        assert row["action"].item() == step.action
        assert bool(row["terminated"]) == step.terminated
        assert bool(row["truncated"]) == step.truncated
        assert row["num_steps"].item() == k
        assert row["reward"].item() == pytest.approx(reward, abs=1e-5)
        assert row["discount"].item() == pytest.approx(discount, abs=1e-6)
        if episode is not None:
            assert bool(row["reset"]) == (step.episode != episode)
        elif i == 0:
            assert not bool(row["reset"])
        episode = step.episode


@given(
    seed=st.integers(0, 2**20),
    frames=st.sampled_from([1, 3]),
    prioritized=st.booleans(),
    interval=st.integers(1, 4),
    length=st.integers(1, 5),
    burn_in=st.integers(0, 3),
    n=st.integers(1, 3),
    multiple=st.integers(1, 2),
    end_rate=RATES,
    idle_rate=RATES,
    break_rate=RATES,
    late_reset=st.booleans(),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_sequence_equals_the_stream(
    seed: int,
    frames: int,
    prioritized: bool,
    interval: int,
    length: int,
    burn_in: int,
    n: int,
    multiple: int,
    end_rate: float,
    idle_rate: float,
    break_rate: float,
    late_reset: bool,
) -> None:
    """Overlap, burn-in, wraps; never across an unmasked reset."""
    stream = Stream(
        seed,
        frames=frames,
        end_rate=end_rate,
        idle_rate=idle_rate,
        break_rate=break_rate,
        late_reset=late_reset,
        life_rate=0.05,
    )
    config = ReplayConfig(
        capacity=2 * 14,
        gamma=GAMMA,
        n_step=n,
        frame_stack=frames,
        prioritized=prioritized,
        sequence_length=length,
        burn_in=burn_in,
        state_interval=interval * multiple,
    )
    first = stream.rollout(interval)
    replay = Replay(config, ReplaySpec.from_rollout(first))
    replay.add(first)
    for _ in range(int(24 / interval)):
        check_sequences(replay, stream)
        replay.add(stream.rollout(interval))
    check_sequences(replay, stream)


def test_given_states_serve_starts_within_a_rollout() -> None:
    stream = Stream(0, end_rate=0.1)
    config = ReplayConfig(capacity=40, gamma=GAMMA, sequence_length=3, state_interval=2)
    rollout = stream.rollout(6)
    replay = Replay(config, ReplaySpec.from_rollout(rollout))
    with pytest.raises(ConfigError, match="carries the state of its first row only"):
        replay.add(rollout)
    with pytest.raises(ConfigError, match="should begin with"):
        replay.add(rollout, states={"h": torch.zeros(2, 2, 2)})
    starts = torch.tensor([0.0, 2.0, 4.0])
    states = torch.stack([starts[:, None].expand(3, 2), torch.arange(2.0).expand(3, 2)], dim=2)
    replay.add(rollout, states={"h": states})
    check_sequences(replay, stream)


def test_stale_rows_come_out_as_zero() -> None:
    """Fault 20: padding that is stale data of the slot's earlier use."""
    for frames in (1, 3):
        for n in (1, 3):
            stream = Stream(3, frames=frames, end_rate=0.3, late_reset=True)
            rollout = stream.rollout(12)
            stale = ~rollout.valid
            assert bool(stale.any())
            rollout.steps["reward"][stale] = torch.nan
            rollout.steps["action"][stale] = 7
            rollout.steps["obs"][stale] = 255
            rollout.steps["truncated"][stale] = True
            config = ReplayConfig(
                capacity=40,
                gamma=GAMMA,
                n_step=n,
                frame_stack=frames,
                sequence_length=5,
                state_interval=12,
            )
            replay = Replay(config, ReplaySpec.from_rollout(rollout))
            replay.add(rollout)
            check_sequences(replay, stream)


def test_mixed_priority_by_hand() -> None:
    """Three rows, the last not valid: eta = 0.9, max 4, mean 3 -> 3.9."""
    priority = torch.tensor([[2.0, 0.0], [4.0, 0.0], [9.0, 9.0]])
    valid = torch.tensor([[True, False], [True, False], [False, False]])
    assert mixed_priority(priority, valid, 0.9).tolist() == pytest.approx([3.9, 0.0])


def test_initial_sequence_priorities_come_from_the_learned_rows() -> None:
    """Fault 6: elsewhere recurrent priorities were off by one row, and skipped alpha.

    burn_in 1, length 2, n_step 1, interval 2: the sequence from row s learns rows s+1, s+2.
    Row priorities are their row numbers, eta = 1/2: sequence 0 has (2 + 1.5) / 2 = 1.75,
    sequence 1 (rows 3, 4) has (4 + 3.5) / 2 = 3.75. The second completes with a later
    rollout than the one that brought most of its rows.
    """
    stream = Stream(0, num_envs=1, end_rate=0.0)
    config = ReplayConfig(
        capacity=16,
        sequence_length=2,
        burn_in=1,
        state_interval=2,
        prioritized=True,
        alpha=0.5,
        priority_epsilon=1e-12,
        priority_eta=0.5,
    )
    rollout = stream.rollout(2)
    replay = Replay(config, ReplaySpec.from_rollout(rollout))
    replay.add(rollout, priorities=torch.tensor([[0.0], [1.0]]))
    replay.add(stream.rollout(2), priorities=torch.tensor([[2.0], [3.0]]))
    replay.add(stream.rollout(2), priorities=torch.tensor([[4.0], [5.0]]))
    assert isinstance(replay._sampler, PrioritizedSampler)
    leaves = replay._sampler.tree.leaves
    assert leaves[:3].tolist() == pytest.approx([1.75**0.5, 3.75**0.5, 0.0])
    batch = replay.sample(4, np.random.default_rng(0))
    replay.update_priorities(batch.index, torch.full((4,), 9.0))
    assert leaves[:2].tolist() == pytest.approx([3.0, 3.0])
    # Without priorities, a sequence is as high as any before.
    replay.add(stream.rollout(2))
    assert leaves[2].item() == pytest.approx(3.0)


def test_too_small_a_ring_is_refused() -> None:
    stream = Stream(0)
    config = ReplayConfig(capacity=16, sequence_length=10, state_interval=2)
    with pytest.raises(ConfigError, match="fewer than the 11 rows of one sequence"):
        Replay(config, ReplaySpec.from_rollout(stream.rollout(2)))
