"""Proportional prioritization against the exact distribution."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.samplers import PrioritizedSampler
from redline.replay.storage import Arena
from redline.replay.tree import PriorityTree
from tests.replay.streams import Stream

ALPHA, EPSILON = 0.6, 1e-3


def make(stream: Stream, capacity: int = 60, **settings_: Any) -> Replay:
    rollout = stream.rollout(1)
    replay = Replay(
        ReplayConfig(
            capacity=capacity,
            prioritized=True,
            alpha=ALPHA,
            priority_epsilon=EPSILON,
            **settings_,
        ),
        ReplaySpec.from_rollout(rollout),
    )
    replay.add(rollout)
    return replay


def leaves_of(replay: Replay) -> torch.Tensor:
    assert isinstance(replay._sampler, PrioritizedSampler)
    return replay._sampler.tree.leaves


def make_tree(size: int) -> PriorityTree:
    arena = Arena(PriorityTree.plans("t", size), ReplayConfig(capacity=size))
    return PriorityTree(arena, "t", size)


@given(
    size=st.one_of(st.integers(1, 3000), st.integers(130_000, 200_000)),
    seed=st.integers(0, 2**20),
    zeros=st.sampled_from([0.0, 0.5, 0.99]),
    scale=st.sampled_from([1.0, 1e-12, 1e12]),
)
@settings(max_examples=60, deadline=None)
def test_tree_finds_what_a_running_sum_finds(
    size: int, seed: int, zeros: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    leaves = np.zeros(size)
    tree = make_tree(size)
    for _ in range(3):
        index = rng.integers(0, size, 50)
        value = rng.random(50) * scale * (rng.random(50) >= zeros)
        highest: dict[int, float] = {}
        for i, v in zip(index, value, strict=True):
            highest[int(i)] = max(highest.get(int(i), 0.0), float(v))
        for i, v in highest.items():
            leaves[i] = v
        tree.set(torch.from_numpy(index), torch.from_numpy(value))
    assert np.array_equal(tree.leaves.numpy(), leaves)
    assert float(tree.total) == pytest.approx(leaves.sum(), rel=1e-12)
    if leaves.sum() == 0:
        assert float(tree.least) == np.inf
        return
    assert float(tree.least) == leaves[leaves > 0].min()
    fraction = np.concatenate([rng.random(200), [0.0, 1 - 2.0**-53]])
    target = fraction * float(tree.total)
    found = tree.find(torch.from_numpy(fraction)).numpy()
    assert (leaves[found] > 0).all()
    running = leaves.cumsum()
    slack = 1e-12 * running[-1]
    assert (running[found] >= target - slack).all()
    assert (running[found] - leaves[found] <= target + slack).all()


@given(
    size=st.one_of(st.integers(1, 300), st.integers(60_000, 70_000)),
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([1.0, 1e-300, 1e300]),
)
@settings(max_examples=60, deadline=None)
def test_native_tree_equals_the_tensor_code_bit_for_bit(size: int, seed: int, scale: float) -> None:
    """Every node of every level, with repeated and discarded leaves, and what is found."""
    rng = np.random.default_rng(seed)
    native, plain = make_tree(size), make_tree(size)
    assert native._on_host is not None, "the extension redline.replay._tree is not built"
    plain._on_host = None
    for _ in range(4):
        index = torch.from_numpy(rng.integers(0, size, 64))
        value = torch.from_numpy(rng.random(64) * scale * (rng.random(64) > 0.2))
        keep = torch.from_numpy(rng.random(64) > 0.3)
        for tree in (native, plain):
            tree.set(index, value, keep)
    for ours, reference in zip(
        native._sums + native._minima, plain._sums + plain._minima, strict=True
    ):
        assert torch.equal(ours.tensor, reference.tensor)
    if float(plain.total) > 0:
        fraction = torch.from_numpy(np.concatenate([rng.random(100), [0.0, 1 - 2.0**-53]]))
        assert torch.equal(native.find(fraction), plain.find(fraction))


def test_native_tree_refuses_what_lies_outside() -> None:
    tree = make_tree(100)
    assert tree._on_host is not None
    rows = tree._on_host[0][0].shape[0]
    with pytest.raises(IndexError, match=f"leaf {rows} of a tree of {rows}"):
        tree.set(torch.tensor([rows]), torch.ones(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="the tree is empty"):
        tree.find(torch.zeros(1, dtype=torch.float64))


def test_tree_drifts_by_nothing() -> None:
    """A thousand updates leave the sums that a fresh tree has, bit for bit."""
    rng = np.random.default_rng(0)
    tree, fresh = make_tree(5000), make_tree(5000)
    for _ in range(1000):
        tree.set(torch.from_numpy(rng.integers(0, 5000, 32)), torch.from_numpy(rng.random(32)))
    fresh.set(torch.arange(5000), tree.leaves.clone())
    assert torch.equal(fresh.total, tree.total)


def exact(replay: Replay, raw: dict[int, float]) -> dict[int, float]:
    scaled = {unit: (p + EPSILON) ** ALPHA for unit, p in raw.items()}
    total = sum(scaled.values())
    return {unit: p / total for unit, p in scaled.items()}


def test_sampling_frequencies_and_weights_are_exact() -> None:
    """Chi-square against the exact distribution, over a wrapped ring with invalid rows."""
    stream = Stream(2, idle_rate=0.2, end_rate=0.2, late_reset=True)
    replay = make(stream)
    for _ in range(9):
        replay.add(stream.rollout(5))
    head, oldest = replay.head, replay.head - 30
    units = [t * 2 + b for t in range(oldest, head) for b in range(2) if stream.rows[t][b].valid]
    rng = np.random.default_rng(0)
    raw = dict(zip(units, rng.exponential(size=len(units)), strict=True))
    replay.update_priorities(torch.tensor(units), torch.tensor(list(raw.values())))
    probability = exact(replay, raw)
    # One draw at a time: within a batch, strata make draws dependent.
    sampler = replay._sampler
    uniform = torch.from_numpy(rng.random((6000, 1)))
    draws = torch.cat([sampler.draw(u, 1.0)[0] for u in uniform]).tolist()
    observed = [draws.count(unit) for unit in units]
    expected = np.array([probability[unit] for unit in units]) * len(draws)
    assert sum(observed) == len(draws)
    assert chisquare(observed, expected * sum(observed) / expected.sum()).pvalue > 1e-3

    batch = replay.sample(500, rng, beta=0.7)
    least = min(probability[unit] for unit in batch["index"].tolist())
    for unit, weight in zip(batch["index"].tolist(), batch["weight"].tolist(), strict=True):
        # (1/N 1/P)^beta over its maximum in the batch: N cancels.
        assert weight == pytest.approx((least / probability[unit]) ** 0.7, rel=1e-5)


def test_weights_do_not_depend_on_what_was_not_drawn() -> None:
    """A unit of tiny priority, never drawn here, leaves the weights of the others as they were.

    Priorities 1 and 8, beta = 1: weights 1 and (1 + eps)^0.6 / (8 + eps)^0.6.
    """
    stream = Stream(0, end_rate=0.0)
    replay = make(stream)
    replay.add(stream.rollout(1))
    replay.update_priorities(torch.arange(4), torch.tensor([1.0, 8.0, 0.0, 1.0]))
    batch = replay.sample(4, np.random.default_rng(0))
    assert 2 not in batch["index"]
    expected = {0: 1.0, 1: ((1 + EPSILON) / (8 + EPSILON)) ** ALPHA, 3: 1.0}
    assert batch["weight"].tolist() == pytest.approx([expected[i] for i in batch["index"].tolist()])


def test_strata_each_give_one_unit() -> None:
    """Schaul et al. 2016, appendix B.2.1: unit i's count in a batch is within one of N * P(i)."""
    stream = Stream(0, end_rate=0.1)
    replay = make(stream)
    replay.add(stream.rollout(19))
    units = torch.arange(40)
    raw = torch.linspace(0.1, 5, 40)
    replay.update_priorities(units, raw)
    probability = exact(replay, dict(enumerate(raw.tolist())))
    index = replay.sample(1000, np.random.default_rng(1))["index"]
    for unit, p in probability.items():
        assert abs(int((index == unit).sum()) - 1000 * p) < 2


