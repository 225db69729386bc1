"""The kernels' updates against the ones that are written: every number that either changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from redline.engines.cpu import mlp, update_for
from tests.engines.learners import LEARNERS, batch, make, parameters

SERVED = (
    "sac", "sac-fixed-alpha", "sac-hard-target", "td3", "ddpg", "dqn", "double-dqn", "ppo-box",
    "ppo-discrete", "ppo-limited", "appo", "sac-critic-widths", "td3-critic-widths",
    "ppo-critic-widths", "a2c", "a2c-box", "impala", "reinforce",
)  # fmt: skip


def update_of(learner: Any) -> Any:
    update, reason = update_for(learner)
    assert update is not None, reason
    return update


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of everything in a state dict."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{path}.{key}")
    else:
        yield path, state


def assert_same_state(got: Any, wanted: Any, **tolerance: float) -> None:
    """Parameters, targets, optimizer memory, generators and counts."""
    found, expected = dict(leaves(got.state_dict())), dict(leaves(wanted.state_dict()))
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(found[path], value, **tolerance, msg=path)
        elif isinstance(value, Tensor):
            assert torch.equal(found[path], value), path
        else:
            assert found[path] == value, path
    assert got.optimizer_steps() == wanted.optimizer_steps()


def assert_same_metrics(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        found = torch.as_tensor(got[name], dtype=torch.float32)
        torch.testing.assert_close(found, value, rtol=2e-4, atol=2e-5, msg=name)


def test_which_algorithms_are_served() -> None:
    served = [name for name in LEARNERS if update_for(make(name))[0] is not None]
    assert sorted(served) == sorted(SERVED)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("compiled", [True, False])
def test_an_update_equals_the_written_one(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With C and without it.

    Adam's first step hides a gradient's size, not its sign; the second one compares sizes.
    """
    if not compiled:
        monkeypatch.setattr(mlp, "_dense", None)
    eager, other = make(name), make(name)
    update = update_of(other)
    for seed in range(2):
        data = batch(name, eager, seed)
        assert_same_metrics(update(data), eager.update(data))
    assert_same_state(other, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SERVED)
def test_the_two_take_turns(name: str) -> None:
    """Eager, kernels, eager, and a new learner from the saved state: nothing is kept apart."""
    eager, mixed = make(name), make(name)
    update = update_of(mixed)
    attributes = set(vars(mixed))
    for seed in range(6):
        data = batch(name, eager, seed)
        assert_same_metrics((update if seed % 2 else mixed.update)(data), eager.update(data))
    assert set(vars(mixed)) == attributes
    resumed = make(name, seed=9)
    resumed.load_state_dict(mixed.state_dict())
    data = batch(name, eager, 7)
    assert_same_metrics(update_of(resumed)(data), eager.update(data))
    assert_same_state(resumed, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", SERVED)
def test_a_hundred_updates_follow_the_written_ones(name: str) -> None:
    """Rounding grows with every step; after 100 of them parameters agree to 1%.

    (PPO's updates are 4 steps each, and 30 of them will do.)

    On-policy batches are of one eager learner, so that both learn from the same rows.
    """
    eager, other = make(name), make(name)
    start, update = parameters(eager), update_of(other)
    for seed in range(30 if name.startswith(("ppo", "appo")) else 100):
        data = batch(name, eager, seed)
        eager.update(data)
        update(data)
    wanted = parameters(eager)
    assert distance(parameters(other), wanted) < 0.01 * distance(start, wanted)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Euclidean distance of all parameters together."""
    return sum(float((a[key].double() - b[key].double()).square().sum()) for key in a) ** 0.5


@pytest.mark.parametrize("name", SERVED)
def test_parameters_may_be_moved(name: str) -> None:
    """`share_memory` lets go of where they were; on another dtype the written update goes on."""
    eager, other = make(name), make(name)
    update = update_of(other)
    for seed in range(3):
        data = batch(name, eager, seed)
        assert_same_metrics(update(data), eager.update(data))
        for part in ("policy", "target_policy", "critic", "target"):
            if isinstance(module := getattr(other, part, None), torch.nn.Module):
                module.share_memory()
    assert_same_state(other, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["ppo-box", "ppo-discrete", "appo", "a2c", "impala", "reinforce"])
def test_idle_rows_reach_no_sum(name: str) -> None:
    """The log-density of no action may be anything, and its exponential infinite."""
    learner = make(name)
    data = batch(name, learner, 0)
    idle = ~data["valid"]
    assert idle.any()
    for field, value in (("action", 0), ("log_prob", -500.0), ("value", 0.0)):
        data.steps[field][idle] = value
    data.steps["bootstrap_value"][idle] = 0.0
    metrics = update_of(learner)(data)
    assert all(torch.as_tensor(value).isfinite().all() for value in metrics.values())
    assert all(parameter.isfinite().all() for parameter in learner.policy.parameters())


@pytest.mark.parametrize("name", ["dqn", "double-dqn", "sac", "td3", "ddpg"])
def test_observations_of_other_numbers_are_learned_from(name: str) -> None:
    """float64 is rounded to float32, integers are numbers: as the written update does."""
    for dtype in (torch.float64, torch.int64):
        eager, other = make(name), make(name)
        data = batch(name, eager, 0)
        for field in ("obs", "next_obs"):
            data[field] = (3.0 * data[field]).to(dtype)
        assert_same_metrics(update_of(other)(data), eager.update(data))
        assert_same_state(other, eager, rtol=1e-4, atol=1e-5)


def test_normalized_observations_are_learned_from() -> None:
    from redline.algos.ppo import PPO, PPOConfig
    from redline.policies import make_policy
    from tests.engines.learners import BOX, B, T, rollout
    from tests.engines.learners import OBS as VECTOR

    learners = []
    for _ in range(2):
        torch.manual_seed(0)
        policy = make_policy(VECTOR, BOX, hidden_sizes=(8,), normalize_obs=True)
        rows = torch.randn(1, 40, 4) * 3.0 + 1.0
        policy.normalizer.update(rows, torch.ones(1, 40, dtype=torch.bool))  # type: ignore[union-attr]
        learners.append(PPO(policy, PPOConfig(num_envs=B, rollout_length=T)))
    eager, other = learners
    data = rollout(eager.policy, 0)
    assert_same_metrics(update_of(other)(data), eager.update(data))
