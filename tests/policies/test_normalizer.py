"""Running normalization of observations."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from redline import devices
from redline.algos.q_learning import make_q_policy
from redline.data import Rollout, as_tensordict
from redline.devices import DeviceKind
from redline.models.q_heads import ScalarHead
from redline.policies import (
    CategoricalActor,
    DeterministicActor,
    ObservationNormalizer,
    QPolicy,
    SquashedGaussianActor,
    make_actor,
)
from redline.policies.normalizer import RunningMoments

VECTOR = spaces.Box(-np.inf, np.inf, (2,))


def all_valid(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


def moments(normalizer: ObservationNormalizer, index: int = 0) -> RunningMoments:
    found = normalizer.moments[index]
    assert isinstance(found, RunningMoments)
    return found


def test_by_hand() -> None:
    """1, 3 have mean 2 and variance 1; then 5, 7 too: mean 4, variance 5."""
    normalizer = ObservationNormalizer(spaces.Box(-9, 9, (1,)))
    normalizer.update(torch.tensor([[[1.0]], [[3.0]]]), all_valid(2, 1))
    torch.testing.assert_close(normalizer(torch.tensor([[4.0]])), torch.tensor([[2.0]]))
    normalizer.update(torch.tensor([[[5.0]], [[7.0]]]), all_valid(2, 1))
    expected = torch.tensor([[4 / 5**0.5]])
    torch.testing.assert_close(normalizer(torch.tensor([[8.0]])), expected)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_any_split_gives_the_statistics_of_the_whole(
    seed: int, sizes: list[int], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    normalizer = ObservationNormalizer(VECTOR)
    kept = []
    for size in sizes:
        rows = (rng.normal(size=(size, 3, 2)) * scale + 5).astype(np.float32)
        valid = rng.random((size, 3)) < 0.7
        normalizer.update(torch.from_numpy(rows), torch.from_numpy(valid))
        kept.append(rows[valid])
    whole = np.concatenate(kept).astype(np.float64)
    got = moments(normalizer)
    assert got.count.item() == len(whole)
    if len(whole):
        np.testing.assert_allclose(got.mean.numpy(), whole.mean(0), rtol=1e-9, atol=1e-12)
        variance = (got.squares / got.count).numpy()
        np.testing.assert_allclose(variance, whole.var(0), rtol=1e-6, atol=1e-12)


def test_identity_before_the_first_row() -> None:
    normalizer = ObservationNormalizer(VECTOR)
    obs = torch.tensor([[1e6, -3.0]])
    assert torch.equal(normalizer(obs), obs)
    normalizer.update(torch.full((2, 1, 2), torch.nan), torch.zeros(2, 1, dtype=torch.bool))
    assert torch.equal(normalizer(obs), obs)


def test_far_values_are_clipped() -> None:
    normalizer = ObservationNormalizer(VECTOR)
    normalizer.update(torch.tensor([[[-1.0, 0.0], [1.0, 0.0]]]), all_valid(1, 2))
    got = normalizer(torch.tensor([[1e6, 0.0], [-1e6, 1.0]]))
    assert got.tolist() == [[10.0, 0.0], [-10.0, 10.0]]


def test_rows_that_are_not_valid_do_not_count_whatever_they_hold() -> None:
    """Elsewhere masks were multiplications, so that NaN in padding leaked."""
    normalizer = ObservationNormalizer(VECTOR)
    rows = torch.tensor([[[1.0, 1.0], [torch.nan, torch.inf]], [[3.0, 3.0], [9.0, 9.0]]])
    normalizer.update(rows, torch.tensor([[True, False], [True, False]]))
    assert moments(normalizer).mean.tolist() == [2.0, 2.0]
    assert moments(normalizer).squares.tolist() == [2.0, 2.0]
    assert moments(normalizer).count.item() == 2


def test_frozen_in_evaluation_mode() -> None:
    normalizer = ObservationNormalizer(VECTOR).eval()
    normalizer.update(torch.ones(1, 1, 2), all_valid(1, 1))
    assert moments(normalizer).count.item() == 0


def test_only_float_leaves_are_normalized() -> None:
    space = spaces.Dict(
        camera=spaces.Box(0, 255, (3, 8, 8), np.uint8),
        item=spaces.Discrete(4),
        pose=spaces.Tuple((spaces.Box(-1, 1, (1,), np.float64), spaces.MultiBinary(2))),
    )
    normalizer = ObservationNormalizer(space)
    rows: Any = {
        "camera": torch.zeros(2, 1, 3, 8, 8, dtype=torch.uint8),
        "item": torch.tensor([[1], [3]]),
        "pose": {"0": torch.tensor([[[1.0]], [[3.0]]]), "1": torch.ones(2, 1, 2)},
    }
    normalizer.update(as_tensordict(rows, (2, 1)), all_valid(2, 1))
    obs: Any = {
        "camera": torch.full((1, 3, 8, 8), 7, dtype=torch.uint8),
        "item": torch.tensor([3]),
        "pose": {"0": torch.tensor([[4.0]]), "1": torch.ones(1, 2)},
    }
    got: Any = normalizer(obs)
    assert got["camera"] is obs["camera"]
    assert got["item"] is obs["item"]
    assert got["pose"]["1"] is obs["pose"]["1"]
    assert got["pose"]["0"].item() == pytest.approx(2.0)
    assert obs["pose"]["0"].item() == 4.0


def test_a_copy_of_the_buffers_is_complete() -> None:
    """Weights that travel buffer by buffer must carry what acting applies."""
    source, target = ObservationNormalizer(VECTOR), ObservationNormalizer(VECTOR)
    source.update(torch.randn(5, 3, 2), all_valid(5, 3))
    state = target.state_dict()
    for name, value in source.state_dict().items():
        state[name].copy_(value)
    obs = torch.randn(4, 2)
    assert torch.equal(target(obs), source(obs))


def test_statistics_are_float64() -> None:
    """A float32 count stops growing at 2^24 rows."""
    normalizer = ObservationNormalizer(VECTOR)
    moments(normalizer).count.fill_(2.0**24)
    normalizer.update(torch.zeros(1, 1, 2), all_valid(1, 1))
    assert moments(normalizer).count.item() == 2**24 + 1


BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)
CHOICE = spaces.Discrete(3)


@pytest.mark.parametrize(
    ("kind", "actions"),
    [
        (SquashedGaussianActor, BOX),
        (DeterministicActor, BOX),
        (CategoricalActor, CHOICE),
        (QPolicy, CHOICE),
    ],
)
def test_off_policy_policies_act_on_what_they_have_normalized(kind: Any, actions: Any) -> None:
    """Observations 0, 2, 4, 6 have mean 3 and variance 5; updates see them normalized already."""
    space = spaces.Dict(
        {"place": spaces.Box(-9.0, 9.0, (1,), np.float32), "kind": spaces.Discrete(2)}
    )
    if kind is QPolicy:

        def head(features: int, choices: int) -> ScalarHead:
            return ScalarHead(features, choices)

        policy: Any = make_q_policy(space, actions, head, normalize_obs=True)
    else:
        policy = make_actor(kind, space, actions, hidden_sizes=(8,), normalize_obs=True)
    plain = copy.deepcopy(policy)
    plain.normalizer = None
    place = torch.tensor([0.0, 2.0, 4.0, 6.0]).view(4, 1, 1)
    obs = TensorDict({"place": place, "kind": torch.tensor([[0], [1], [1], [0]])}, [4, 1])
    steps = TensorDict({"obs": obs, "valid": all_valid(4, 1)}, [4, 1])
    policy.update_normalizer(Rollout(steps=steps, initial_state={}, last_obs=obs[-1]))
    seen = {"place": (place[:, 0] - 3.0) / 5.0**0.5, "kind": obs["kind"][:, 0]}
    raw = {"place": place[:, 0], "kind": obs["kind"][:, 0]}
    noise = torch.rand(4, policy.noise_size)
    for drawn in (None, noise):
        found, wanted = policy.act(raw, {}, drawn).action, plain.act(seen, {}, drawn).action
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(policy.act_greedily(raw, {})[0], plain.act_greedily(seen, {})[0])
    exported, wanted = policy.export_module()(raw), plain.act(seen, {}).action
    torch.testing.assert_close(exported, policy.env_action(wanted))
    policy.eval()
    policy.update_normalizer(Rollout(steps=steps, initial_state={}, last_obs=obs[-1]))
    assert policy.normalizer.moments[0].count == 4


class WithoutDoubles(DeviceKind):
    has_float64 = False


def test_statistics_on_a_device_without_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a device refuses to be given a double; there and back again, by hand.

    1, 3 and then 8: mean 4, squares 9 + 1 + 16 = 26.
    """
    moments = RunningMoments(())
    moments.update(torch.tensor([1.0, 3.0]), torch.ones(2, dtype=torch.bool))
    monkeypatch.setitem(devices._KINDS, "meta", WithoutDoubles())
    there = copy.deepcopy(moments).to("meta")
    assert {buffer.dtype for buffer in there.buffers()} == {torch.float32}
    there.update(torch.ones(2, device="meta"), torch.ones(2, dtype=torch.bool, device="meta"))
    assert there.mean.dtype == torch.float32

    monkeypatch.setitem(devices._KINDS, "cpu", WithoutDoubles())
    moments.to("cpu")
    moments.update(torch.tensor([8.0, 9.0]), torch.tensor([True, False]))
    found = (moments.count, moments.mean, moments.squares)
    assert [value.dtype for value in found] == [torch.float32] * 3
    assert [float(value) for value in found] == pytest.approx([3.0, 4.0, 26.0])
    monkeypatch.undo()


def test_statistics_that_come_back_are_doubles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices._KINDS, "meta", WithoutDoubles())
    back = RunningMoments((2,)).to("meta").to_empty(device="cpu")
    assert [back.count.dtype, back.mean.dtype, back.squares.dtype] == [torch.float64] * 3
    assert back.offset.dtype == torch.float32


def test_what_a_caller_makes_of_the_statistics_stays() -> None:
    assert RunningMoments(()).float().to("cpu").mean.dtype == torch.float32
    kept = RunningMoments(())
    mean = kept.mean
    assert kept.to("cpu").mean is mean