def test_a_batch_of_another_size_leaves_the_memory_of_the_first_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A captured draw of 8 reads its strata from where they lay; a draw of 4 freed them."""
    stream = Stream(0)
    replay = make(stream)
    replay.add(stream.rollout(19))
    made: list[weakref.ref[torch.Tensor]] = []
    arange = torch.arange

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = arange(*args, **kwargs)
        made.append(weakref.ref(tensor))
        return tensor

    sampler = replay._sampler
    monkeypatch.setattr(torch, "arange", noted)
    for size in (8, 4, 8):
        sampler.draw(torch.rand(size, dtype=torch.float64), 0.4)
    alive = [tensor.tolist() for each in made if (tensor := each()) is not None]
    assert alive == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3]]


def test_initial_priorities_are_raised_to_alpha_too() -> None:
    """Fault 6: elsewhere the collector's priorities skipped alpha."""
    stream = Stream(0)
    replay = make(stream)
    given_ = torch.rand(10, 2) * 3
    replay.add(stream.rollout(10), priorities=given_)
    leaves = leaves_of(replay)
    expected = (given_.double() + EPSILON) ** ALPHA
    assert torch.allclose(leaves[2:22].view(10, 2), expected)


def test_new_units_are_as_high_as_any_before() -> None:
    """Schaul et al. 2016, algorithm 1, line 6; highest ever given, before alpha."""
    stream = Stream(0, end_rate=0.0)
    replay = make(stream)
    leaves = leaves_of(replay)
    assert float(leaves[0]) == pytest.approx((1 + EPSILON) ** ALPHA)
    replay.update_priorities(torch.tensor([0, 1]), torch.tensor([7.0, 2.0]))
    replay.update_priorities(torch.tensor([0]), torch.tensor([3.0]))
    replay.add(stream.rollout(1))
    assert float(leaves[2]) == pytest.approx((7 + EPSILON) ** ALPHA)


