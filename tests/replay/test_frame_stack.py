"""Frame-deduplicating replay gives exactly the batches that the plain one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from redline.data import Rollout
from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.spec import LeafSpec
from tests.replay.streams import Stream

RATES = st.sampled_from([0.0, 0.1, 0.5])


def pair(rollout: Rollout, frames: int, **settings_: Any) -> tuple[Replay, Replay]:
    spec = ReplaySpec.from_rollout(rollout)
    plain, single = (Replay(ReplayConfig(frame_stack=k, **settings_), spec) for k in (1, frames))
    return plain, single


@given(
    seed=st.integers(0, 2**20),
    frames=st.integers(2, 4),
    rows=st.integers(5, 14),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=10),
    n=st.integers(1, 3),
    end_rate=RATES,
    life_rate=RATES,
    idle_rate=RATES,
    break_rate=RATES,
    late_reset=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_batches_equal_those_of_the_plain_buffer(
    seed: int,
    frames: int,
    rows: int,
    lengths: list[int],
    n: int,
    end_rate: float,
    life_rate: float,
    idle_rate: float,
    break_rate: float,
    late_reset: bool,
) -> None:
    """Repeated, zero and distinct first frames; lost lives without reset; wraps; fillers."""
    stream = Stream(
        seed,
        frames=frames,
        end_rate=end_rate,
        life_rate=life_rate,
        idle_rate=idle_rate,
        break_rate=break_rate,
        late_reset=late_reset,
    )
    replays = None
    for length in lengths:
        rollout = stream.rollout(length)
        if replays is None:
            replays = pair(rollout, frames, capacity=2 * rows, n_step=n)
        for replay in replays:
            replay.add(rollout)
        assert len(replays[0]) == len(replays[1])
        if len(replays[0]):
            plain, single = (r.sample(200, np.random.default_rng(seed)) for r in replays)
            assert bool((plain == single).all())


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_memory_of_an_earlier_batch_is_used_again_without_a_trace(count: int, n: int) -> None:
    """In a batch of one row, stacks that overlap lie in one piece: one overwrote the other."""
    rollout = Stream(3, frames=4, end_rate=0.2).rollout(40)
    plain, single = pair(rollout, 4, capacity=2 * 50, n_step=n)
    first, second, batch = np.random.default_rng(1), np.random.default_rng(1), None
    for replay in (plain, single):
        replay.add(rollout)
    for _ in range(100):
        batch = single.sample(count, first, out=batch)
        assert bool((batch == plain.sample(count, second)).all())


def test_a_dict_observation_names_its_stacked_entries() -> None:
    stream = Stream(0, frames=4)

    def wrapped(rollout: Rollout) -> Rollout:
        size = list(rollout.steps.batch_size)
        for key in ("obs", "final_obs"):
            image = rollout.steps[key]
            mean = image.float().mean((2, 3, 4))
            entries = {"image": image, "mean": mean}
            rollout.steps[key] = TensorDict(entries, batch_size=size)
        last = rollout.last_obs
        assert isinstance(last, torch.Tensor)
        mean = last.float().mean((1, 2, 3))
        rollout.last_obs = TensorDict({"image": last, "mean": mean}, batch_size=size[1:])
        return rollout

    rollouts = [wrapped(stream.rollout(6)) for _ in range(4)]
    spec = ReplaySpec.from_rollout(rollouts[0])
    plain = Replay(ReplayConfig(capacity=24, n_step=2), spec)
    single = Replay(
        ReplayConfig(capacity=24, n_step=2, frame_stack=4, stacked_keys=("image",)), spec
    )
    for rollout in rollouts:
        plain.add(rollout)
        single.add(rollout)
    batches = [r.sample(100, np.random.default_rng(0)) for r in (plain, single)]
    assert bool((batches[0] == batches[1]).all())
    with pytest.raises(ConfigError, match="name the stacked ones"):
        Replay(ReplayConfig(capacity=24, frame_stack=4), spec)
    with pytest.raises(ConfigError, match="there is no observation"):
        Replay(ReplayConfig(capacity=24, frame_stack=4, stacked_keys=("img",)), spec)
    with pytest.raises(ConfigError, match="does not divide"):
        Replay(ReplayConfig(capacity=24, frame_stack=3, stacked_keys=("image",)), spec)


def test_observations_that_do_not_shift_are_refused() -> None:
    """Stacks with the newest frame first would silently store every frame again."""
    stream = Stream(0, frames=4, end_rate=0.0)
    rollout = stream.rollout(6)
    rollout.steps["obs"] = rollout["obs"].flip(2)
    assert isinstance(rollout.last_obs, torch.Tensor)
    rollout.last_obs = rollout.last_obs.flip(1)
    replay = pair(rollout, 4, capacity=40)[1]
    with pytest.raises(ConfigError, match="newest last"):
        replay.add(rollout)
    assert len(replay) == 0


def test_a_last_observation_that_does_not_shift_is_refused() -> None:
    """Fault 2: a collector that gives the reset observation as an episode's last one."""
    stream = Stream(0, frames=4, end_rate=1.0, paddings=("distinct",))
    rollout = stream.rollout(3)
    rollout.steps["final_obs"] = rollout["obs"].clone()
    replay = pair(rollout, 4, capacity=40)[1]
    with pytest.raises(ConfigError, match="does not shift"):
        replay.add(rollout)


def test_pools_do_not_grow_once_the_ring_is_full() -> None:
    """Slots of rows that left the ring are used again."""
    stream = Stream(1, frames=3, end_rate=0.5)
    rollout = stream.rollout(4)
    replay = pair(rollout, 3, capacity=64)[1]
    replay.add(rollout)
    sizes = []
    for _ in range(100):
        replay.add(stream.rollout(4))
        sizes.append(replay.nbytes)
    assert sizes[-1] == sizes[50]
    assert replay.nbytes < 64 * (2 * 2 * 4 + 60)


def test_only_first_stacks_take_slots() -> None:
    """Nothing is described twice: not where rollouts meet, not where a life is lost."""
    stream = Stream(1, frames=3, end_rate=0.0, life_rate=0.3, paddings=("distinct",))
    rollout = stream.rollout(4)
    replay = pair(rollout, 3, capacity=64)[1]
    replay.add(rollout)
    pool = replay._obs[()].pool
    for _ in range(5):
        assert pool.num_taken == 2 * stream.num_envs
        replay.add(stream.rollout(4))


def test_a_million_atari_transitions_fit_in_seven_and_a_half_gigabytes() -> None:
    """The arithmetic of 84x84 stacks of 4, actions of 8 bytes; checked by RSS in benchmarks."""
    spec = ReplaySpec(
        num_envs=8,
        obs={(): LeafSpec((4, 84, 84), torch.uint8)},
        action={(): LeafSpec((), torch.int64)},
        extras={},
        state={},
    )
    for prioritized in (False, True):
        # A buffer of a tenth: its bytes are in proportion.
        config = ReplayConfig(capacity=100_000, frame_stack=4, prioritized=prioritized)
        assert Replay(config, spec).nbytes * 10 < 7.5e9
