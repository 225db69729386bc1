"""The updates of SAC, TD3 and DDPG in numpy and C: what they see, and what they keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from redline.algos.ddpg import DDPG, DDPGConfig
from redline.algos.sac import SAC, SACConfig
from redline.algos.td3 import TD3, TD3Config
from redline.engines.cpu import mlp, update_for
from tests.engines.learners import parameters

ACTIONS = spaces.Box(-2.0, 1.0, (2, 2), np.float32)
VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
KINDS: dict[str, Any] = {
    "sac": (SAC, SACConfig),
    "td3": (TD3, TD3Config),
    "ddpg": (DDPG, DDPGConfig),
}


def make(
    name: str, space: spaces.Space[Any] = VECTOR, *, network: Any = (), **settings: Any
) -> Any:
    torch.manual_seed(3)
    kind, config = KINDS[name]
    given = {"hidden_sizes": (9, 6), "activation": "relu"} | dict(network)
    return kind.make(space, ACTIONS, config(**settings), seed=0, **given)


def batch(space: spaces.Space[Any], seed: int, rows: int = 7) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    space.seed(seed)

    def observed() -> Any:
        samples = [space.sample() for _ in range(rows)]
        if isinstance(space, spaces.Dict):
            return TensorDict(
                {k: torch.from_numpy(np.stack([s[k] for s in samples])) for k in space.spaces},
                batch_size=[rows],
            )
        return torch.from_numpy(np.stack(samples))

    return TensorDict(
        {
            "obs": observed(),
            "next_obs": observed(),
            "action": torch.rand(rows, 2, 2, generator=generator) * 2.0 - 1.0,
            "reward": torch.randn(rows, generator=generator),
            "discount": 0.9 * (torch.rand(rows, generator=generator) > 0.2),
            "weight": torch.rand(rows, generator=generator),
        },
        batch_size=[rows],
    )


def update_of(learner: Any) -> Any:
    update, reason = update_for(learner)
    assert update is not None, reason
    return update


def assert_follows(eager: Any, by_hand: Any) -> None:
    """Two updates from equal states."""
    update = update_of(by_hand)
    for seed in range(2):
        data = batch(VECTOR, seed)
        eager.update(data)
        update(data)
    assert_alike(eager, by_hand)


def assert_alike(one: Any, other: Any) -> None:
    moved = parameters(other)
    for key, value in parameters(one).items():
        torch.testing.assert_close(moved[key], value, rtol=1e-3, atol=1e-5, msg=key)


SPACES = {
    "vector": VECTOR,
    "doubles": spaces.Box(-np.inf, np.inf, (5,), np.float64),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "choice": spaces.Discrete(4),
    "dict": spaces.Dict({"a": spaces.Discrete(3), "b": VECTOR}),
}


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("seen", list(SPACES))
@pytest.mark.parametrize("compiled", [True, False])
def test_all_observations_are_seen_as_their_encoders_give_them(
    name: str, seen: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(mlp, "_dense", None)
    space = SPACES[seen]
    eager, by_hand = make(name, space), make(name, space)
    update = update_of(by_hand)
    for seed in range(3):
        data = batch(space, seed)
        wanted, got = eager.update(data), update(data)
        for key, value in wanted.items():
            torch.testing.assert_close(got[key], value, rtol=1e-3, atol=1e-4, msg=key)
    assert_alike(eager, by_hand)


@pytest.mark.parametrize("name", list(KINDS))
def test_batches_may_change_their_size(name: str) -> None:
    eager, by_hand = make(name), make(name)
    update = update_of(by_hand)
    for seed, rows in enumerate((7, 3, 7, 1, 40)):
        data = batch(VECTOR, seed, rows)
        eager.update(data)
        update(data)
    assert_alike(eager, by_hand)


@pytest.mark.parametrize("name", list(KINDS))
def test_parameters_may_be_moved(name: str) -> None:
    """`share_memory_` lets go of where they were."""
    eager, by_hand = make(name), make(name)
    update = update_of(by_hand)
    for seed in range(3):
        data = batch(VECTOR, seed)
        eager.update(data)
        update(data)
        if seed == 0:
            for part in (by_hand.policy, by_hand.critic, by_hand.target):
                part.share_memory()
    assert_alike(eager, by_hand)


@pytest.mark.parametrize("name", list(KINDS))
def test_threads_do_not_change_a_bit(name: str) -> None:
    """256 units and rows are enough for passes and steps to be shared, where C serves them."""
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            learner = make(name, network={"hidden_sizes": (256, 256)})
            update = update_of(learner)
            for seed in range(2):
                update(batch(VECTOR, seed, 256))
            results.append(parameters(learner))
    finally:
        torch.set_num_threads(before)
    for key, value in results[0].items():
        assert torch.equal(results[1][key], value), key


@pytest.mark.parametrize("name", list(KINDS))
def test_what_an_update_returns_stays(name: str) -> None:
    """Memory is used again at the next update; metrics and priorities are not in it."""
    learner = make(name)
    update = update_of(learner)
    first = update(batch(VECTOR, 0))
    before = {key: value.clone() for key, value in first.items()}
    update(batch(VECTOR, 1))
    for key, value in before.items():
        assert isinstance(first[key], Tensor)
        assert torch.equal(first[key], value), key


def test_no_gradient_where_the_log_standard_deviation_is_cut_off() -> None:
    """As autograd has it: with biases beyond both ends, and one at the end itself."""
    eager, by_hand = make("sac"), make("sac")
    for learner in (eager, by_hand):
        head = [m for m in learner.policy.modules() if isinstance(m, nn.Linear)][-1]
        with torch.no_grad():
            head.weight[4:].zero_()
            head.bias[4:] = torch.tensor([3.0, -25.0, 2.0, 0.5])
    assert_follows(eager, by_hand)


def test_equal_values_share_the_gradient() -> None:
    """Two critics that are one and the same: of each row both are the least."""
    eager, by_hand = make("sac"), make("sac")
    for learner in (eager, by_hand):
        with torch.no_grad():
            for parameter in learner.critic.ensemble.parameters():
                parameter[1] = parameter[0]
    assert_follows(eager, by_hand)


@pytest.mark.parametrize("name", list(KINDS))
def test_what_is_not_a_number_is_learned_like_elsewhere_and_quietly(name: str) -> None:
    eager, by_hand = make(name), make(name)
    update = update_of(by_hand)
    data = batch(VECTOR, 0)
    data["reward"][2] = float("nan")
    assert eager.update(data)["critic_loss"].isnan()
    assert update(data)["critic_loss"].isnan()
    assert parameters(by_hand)["critic.ensemble.weights.0"].isnan().any()