def test_priorities_of_overwritten_units_are_passed_over() -> None:
    """An update that comes late must not land on whatever took the place meanwhile."""
    stream = Stream(0, end_rate=0.0)
    replay = make(stream, capacity=8)
    replay.add(stream.rollout(3))
    late = replay.sample(64, np.random.default_rng(0))["index"]
    replay.add(stream.rollout(2))  # overwrites units 0 .. 3
    leaves = leaves_of(replay)
    replay.update_priorities(late, torch.full((64,), 50.0))
    before = (1 + EPSILON) ** ALPHA
    assert leaves[:4].tolist() == pytest.approx([before] * 4)
    assert leaves[4:].tolist() == pytest.approx([(50 + EPSILON) ** ALPHA] * 4)
    # Of two updates of one place, one late and one in time, only the latter counts.
    replay.update_priorities(torch.tensor([0, 8]), torch.tensor([99.0, 2.0]))
    assert float(leaves[0]) == pytest.approx((2 + EPSILON) ** ALPHA)


def test_alpha_zero_is_uniform_and_beta_zero_weighs_nothing() -> None:
    stream = Stream(0, end_rate=0.0)
    rollout = stream.rollout(5)
    replay = Replay(
        ReplayConfig(capacity=10, prioritized=True, alpha=0.0), ReplaySpec.from_rollout(rollout)
    )
    replay.add(rollout, priorities=torch.rand(5, 2))
    assert replay.sample(10, np.random.default_rng(0))["index"].tolist() == list(range(10))
    stream = Stream(1)
    replay = make(stream)
    replay.add(stream.rollout(9), priorities=torch.rand(9, 2))
    assert replay.sample(10, np.random.default_rng(0), beta=0.0)["weight"].tolist() == [1.0] * 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bad_priorities_are_refused(bad: float) -> None:
    stream = Stream(0)
    replay = make(stream)
    with pytest.raises(ConfigError, match="NaN, infinite or negative"):
        replay.update_priorities(torch.tensor([0]), torch.tensor([bad]))
    with pytest.raises(ConfigError, match="NaN, infinite or negative"):
        replay.add(stream.rollout(1), priorities=torch.tensor([[1.0, bad]]))
    with pytest.raises(ConfigError, match="does not match index"):
        replay.update_priorities(torch.tensor([0, 1]), torch.tensor([1.0]))
    with pytest.raises(ConfigError, match="one per row"):
        replay.add(stream.rollout(1), priorities=torch.ones(2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_highest_so_far_takes_the_place_of_bad_priorities_if_asked(bad: float) -> None:
    """Leaves are priorities + 1; 5 is the highest before the first bad one, then 7."""
    stream = Stream(0)
    rollout = stream.rollout(2)
    config = ReplayConfig(capacity=8, prioritized=True, alpha=1.0, priority_epsilon=1.0)
    replay = Replay(config, ReplaySpec.from_rollout(rollout))
    replay.replace_unsound_priorities()
    replay.add(rollout, priorities=torch.tensor([[2.0, 5.0], [3.0, 4.0]]))
    replay.update_priorities(torch.tensor([0, 1]), torch.tensor([bad, 7.0]))
    replay.add(stream.rollout(1), priorities=torch.tensor([[bad, 1.0]]))
    sampler: Any = replay._sampler
    assert sampler.tree.leaves[:6].tolist() == [6.0, 8.0, 4.0, 5.0, 8.0, 2.0]
    with pytest.raises(ConfigError, match="NaN, infinite or negative"):
        replay.update_priorities(torch.tensor([0]), torch.tensor([-1.0]))


@given(seed=st.integers(0, 2**20), rows=st.integers(4, 10), idle=st.sampled_from([0.0, 0.5]))
@settings(max_examples=30, deadline=None)
def test_only_live_valid_units_are_drawn(seed: int, rows: int, idle: float) -> None:
    """Whatever was added and updated, a drawn unit is valid and in the ring."""
    stream = Stream(seed, idle_rate=idle)
    replay = make(stream, capacity=2 * rows)
    rng = np.random.default_rng(seed)
    for _ in range(8):
        replay.add(stream.rollout(int(rng.integers(1, 4))))
        live = {
            t * 2 + b
            for t in range(max(replay.head - rows, 0), replay.head)
            for b in range(2)
            if stream.rows[t][b].valid
        }
        assert len(replay) == len(live)
        if live:
            index = replay.sample(64, rng)["index"]
            assert set(index.tolist()) <= live
            replay.update_priorities(index, torch.from_numpy(rng.exponential(size=64)))
