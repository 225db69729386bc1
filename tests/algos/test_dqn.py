"""The DQN family: every combination trains; targets by hand; exact continuation."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from redline.algos.dqn import DQN, DQNConfig, Fractions
from redline.algos.q_learning import (
    Exploration,
    exploration,
    huber_loss,
    initial_priorities,
)
from redline.errors import ConfigError, SpaceError
from redline.models import (
    CategoricalValueHead,
    ImplicitQuantileHead,
    QHead,
    QuantileHead,
    ScalarHead,
)
from tests.algos.q_networks import linear_policy, set_weight, transitions

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Discrete(2)
DISTRIBUTIONS = ("none", "categorical", "quantile", "implicit")


def config(**settings: Any) -> DQNConfig:
    """Small distributions, so that tests are fast."""
    small = {"num_atoms": 11, "num_quantiles": 5, "num_fractions": 4, "num_target_fractions": 6}
    return DQNConfig(**{**small, "num_acting_fractions": 3, **settings})


def random_batch(seed: int, count: int = 6) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    return transitions(
        obs=torch.randn(count, 3, generator=generator),
        next_obs=torch.randn(count, 3, generator=generator),
        action=torch.randint(0, 2, (count,), generator=generator),
        reward=torch.randn(count, generator=generator),
        discount=torch.rand(count, generator=generator),
        weight=torch.rand(count, generator=generator),
    )


def make(settings: DQNConfig, seed: int = 0) -> DQN:
    torch.manual_seed(7)
    return DQN.make(OBS, ACTIONS, settings, seed=seed, hidden_sizes=(8,))


COMBINATIONS = list(itertools.product((False, True), (False, True), (False, True), DISTRIBUTIONS))


@pytest.mark.parametrize(("double_q", "dueling", "noisy", "kind"), COMBINATIONS)
def test_every_combination_trains(double_q: bool, dueling: bool, noisy: bool, kind: Any) -> None:
    """Parameters change, metrics are finite scalars, priorities can be given back."""
    settings = config(
        double_q=double_q, dueling=dueling, noisy=noisy, value_distribution=kind, prioritized=True
    )
    algorithm = make(settings)
    before = [p.detach().clone() for p in algorithm.policy.parameters()]
    metrics = algorithm.update(random_batch(0))
    priority = metrics.pop("priority")
    assert set(metrics) == set(DQN.metric_names)
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert priority.shape == (6,)
    assert (priority >= 0).all()
    after = list(algorithm.policy.parameters())
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert algorithm.optimizer_steps() == 1


# Three rows: one whose window of three rows terminated, one truncated after two rows (so it
# bootstraps with gamma^2 from its true last observation), one in the middle of an episode.
REWARD = torch.tensor([1.0, 2.0, 3.0])
DISCOUNT = torch.tensor([0.0, 0.25, 0.125])  # gamma = 1/2: terminated, gamma^2, gamma^3
NEXT = torch.tensor([[5.0, 7.0], [4.0, 8.0], [-8.0, -16.0]])
ONLINE = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # Q(s) = s
TARGET = torch.tensor([[2.0, 0.0], [0.0, 0.5]])  # Q'(s) = (2 s_0, s_1 / 2)


def hand_batch(obs: torch.Tensor | None = None, **more: Any) -> TensorDict:
    return transitions(
        obs=torch.zeros(3, 2) if obs is None else obs,
        next_obs=NEXT,
        action=torch.tensor([0, 1, 0]),
        reward=REWARD,
        discount=DISCOUNT,
        **more,
    )


def hand_algorithm(head: QHead, other: QHead, settings: DQNConfig, repeat: int = 1) -> DQN:
    """Outputs of the networks are ONLINE and TARGET times the observation, repeated Z times."""
    online = linear_policy(head, ONLINE.repeat_interleave(repeat, 0))
    target = linear_policy(other, TARGET.repeat_interleave(repeat, 0))
    algorithm = DQN(online, target, settings, seed=0)
    set_weight(other, TARGET.repeat_interleave(repeat, 0))
    return algorithm


@pytest.mark.parametrize("double_q", [False, True])
def test_target_by_hand(double_q: bool) -> None:
    """Q'(s') = (10, 3.5), (8, 4), (-16, -8); Q(s') = (5, 7), (4, 8), (-8, -16).

    Single: a* = 0, 0, 1: 1 + 0; 2 + 8 / 4 = 4; 3 - 8 / 8 = 2.
    Double: a* = 1, 1, 0: 1 + 0; 2 + 4 / 4 = 3; 3 - 16 / 8 = 1.
    """
    algorithm = hand_algorithm(ScalarHead(2, 2), ScalarHead(2, 2), config(double_q=double_q))
    target = algorithm.target(hand_batch())
    expected = [1.0, 3.0, 1.0] if double_q else [1.0, 4.0, 2.0]
    assert target.mean().tolist() == pytest.approx(expected)


def test_loss_priority_and_importance_weights_by_hand() -> None:
    """Q(s, a) = 0.5, 1, 5 against targets 1, 4, 2: errors 0.5, 3, -3.

    Huber with threshold 1: 0.125, 2.5, 2.5. Weights 1, 0.5, 0.2:
    (0.125 + 1.25 + 0.5) / 3 = 0.625. Priorities 0.5, 3, 3 are of the errors, without weights.
    """
    algorithm = hand_algorithm(ScalarHead(2, 2), ScalarHead(2, 2), config())
    obs = torch.tensor([[0.5, 9.0], [9.0, 1.0], [5.0, 9.0]])
    metrics = algorithm.update(hand_batch(obs, weight=torch.tensor([1.0, 0.5, 0.2])))
    assert metrics["loss"].item() == pytest.approx(0.625)
    assert metrics["priority"].tolist() == pytest.approx([0.5, 3.0, 3.0])
    assert metrics["q_mean"].item() == pytest.approx(6.5 / 3)
    assert metrics["target_mean"].item() == pytest.approx(7 / 3)


def test_masked_actions_are_not_bootstrapped_from() -> None:
    """As the single-network case, with the best action of row 1 forbidden: 2 + 4 / 4 = 3."""
    online = linear_policy(ScalarHead(2, 2), ONLINE, masked=True)
    target = linear_policy(ScalarHead(2, 2), TARGET, masked=True)
    algorithm = DQN(online, target, config(), seed=0)
    set_weight(target.head, TARGET)
    mask = torch.tensor([[0, 0], [0, 1], [1, 1]], dtype=torch.int8)
    batch = hand_batch()
    nested = {"x": NEXT, "action_mask": mask}
    batch["next_obs"] = TensorDict(nested, batch_size=[3])
    assert algorithm.target(batch).mean().tolist() == pytest.approx([1.0, 3.0, 2.0])


@pytest.mark.parametrize("double_q", [False, True])
def test_categorical_target_by_hand(double_q: bool) -> None:
    """Atoms 0, 1, 2; logits of action a at s: s_a * (0, 0, L), online, s_a * (0, 0, -L) target.

    The greater s_a the more the online network likes a, and the less the target network.
    Values are R + D z: row 0 (1, 1, 1), row 1 (2, 2.25, 2.5), row 2 (3, 3.125, 3.25).
    With s' = (1, 0) and L = ln 2: online Q(a=0) = (1 + 2 * 2) / 4 = 1.25 > Q(a=1) = 1, and
    the target's p(a=0) = (0.4, 0.4, 0.2) of mean 0.8, p(a=1) = (1, 1, 1) / 3 of mean 1.
    """
    log2 = torch.tensor(2.0).log().item()

    def head() -> CategoricalValueHead:
        return CategoricalValueHead(2, 2, num_atoms=3, v_min=0.0, v_max=2.0)

    third = torch.tensor([0.0, 0.0, log2])
    weight = torch.block_diag(third[:, None], third[:, None])
    settings = config(double_q=double_q, value_distribution="categorical")
    online, target = linear_policy(head(), weight), linear_policy(head(), -weight)
    algorithm = DQN(online, target, settings, seed=0)
    set_weight(target.head, -weight)
    batch = hand_batch()
    batch["next_obs"] = torch.tensor([[1.0, 0.0]]).repeat(3, 1)
    result = algorithm.target(batch)
    assert result.values.tolist() == [[1.0, 1.0, 1.0], [2.0, 2.25, 2.5], [3.0, 3.125, 3.25]]
    assert result.probability is not None
    expected = [0.4, 0.4, 0.2] if double_q else [1 / 3] * 3
    for row in result.probability.tolist():
        assert row == pytest.approx(expected)
    mean = 0.8 if double_q else 1.0
    assert result.mean().tolist() == pytest.approx([1.0, 2 + mean / 4, 3 + mean / 8])


@pytest.mark.parametrize("double_q", [False, True])
def test_quantile_target_by_hand(double_q: bool) -> None:
    """Quantiles (Q - 1, Q + 1) around the values of the scalar case, with the same choices."""
    settings = config(double_q=double_q, value_distribution="quantile", num_quantiles=2)
    online, target = QuantileHead(2, 2, num_values=2), QuantileHead(2, 2, num_values=2)
    algorithm = hand_algorithm(online, target, settings, repeat=2)
    with torch.no_grad():
        for head in (online, target):
            head.advantage.layers[0].bias.copy_(torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    values = algorithm.target(hand_batch()).values.tolist()
    single = [[1.0, 1.0], [2 + 7 / 4, 2 + 9 / 4], [3 - 9 / 8, 3 - 7 / 8]]
    double = [[1.0, 1.0], [2 + 3 / 4, 2 + 5 / 4], [3 - 17 / 8, 3 - 15 / 8]]
    for row, expected in zip(values, double if double_q else single, strict=True):
        assert row == pytest.approx(expected)


@pytest.mark.parametrize("double_q", [False, True])
def test_implicit_quantile_target_by_hand(double_q: bool) -> None:
    """An embedding of 1 everywhere: each fraction has the value of the scalar case."""
    settings = config(double_q=double_q, value_distribution="implicit")
    online = ImplicitQuantileHead(2, 2, num_acting_fractions=3)
    target = ImplicitQuantileHead(2, 2, num_acting_fractions=3)
    for head in (online, target):
        torch.nn.init.zeros_(head.embedding.weight)
        torch.nn.init.ones_(head.embedding.bias)
    algorithm = hand_algorithm(online, target, settings)
    values = algorithm.target(hand_batch()).values
    assert values.shape == (3, 6)
    expected = [1.0, 3.0, 1.0] if double_q else [1.0, 4.0, 2.0]
    for column in values.unbind(-1):
        assert column.tolist() == pytest.approx(expected)


def ended_row() -> TensorDict:
    """Q(s, 0) = 0.5, reward 1 and the end: every sample of the target is 1."""
    return transitions(
        obs=torch.tensor([[0.5, 9.0]]),
        next_obs=NEXT[:1],
        action=torch.tensor([0]),
        reward=torch.tensor([1.0]),
        discount=torch.tensor([0.0]),
    )


def test_quantile_loss_and_priority_by_hand() -> None:
    """Quantiles -0.5 and 1.5 of 1/4 and 3/4: errors 1.5 and -0.5, both with the weight 1/4.

    kappa = 2: (1.5^2 / 2 + 0.5^2 / 2) / 4 / 2 = 5 / 32.
    """
    settings = config(value_distribution="quantile", num_quantiles=2, huber_threshold=2.0)
    online, target = QuantileHead(2, 2, num_values=2), QuantileHead(2, 2, num_values=2)
    algorithm = hand_algorithm(online, target, settings, repeat=2)
    with torch.no_grad():
        online.advantage.layers[0].bias.copy_(torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    metrics = algorithm.update(ended_row())
    assert metrics["loss"].item() == pytest.approx(5 / 32)
    assert metrics["priority"].tolist() == pytest.approx([5 / 32])
    assert metrics["target_mean"].item() == pytest.approx(1.0)


def test_implicit_quantile_loss_by_hand() -> None:
    """Each fraction's value is 0.5, each error 0.5: (0.2 + 0.6) * 0.5^2 / 2 = 0.1."""
    settings = config(value_distribution="implicit", huber_threshold=1.0)
    heads = [ImplicitQuantileHead(2, 2, num_acting_fractions=3) for _ in range(2)]
    for head in heads:
        torch.nn.init.zeros_(head.embedding.weight)
        torch.nn.init.ones_(head.embedding.bias)
    algorithm = hand_algorithm(heads[0], heads[1], settings)
    drawn = Fractions(torch.full((1, 6), 0.5), torch.tensor([[0.2, 0.6]]))
    metrics = algorithm.step(ended_row(), drawn, moves=False)
    assert metrics["loss"].item() == pytest.approx(0.1)
    assert metrics["priority"].tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("dueling", [False, True])
def test_noisy_target_uses_the_target_networks_own_noise(dueling: bool) -> None:
    """Zero noise gives the target of the mean weights; other noise another one."""
    algorithm = make(config(noisy=True, dueling=dueling))
    batch = random_batch(1)
    drawn = algorithm.target(batch).mean()
    for name, buffer in algorithm.target_policy.named_buffers():
        assert "noise" in name
        buffer.zero_()
    still = algorithm.target(batch).mean()
    assert not torch.allclose(drawn, still)
    q = algorithm.target_policy.evaluate(batch["next_obs"], noisy=False).q.amax(-1)
    torch.testing.assert_close(still, batch["reward"] + batch["discount"] * q.detach())


def test_target_network_begins_equal_and_follows_hard() -> None:
    """Equal at the start even if given unequal; copied after every third step only."""
    algorithm = make(config(target_update_interval=3, learning_rate=0.1))
    online, target = algorithm.policy, algorithm.target_policy

    def equal() -> bool:
        pairs = zip(online.parameters(), target.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    assert equal()
    seen = []
    for seed in range(6):
        algorithm.update(random_batch(seed))
        seen.append(equal())
    assert seen == [False, False, True, False, False, True]
    unequal = DQN.make(OBS, ACTIONS, config(), seed=0, hidden_sizes=(8,)).policy
    algorithm = DQN(online, unequal, config(), seed=0)
    online, target = algorithm.policy, algorithm.target_policy
    assert equal()
    assert not any(p.requires_grad for p in target.parameters())


def test_target_network_follows_softly() -> None:
    """tau = 1/4 after each step: target = 3/4 old + 1/4 online."""
    algorithm = make(config(target_update_interval=1, tau=0.25, learning_rate=0.1))
    old = [p.detach().clone() for p in algorithm.target_policy.parameters()]
    algorithm.update(random_batch(0))
    new = algorithm.target_policy.parameters()
    for before, after, online in zip(old, new, algorithm.policy.parameters(), strict=True):
        torch.testing.assert_close(after, 0.75 * before + 0.25 * online.detach())


def test_the_learning_rate_is_used() -> None:
    """Adam's first step is of size learning_rate in every coordinate with a gradient."""
    algorithm = make(config(learning_rate=0.5, adam_eps=1e-12))
    algorithm.set_hyperparameters({"learning_rate": 0.03})
    before = algorithm.policy.head.advantage.layers[0].bias.detach().clone()
    algorithm.update(random_batch(0))
    change = algorithm.policy.head.advantage.layers[0].bias.detach() - before
    assert change.abs().tolist() == pytest.approx([0.03, 0.03], rel=1e-3)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_continuing_from_a_saved_state_is_exact(kind: Any) -> None:
    settings = config(noisy=True, dueling=True, value_distribution=kind, target_update_interval=2)
    first = make(settings)
    for seed in range(3):
        first.update(random_batch(seed))
    saved = copy.deepcopy(first.state_dict())
    second = make(settings, seed=99)
    second.load_state_dict(saved)
    for seed in range(3, 7):
        one, two = first.update(random_batch(seed)), second.update(random_batch(seed))
        for name, value in one.items():
            assert torch.equal(value, two[name]), name
    for name, value in first.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[name])
    assert second.optimizer_steps() == 7


def test_a_saved_policy_loads_into_make_policy() -> None:
    settings = config(noisy=True, dueling=True, value_distribution="implicit")
    fresh = DQN.make_policy(OBS, ACTIONS, settings, hidden_sizes=(8,))
    fresh.load_state_dict(make(settings).state_dict()["policy"])


def test_epsilon_falls_with_global_env_steps() -> None:
    """From 1 to 0.1 within half of 1000 env_steps: 0.55 at 250; the number of environments and
    how the steps were shared out play no part."""
    settings = config(epsilon_initial=1.0, epsilon_final=0.1, epsilon_fraction=0.5)
    for num_envs in (1, 4):
        got = [exploration(settings, steps, 1000, num_envs) for steps in (0, 250, 500, 1000)]
        assert all(epsilon.shape == (num_envs,) for epsilon in got)
        for epsilon, expected in zip(got, (1.0, 0.55, 0.1, 0.1), strict=True):
            assert epsilon.tolist() == pytest.approx([expected] * num_envs)
    at_once = config(epsilon_fraction=0.0)
    assert exploration(at_once, 0, 1000, 1).item() == pytest.approx(0.05)
    conditioning = make(settings).conditioning(250, 1000, 3)
    assert conditioning["epsilon"].tolist() == pytest.approx([0.55] * 3)


def test_epsilon_is_made_anew_only_when_it_moves() -> None:
    """From 1 to 0.1 within the first half of 1000 env_steps, then for 2 environments of them."""
    settings = config(epsilon_initial=1.0, epsilon_final=0.1, epsilon_fraction=0.5)
    explore = Exploration(settings, torch.device("cpu"))
    first = explore(0, 1000, 1)
    assert explore(0, 1000, 1) is first
    later = explore(500, 1000, 1)
    assert (first.item(), later.item()) == (1.0, pytest.approx(0.1))
    assert explore(900, 1000, 1) is later
    assert explore(900, 1000, 2).tolist() == pytest.approx([0.1, 0.1])
    assert explore(0, 1000, 1).item() == 1.0  # a run that went back
    spread = Exploration(config(epsilon_schedule="ape-x"), torch.device("cpu"))
    assert spread(0, 1000, 8) is spread(900, 1000, 8)
    assert torch.equal(spread(0, 1000, 8), exploration(spread._config, 0, 1000, 8))


def test_ape_x_epsilons_by_hand() -> None:
    """0.4^(1 + 7 i / 7): 0.4, 0.16, ... 0.4^8 = 0.00065536; constant, and 0.4 for one."""
    settings = config(epsilon_schedule="ape-x")
    epsilon = exploration(settings, 0, 1000, 8)
    assert epsilon.tolist() == pytest.approx([0.4 ** (i + 1) for i in range(8)])
    assert epsilon[-1].item() == pytest.approx(0.00065536)
    assert torch.equal(epsilon, exploration(settings, 900, 1000, 8))
    assert exploration(settings, 0, 1000, 1).item() == pytest.approx(0.4)


def test_huber_loss_by_hand() -> None:
    """Threshold 2: 0.5 -> 0.125; -3 -> 2 (3 - 1) = 4; without one 4.5."""
    error = torch.tensor([0.5, -3.0])
    assert huber_loss(error, 2.0).tolist() == pytest.approx([0.125, 4.0])
    assert huber_loss(error, None).tolist() == pytest.approx([0.125, 4.5])


def test_initial_priorities_by_hand() -> None:
    """gamma = 1/2. Environment 0: row 0 goes on: |1 + 8 / 2 - 2| = 3; row 1 terminates:
    |1 - 6| = 5; row 2 is the last and is not known: the highest known here, 5.

    Environment 1: row 0 was truncated: not known, 5; row 1 is no transition: 0; row 2
    terminates: |4 - 4.5| = 0.5. With a highest priority of 7 so far, the unknown get 7.
    """
    arguments: dict[str, Any] = {
        "reward": torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 4.0]]),
        "terminated": torch.tensor([[False, False], [True, False], [False, True]]),
        "truncated": torch.tensor([[False, True], [False, False], [False, False]]),
        "valid": torch.tensor([[True, True], [True, False], [True, True]]),
        "q_taken": torch.tensor([[2.0, 1.0], [6.0, 0.0], [1.0, 4.5]]),
        "q_max": torch.tensor([[2.0, 1.0], [8.0, 0.0], [1.0, 4.5]]),
        "gamma": 0.5,
    }
    low = initial_priorities(**arguments, highest=torch.tensor(1.0))
    assert low.tolist() == [[3.0, 5.0], [5.0, 0.0], [5.0, 0.5]]
    high = initial_priorities(**arguments, highest=torch.tensor(7.0))
    assert high.tolist() == [[3.0, 7.0], [5.0, 0.0], [7.0, 0.5]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"v_min": 1.0, "v_max": 1.0}, "v_min"),
        ({"num_atoms": 1}, "num_atoms"),
        ({"value_distribution": "quantile", "huber_threshold": None}, "huber_threshold"),
        ({"epsilon_initial": 0.1, "epsilon_final": 0.2}, "epsilon_final"),
        ({"tau": 0.0}, "tau"),
        ({"tau": 1.5}, "tau"),
        ({"target_update_interval": 0}, "target_update_interval"),
        ({"head_hidden_sizes": (0,)}, "head_hidden_sizes"),
        ({"gamma": 1.5}, "gamma"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQNConfig(**settings)


@pytest.mark.parametrize(
    "network",
    [
        {"core": "lstm"},
        {"distribution": "gaussian"},
        {"initial_log_std": 1.0},
        {"shared_encoder": False},
        {"no_such_setting": 1},
    ],
)
def test_settings_that_do_not_apply_are_refused(network: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(network))):
        DQN.make(OBS, ACTIONS, config(), seed=0, **network)


def test_settings_at_their_defaults_are_accepted_and_box_actions_refused() -> None:
    defaults = {"shared_encoder": None, "normalize_obs": False, "distribution": "auto"}
    DQN.make(OBS, ACTIONS, config(), seed=0, core="none", core_size=128, **defaults)
    with pytest.raises(SpaceError, match="sac, td3 or ppo"):
        DQN.make(OBS, OBS, config(), seed=0)


def test_a_range_of_returns_that_nobody_chose_is_said() -> None:
    """Rainbow's [-10, 10] is that of clipped rewards; gamma = 0.99 sees 100 steps."""
    categorical = DQNConfig(value_distribution="categorical")
    said = DQN.caution(categorical, frozenset(), clips_reward=False)
    assert said is not None
    assert "v_min=-10 to v_max=10" in said
    assert "some 100 steps" in said
    assert DQN.caution(categorical, frozenset(), clips_reward=True) is None
    assert DQN.caution(categorical, frozenset(["v_max"]), clips_reward=False) is None
    assert DQN.caution(DQNConfig(), frozenset(), clips_reward=False) is None
    chosen = DQNConfig(value_distribution="categorical", v_min=0.0, v_max=50.0)
    assert DQN.caution(chosen, frozenset(), clips_reward=False) is None
