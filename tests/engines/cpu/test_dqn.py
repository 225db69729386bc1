"""What DQN's update in numpy keeps between its calls, and what it must not keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from redline.algos.dqn import DQN, DQNConfig
from redline.engines.cpu import update_for
from tests.algos.q_networks import transitions

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = 3


def make(**settings: Any) -> DQN:
    torch.manual_seed(7)
    algorithm = DQN.make(
        OBS,
        spaces.Discrete(ACTIONS),
        DQNConfig(**settings),
        seed=0,
        hidden_sizes=(8,),
        activation="relu",
    )
    return algorithm


def update_of(algorithm: DQN) -> Callable[[TensorDict], dict[str, Any]]:
    update, reason = update_for(algorithm)
    assert update is not None, reason
    return update


def batch(seed: int, count: int = 6) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    return transitions(
        obs=torch.randn(count, 3, generator=generator),
        next_obs=torch.randn(count, 3, generator=generator),
        action=torch.randint(0, ACTIONS, (count,), generator=generator),
        reward=torch.randn(count, generator=generator),
        discount=torch.rand(count, generator=generator),
        weight=torch.rand(count, generator=generator),
    )


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Every metric and priority, bit for bit."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(torch.as_tensor(got[name]), torch.as_tensor(value)), name


SETTINGS: list[dict[str, Any]] = [
    {},
    {"double_q": True, "max_grad_norm": 0.0, "huber_threshold": None},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_batch_written_over_is_learned_from_like_a_new_one(settings: dict[str, Any]) -> None:
    """As a replay does: the same tensors, with other rows in them."""
    anew, over = update_of(make(**settings)), update_of(make(**settings))
    kept = batch(0)
    for seed in range(4):
        kept.update_(batch(seed))
        assert_equal(over(kept), anew(batch(seed)))


@pytest.mark.parametrize("settings", SETTINGS)
def test_batches_of_other_sizes_may_come_between(settings: dict[str, Any]) -> None:
    """Updates of 6, 4 and 6 rows: each is what an algorithm in that state makes of it at once."""
    algorithm = make(**settings)
    update = update_of(algorithm)
    for seed, count in enumerate((6, 4, 6, 1)):
        fresh = make(**settings)
        fresh.load_state_dict(algorithm.state_dict())
        assert_equal(update(batch(seed, count)), update_of(fresh)(batch(seed, count)))


def test_one_entry_of_a_batch_may_be_exchanged() -> None:
    one, other = update_of(make()), update_of(make())
    kept = batch(0)
    one(kept)
    other(batch(0))
    kept["reward"] = kept["reward"] + 1.0
    changed = batch(0)
    changed["reward"] = changed["reward"] + 1.0
    assert_equal(one(kept), other(changed))


def moved_by_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor + 50.0


def moved_by_set(tensor: torch.Tensor) -> None:
    tensor.set_(tensor + 50.0)


def moved_to_shared_memory(tensor: torch.Tensor) -> None:
    tensor.share_memory_().add_(50.0)


@pytest.mark.parametrize("move", [moved_by_data, moved_by_set, moved_to_shared_memory])
def test_a_tensor_that_moves_is_followed(move: Callable[[torch.Tensor], None]) -> None:
    """It is the same tensor as before, but what lies where it lay is no longer its own."""
    one, other = update_of(make()), update_of(make())
    kept, changed = batch(0), batch(0)
    one(kept)
    other(batch(0))
    move(kept["reward"])
    changed["reward"] = changed["reward"] + 50.0
    assert_equal(one(kept), other(changed))


def test_priorities_stay_as_they_were_given() -> None:
    update = update_of(make(prioritized=True))
    given = update(batch(0))["priority"]
    before = given.clone()
    update(batch(1))
    assert torch.equal(given, before)


def test_the_highest_priority_is_kept_and_goes_on_from_a_saved_one() -> None:
    """1 before the first update; less changes nothing; a loss that diverged stays visible."""
    algorithm = make(prioritized=True)
    update = update_of(algorithm)
    low, high = batch(0), batch(1)
    low["reward"], low["discount"] = torch.zeros(6), torch.zeros(6)
    low["obs"] = torch.zeros(6, 3)
    assert update(low)["priority"].max() < 1.0
    assert algorithm.highest_priority.item() == 1.0
    high["reward"] = torch.full((6,), 50.0)
    highest = update(high)["priority"].max()
    update(low)
    assert algorithm.highest_priority == highest > 40.0
    resumed = make(prioritized=True)
    resumed.load_state_dict(algorithm.state_dict())
    resume = update_of(resumed)
    resume(low)
    assert resumed.highest_priority == highest
    high["reward"] = torch.full((6,), float("nan"))
    resume(high)
    assert resumed.highest_priority.isnan()


def test_the_norm_is_told_whether_or_not_gradients_are_clipped() -> None:
    clipped, free = make(max_grad_norm=0.1), make(max_grad_norm=0.0)
    norms = [float(update_of(one)(batch(0))["grad_norm"]) for one in (clipped, free)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[0] > 0.1


@pytest.mark.parametrize("action", [-1, ACTIONS])
def test_an_action_that_there_is_not_is_refused(action: int) -> None:
    wrong = batch(0)
    wrong["action"][2] = action
    with pytest.raises(ValueError, match="invalid entry"):
        update_of(make())(wrong)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_observations_of_other_types_are_converted(dtype: torch.dtype) -> None:
    """Where the space says float32 and the batch does not, as the eager update does."""
    one, other = update_of(make()), make()
    given = batch(0)
    for name in ("obs", "next_obs"):
        given[name] = (4.0 * given[name]).to(dtype)
    got, wanted = one(given), other.update(given)
    assert float(got["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-4)
