"""Three-row batches and comparisons that the tests of DDPG, TD3 and SAC share."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from redline.algos.critics import Critic
from redline.models import EnsembleMLP

OBS = spaces.Box(-1, 1, (2,))
ACT = spaces.Box(-2, 2, (1,))


def three_rows(action: Tensor | None = None) -> TensorDict:
    """A termination, a truncation, and a window of three rows, with gamma = 1/2.

    | row | R | discount | why |
    |---|---|---|---|
    | 0 | 1 | 0 | terminated: nothing to bootstrap from |
    | 1 | 2 | 1/2 | truncated after one row: gamma, from the true last observation |
    | 2 | 7 | 1/8 | 4 + 2 + 1 over three rows: gamma^3 |
    """
    if action is None:
        action = torch.tensor([[0.5], [-0.5], [1.0]])
    return TensorDict(
        {
            "obs": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
            "action": action,
            "reward": torch.tensor([1.0, 2.0, 7.0]),
            "discount": torch.tensor([0.0, 0.5, 0.125]),
            "num_steps": torch.tensor([1, 1, 3]),
            "next_obs": torch.tensor([[5.0, 5.0], [2.0, 0.0], [0.0, 4.0]]),
            "weight": torch.tensor([1.0, 1.0, 1.0]),
        },
        batch_size=3,
    )


def random_batch(seed: int, size: int = 16, choices: int = 0) -> TensorDict:
    """Rows of no meaning, for updates whose result is compared with itself."""
    generator = torch.Generator().manual_seed(seed)
    action = torch.rand(size, 1, generator=generator) * 2 - 1
    if choices:
        action = torch.randint(choices, (size,), generator=generator)
    return TensorDict(
        {
            "obs": torch.randn(size, 2, generator=generator),
            "action": action,
            "reward": torch.randn(size, generator=generator),
            "discount": torch.rand(size, generator=generator),
            "num_steps": torch.ones(size, dtype=torch.int64),
            "next_obs": torch.randn(size, 2, generator=generator),
            "weight": torch.rand(size, generator=generator),
        },
        batch_size=size,
    )


def linear_critic(weights: list[list[float]], biases: list[float] | None = None) -> Critic:
    """Q_i(s, a) = weights[i] . [s, a] + biases[i]."""
    ensemble = EnsembleMLP(len(weights), (len(weights[0]), 1))
    with torch.no_grad():
        ensemble.weights[0].copy_(torch.tensor(weights).unsqueeze(-1))
        ensemble.biases[0].copy_(torch.tensor(biases or [0.0] * len(weights)).view(-1, 1, 1))
    return Critic(nn.Identity(), ensemble)


def choice_critic(values: list[list[float]]) -> Critic:
    """Q_i(s, a) = values[i][a], whatever the observation of two numbers."""
    ensemble = EnsembleMLP(len(values), (2, len(values[0])))
    with torch.no_grad():
        ensemble.weights[0].zero_()
        ensemble.biases[0].copy_(torch.tensor(values).unsqueeze(1))
    return Critic(nn.Identity(), ensemble)


def set_head(actor: Any, bias: list[float]) -> None:
    """Make the actor's outputs the same for all observations."""
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.copy_(torch.tensor(bias))


def assert_same(got: Any, wanted: Any, where: str = "") -> None:
    """Bit for bit, over nested dicts."""
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys(), where
        for name in wanted:
            assert_same(got[name], wanted[name], f"{where}.{name}")
    elif isinstance(wanted, Tensor):
        assert torch.equal(got, wanted), where
    else:
        assert got == wanted, where


def assert_round_trip(make: Any, batches: list[TensorDict]) -> None:
    """Half of the updates, save, load into a fresh instance: the other half is the same.

    Args:
        make: seed -> an algorithm with fresh weights.
        batches: an even number.
    """
    first, second = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    torch.manual_seed(0)
    original = make(0)
    torch.manual_seed(1)
    resumed = make(1)
    untouched = copy.deepcopy(resumed.state_dict())
    resumed.load_state_dict(untouched)  # before any update there are no moments to load
    for batch in first:
        original.update(batch)
    resumed.load_state_dict(copy.deepcopy(original.state_dict()))
    for batch in second:
        assert_same(resumed.update(batch), original.update(batch))
    assert_same(resumed.state_dict(), original.state_dict())
    assert resumed.optimizer_steps() == len(batches)


def moved(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The largest change of any parameter."""
    return max(float((after[name] - value).abs().max()) for name, value in before.items())
