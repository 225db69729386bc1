"""SAC and discrete SAC against hand-worked numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos.sac import SAC, DiscreteSAC, SACConfig, actor_loss, temperature_loss
from redline.errors import ConfigError, SpaceError
from redline.policies import CategoricalActor, SquashedGaussianActor, make_actor
from tests.algos.off_policy_batches import (
    ACT,
    OBS,
    assert_round_trip,
    assert_same,
    choice_critic,
    linear_critic,
    moved,
    random_batch,
    set_head,
    three_rows,
)

CHOICES = spaces.Discrete(2)
SMALL = math.exp(-20.0)  # the least standard deviation


def certain(**settings: Any) -> SAC:
    """mu(s) = 1/2 with next to no spread; Q_1 = s_0 + 2 s_1 + 4 a, Q_2 = 2 s_0 + s_1 + 4 a."""
    actor = make_actor(SquashedGaussianActor, OBS, ACT, hidden_sizes=(4,))
    set_head(actor, [math.atanh(0.5), -50.0])
    critic = linear_critic([[1.0, 2.0, 4.0], [2.0, 1.0, 4.0]])
    return SAC(actor, critic, SACConfig(learning_rate=1e-9, **settings), seed=0)


def made(seed: int = 0, action_space: Any = ACT, **settings: Any) -> SAC:
    return SAC.make(OBS, action_space, SACConfig(**settings), seed=seed, hidden_sizes=(8,))


def density(noise: Tensor, std: float, u: Tensor) -> Tensor:
    """log N(u) - log(1 - tanh(u)^2), written out."""
    log_normal = -0.5 * noise**2 - math.log(std) - 0.5 * math.log(2 * math.pi)
    return (log_normal - torch.log(1 - torch.tanh(u) ** 2)).squeeze(1)


# -- losses --------------------------------------------------------------------------------


def test_actor_loss_by_hand() -> None:
    """V = 1, 2, 6 and H = 1, -1, 3 with alpha = 1/2: -(1.5 + 1.5 + 7.5) / 3."""
    value = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    entropy = torch.tensor([1.0, -1.0, 3.0], requires_grad=True)
    loss = actor_loss(value, entropy, torch.tensor(0.5))
    loss.backward()
    assert loss.item() == -3.5
    assert isinstance(value.grad, Tensor)
    assert isinstance(entropy.grad, Tensor)
    torch.testing.assert_close(value.grad, torch.full((3,), -1 / 3))
    torch.testing.assert_close(entropy.grad, torch.full((3,), -1 / 6))


def test_temperature_loss_by_hand() -> None:
    """mean(H) = 1, target -2, log alpha = 1/2: 1.5, with gradient 3: alpha goes down."""
    log_alpha = torch.tensor(0.5, requires_grad=True)
    loss = temperature_loss(log_alpha, torch.tensor([0.0, 2.0]), -2.0)
    loss.backward()
    assert loss.item() == 1.5
    assert isinstance(log_alpha.grad, Tensor)
    assert log_alpha.grad.item() == 3.0


# -- the update ----------------------------------------------------------------------------


def test_update_by_hand_without_entropy() -> None:
    """With alpha = 0: min Q' = min(s'_0 + 2 s'_1, 2 s'_0 + s'_1) + 2.

    y_0 = 1 (terminated); y_1 = 2 + (2 + 2) / 2 = 4; y_2 = 7 + (4 + 2) / 8 = 7.75
    Q_1 = 1 + 2 = 3, 2 - 2 = 0, 3 + 4 = 7; Q_2 = 2 + 2 = 4, 1 - 2 = -1, 7
    |Q_1 - y| = 2, 4, 0.75; |Q_2 - y| = 3, 5, 0.75
    actor: min Q(s, 1/2) = min(3, 4), min(4, 3), 5; the mean is 11 / 3
    """
    algorithm = certain(alpha=0.0)
    metrics = algorithm.update(three_rows())
    torch.testing.assert_close(metrics["priority"], torch.tensor([2.5, 4.5, 0.75]))
    squares = 4 + 16 + 0.5625 + 9 + 25 + 0.5625
    assert metrics["critic_loss"].item() == pytest.approx(squares / 6, rel=1e-5)
    assert metrics["actor_loss"].item() == pytest.approx(-11 / 3, rel=1e-5)
    assert metrics["alpha"].item() == 0.0
    assert set(metrics) == {*algorithm.metric_names, "priority"}
    assert not any(value.requires_grad for value in metrics.values())


@pytest.mark.parametrize(("settings", "counted"), [({}, 1.0), ({"backup_entropy": False}, 0.0)])
def test_update_by_hand_with_entropy(settings: dict[str, Any], counted: float) -> None:
    """The same with alpha = 1/4, and -alpha log pi of the drawn action in y, written out.

    Without backup_entropy y has none; the actor's loss has it still.

    The spread is exp(-20), so that the action is 1/2 and Q is as before, while
    log pi = -e^2 / 2 + 20 - log(2 pi) / 2 - log(3 / 4) for the drawn noise e.
    """
    algorithm = certain(alpha=0.25, **settings)
    generator = torch.Generator().manual_seed(0)
    u = torch.full((3, 1), math.atanh(0.5))
    first = density(torch.randn((3, 1), generator=generator), SMALL, u)
    second = density(torch.randn((3, 1), generator=generator), SMALL, u)
    discount = torch.tensor([0.0, 0.5, 0.125])
    y = torch.tensor([1.0, 2.0, 7.0])
    y += discount * (torch.tensor([0.0, 4.0, 6.0]) - counted * 0.25 * first)
    values = torch.tensor([[3.0, 0.0, 7.0], [4.0, -1.0, 7.0]])
    metrics = algorithm.update(three_rows())
    torch.testing.assert_close(metrics["priority"], (values - y).abs().mean(dim=0))
    assert metrics["alpha"].item() == pytest.approx(0.25)
    expected = (0.25 * second - torch.tensor([3.0, 3.0, 5.0])).mean()
    assert metrics["actor_loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["entropy"].item() == pytest.approx(-second.mean().item(), rel=1e-4)


def test_the_density_is_that_of_the_kept_action_not_of_the_scaled_one() -> None:
    """Bounds of +-2 or +-200 must not change log pi (and the target entropy is -dim(A))."""
    losses = []
    for bound in (2.0, 200.0):
        torch.manual_seed(0)
        space = spaces.Box(-bound, bound, (1,))
        algorithm = SAC.make(OBS, space, SACConfig(), hidden_sizes=(8,))
        assert algorithm.target_entropy == -1.0
        losses.append(algorithm.update(random_batch(0))["actor_loss"].item())
    assert losses[0] == losses[1]


def test_alpha_falls_with_entropy_to_spare_and_rises_without() -> None:
    """Adam's first steps move log alpha by the step size, whatever the gradient's length."""
    for target_entropy, direction in ((-50.0, -1.0), (50.0, 1.0)):
        algorithm = made(target_entropy=target_entropy, alpha_learning_rate=0.01)
        assert algorithm.alpha().item() == 1.0
        algorithm.update(random_batch(0))
        assert math.log(algorithm.alpha().item()) == pytest.approx(0.01 * direction, rel=1e-3)


def test_a_fixed_alpha_stays() -> None:
    algorithm = made(alpha=0.2)
    for i in range(3):
        metrics = algorithm.update(random_batch(i))
        assert metrics["alpha"].item() == pytest.approx(0.2)
    assert "alpha_optimizer" not in algorithm.state_dict()


def test_the_actor_loss_gives_critics_no_gradient() -> None:
    algorithm = made()
    critic = copy.deepcopy(algorithm.critic.state_dict())
    algorithm._update_actor(three_rows()["obs"], algorithm.alpha(), algorithm.draw_noise(3))
    assert all(p.grad is None for p in algorithm.critic.parameters())
    assert all(mean.abs().max() > 0 for mean in algorithm.actor_optimizer.first)
    assert_same(dict(algorithm.critic.state_dict()), dict(critic))


def test_a_subset_makes_the_target_and_the_mean_of_all_the_actor() -> None:
    """Five constant critics 1, ..., 5 and subsets of two: y = R + discount * the lesser one.

    The lesser of two out of five is 1 with probability 4/10, 2: 3/10, 3: 2/10, 4: 1/10; to
    3 standard errors (0.06) of 600 draws. The actor sees the mean, 3.
    """
    actor = make_actor(SquashedGaussianActor, OBS, ACT, hidden_sizes=(4,))
    critic = linear_critic([[0.0] * 3] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    config = SACConfig(num_critics=5, critic_subset=2, alpha=0.0, learning_rate=1e-9)
    algorithm = SAC(actor, critic, config, seed=0)
    rows = three_rows()
    counts = torch.zeros(5)
    for _ in range(600):
        members = algorithm._subset()
        assert isinstance(members, Tensor)
        assert len(members.unique()) == 2
        with torch.no_grad():
            value, _ = algorithm._policy_terms(
                rows["next_obs"], algorithm.target, members, algorithm.draw_noise(3), average=False
            )
        assert value.unique().numel() == 1
        counts[int(value[0])] += 1
    share = counts[1:] / 600
    torch.testing.assert_close(share, torch.tensor([0.4, 0.3, 0.2, 0.1]), atol=0.06, rtol=0)
    assert algorithm.update(rows)["actor_loss"].item() == pytest.approx(-3.0)


@pytest.mark.parametrize(
    ("settings", "worth"),
    [
        ({}, 11 / 3),  # as in test_update_by_hand_without_entropy
        ({"actor_follows": "min"}, 11 / 3),
        ({"actor_follows": "mean"}, 4.0),  # DroQ
        ({"critic_subset": 1}, 4.0),  # REDQ
        ({"critic_subset": 1, "actor_follows": "min"}, 11 / 3),
    ],
)
def test_the_actor_follows_the_minimum_or_the_mean(settings: dict[str, Any], worth: float) -> None:
    """At a = 1/2: Q_1 = 3, 4, 5 and Q_2 = 4, 3, 5; the minima 3, 3, 5, the means 3.5, 3.5, 5.

    Their means over the rows are 11/3 and 4. Hiraoka et al. 2022, algorithm 2, line 11: the actor
    of DroQ follows the mean, though no subset is drawn.
    """
    metrics = certain(alpha=0.0, **settings).update(three_rows())
    assert metrics["actor_loss"].item() == pytest.approx(-worth, rel=1e-5)


def test_actor_and_target_wait_for_their_intervals() -> None:
    algorithm = made(actor_update_interval=3, target_update_interval=2)
    assert_same(dict(algorithm.target.state_dict()), dict(algorithm.critic.state_dict()))
    states = [copy.deepcopy(algorithm.state_dict())]
    for i in range(3):
        algorithm.update(random_batch(i))
        states.append(copy.deepcopy(algorithm.state_dict()))

    def steps_that_moved(name: str) -> list[int]:
        return [i for i in (1, 2, 3) if moved(states[i - 1][name], states[i][name]) > 0]

    assert steps_that_moved("critic") == [1, 2, 3]
    assert steps_that_moved("target") == [2]
    assert steps_that_moved("policy") == [3]
    alphas = [float(state["log_alpha"]) for state in states]
    assert alphas[:3] == [0.0, 0.0, 0.0]
    assert alphas[3] != 0.0
    assert algorithm.optimizer_steps() == 3


def test_target_starts_equal_and_follows_by_tau() -> None:
    algorithm = made(tau=0.25)
    assert not any(p.requires_grad for p in algorithm.target.parameters())
    start = copy.deepcopy(algorithm.critic.state_dict())
    assert_same(dict(algorithm.target.state_dict()), dict(start))
    algorithm.update(random_batch(0))
    for name, value in algorithm.target.state_dict().items():
        expected = 0.75 * start[name] + 0.25 * algorithm.critic.state_dict()[name]
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("part", ["policy", "critic", "log_alpha"])
def test_each_learning_rate_is_used_and_scheduled(part: str) -> None:
    """Adam's first step moves each parameter by its step size; the schedule halves all."""
    settings: dict[str, Any] = {
        {
            "policy": "actor_learning_rate",
            "critic": "critic_learning_rate",
            "log_alpha": "alpha_learning_rate",
        }[part]: 0.03
    }
    algorithm = made(learning_rate=1e-3, **settings)
    algorithm.set_hyperparameters({"learning_rate": 5e-4})
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.update(random_batch(0))
    after = algorithm.state_dict()
    change = {name: moved(before[name], after[name]) for name in ("policy", "critic")}
    change["log_alpha"] = abs(float(after["log_alpha"] - before["log_alpha"]))
    for name, value in change.items():
        assert value == pytest.approx(0.015 if name == part else 5e-4, rel=0.02)


@pytest.mark.parametrize(
    ("action_space", "settings"),
    [
        (ACT, {}),
        (ACT, {"alpha": 0.2}),
        (ACT, {"num_critics": 5, "critic_subset": 2, "actor_update_interval": 2}),
        (CHOICES, {"target_update_interval": 2}),
        (CHOICES, {"critic_layer_norm": True}),
    ],
)
def test_state_round_trip_is_exact(action_space: Any, settings: dict[str, Any]) -> None:
    choices = 2 if action_space is CHOICES else 0
    batches = [random_batch(i, choices=choices) for i in range(6)]
    assert_round_trip(lambda seed: made(seed, action_space, **settings), batches)


def test_droq_settings_reach_the_critics() -> None:
    algorithm = made(critic_dropout=0.5, critic_layer_norm=True)
    obs, action = torch.randn(4, 2), torch.randn(4, 1)
    assert not torch.equal(algorithm.critic(obs, action), algorithm.critic(obs, action))
    assert not torch.equal(algorithm.target(obs, action), algorithm.target(obs, action))
    assert len(algorithm.critic.ensemble.norm_weights) == 1
    algorithm.update(random_batch(0))


# -- discrete actions ----------------------------------------------------------------------


def discrete(**settings: Any) -> SAC:
    """pi = (3/4, 1/4) everywhere, Q_1 = (4, 2), Q_2 = (1, 8)."""
    actor = make_actor(CategoricalActor, OBS, CHOICES, hidden_sizes=(4,))
    set_head(actor, [math.log(3.0), 0.0])
    config = SACConfig(learning_rate=1e-9, **settings)
    return DiscreteSAC(actor, choice_critic([[4.0, 2.0], [1.0, 8.0]]), config, seed=0)


@pytest.mark.parametrize(
    ("settings", "counted"),
    [({}, 0.0), ({"backup_entropy": False}, 0.0), ({"backup_entropy": True}, 1.0)],
)
def test_discrete_update_by_hand(settings: dict[str, Any], counted: float) -> None:
    """pi = (3/4, 1/4), Q_1 = (4, 2), Q_2 = (1, 8), alpha = 1/2.

    The minimum by choice is (1, 2), not one critic's row: sum pi Q = 3/4 + 2/4 = 5/4
    H = -3/4 log(3/4) - 1/4 log(1/4) = 0.562335
    V is 5/4, or 5/4 + H / 2 = 1.531168 with backup_entropy
    y = 1; 2 + V / 2; 7 + V / 8; actions 0, 1, 0: Q_1 = 4, 2, 4; Q_2 = 1, 8, 1
    actor loss = -1.531168 either way
    """
    algorithm = discrete(alpha=0.5, **settings)
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    value = 1.25 + counted * 0.5 * entropy
    y = torch.tensor([1.0, 2.0 + value / 2, 7.0 + value / 8])
    values = torch.tensor([[4.0, 2.0, 4.0], [1.0, 8.0, 1.0]])
    metrics = algorithm.update(three_rows(action=torch.tensor([0, 1, 0])))
    torch.testing.assert_close(metrics["priority"], (values - y).abs().mean(dim=0))
    loss = 0.5 * (values - y).square().sum(dim=0).mean()
    torch.testing.assert_close(metrics["critic_loss"], loss)
    assert metrics["actor_loss"].item() == pytest.approx(-1.25 - 0.5 * entropy, rel=1e-5)
    assert metrics["entropy"].item() == pytest.approx(entropy, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "best"), [({}, "end"), ({"backup_entropy": True}, "wait")], ids=["without", "with"]
)
def test_an_entropy_in_the_target_pays_for_staying_alive(
    settings: dict[str, Any], best: str
) -> None:
    """One state; "end" pays 1 and ends, "wait" pays nothing; discount 0.9, alpha 1/2.

    Without the entropy Q(wait) = 0.9 V <= 0.9 < Q(end) = 1. With it and both equally likely,
    V = (1/2 + log(2) / 2) / (1 - 0.45) = 1.54, so Q(wait) = 1.39 > 1: the policy waits for good.
    """
    torch.manual_seed(0)
    config = SACConfig(alpha=0.5, tau=0.1, learning_rate=1e-2, **settings)
    algorithm = SAC.make(OBS, CHOICES, config, hidden_sizes=(8,))
    rows = TensorDict(
        {
            "obs": torch.ones(2, 2),
            "action": torch.tensor([0, 1]),
            "reward": torch.tensor([1.0, 0.0]),
            "discount": torch.tensor([0.0, 0.9]),
            "num_steps": torch.ones(2, dtype=torch.int64),
            "next_obs": torch.ones(2, 2),
            "weight": torch.ones(2),
        },
        batch_size=2,
    )
    for _ in range(400):
        algorithm.update(rows)
    likely = algorithm.policy.distribution(rows["obs"]).log_probs[0].argmax()
    assert ("end", "wait")[int(likely)] == best


def test_discrete_target_entropy_is_a_share_of_the_largest() -> None:
    assert discrete().target_entropy == pytest.approx(0.5 * math.log(2))
    assert discrete(target_entropy_scale=0.98).target_entropy == pytest.approx(0.98 * math.log(2))
    assert discrete(target_entropy=0.1).target_entropy == 0.1


def test_the_default_leaves_one_of_two_choices_preferred() -> None:
    """H(0.89) = 0.3466 = log(2) / 2 is reached with a clear preference.

    H(0.583) = 0.98 log 2, the share of the paper, is nearly a coin: with it CartPole unlearned
    what it had learned, and the temperature went on rising.
    """
    preferred = 0.89
    entropy = -preferred * math.log(preferred) - 0.11 * math.log(0.11)
    assert discrete().target_entropy == pytest.approx(entropy, abs=2e-3)


def masked(masks: list[list[int]], **settings: Any) -> tuple[SAC, TensorDict]:
    """SAC for as many choices as the masks have, and one row for each mask."""
    count = len(masks[0])
    space = spaces.Dict(action_mask=spaces.MultiBinary(count), x=OBS)
    torch.manual_seed(0)
    algorithm = SAC.make(space, spaces.Discrete(count), SACConfig(**settings), hidden_sizes=(8,))
    rows = three_rows(action=torch.zeros(3, dtype=torch.int64))
    mask = torch.tensor(masks, dtype=torch.int8)
    for name in ("obs", "next_obs"):
        rows[name] = TensorDict({"x": rows[name], "action_mask": mask}, batch_size=3)
    return algorithm, rows


def temperature_gradient(algorithm: SAC) -> float:
    """Of the first update: Adam's mean of gradients is a tenth of it."""
    assert algorithm.alpha_optimizer is not None
    return float(algorithm.alpha_optimizer.first[0]) / 0.1


def test_forbidden_choices_count_in_no_target_entropy() -> None:
    """Scale 1/2 of 4, 2 and 1 allowed choices: (log 4 + log 2 + 0) / 2 / 3 = log(2) / 2.

    Of all choices it would be log(4) / 2, which the rows with 2 and 1 cannot reach. The policy is
    uniform over what is allowed: H = log 4, log 2, 0, whose mean is log 2. With log alpha = -2 the
    temperature's gradient is log 2 - log(2) / 2.
    """
    masks = [[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0]]
    algorithm, rows = masked(masks, target_entropy_scale=0.5, initial_alpha=math.exp(-2.0))
    set_head(algorithm.policy, [0.0] * 4)
    metrics = algorithm.update(rows)
    assert metrics["entropy"].item() == pytest.approx(math.log(2), rel=1e-5)
    assert temperature_gradient(algorithm) == pytest.approx(0.5 * math.log(2), rel=1e-5)


def test_alpha_does_not_run_away_where_choices_are_forbidden() -> None:
    """Two of eight choices allowed: 0.98 log 8 = 2.04 is out of reach of log 2 = 0.69.

    Against that target alpha rises with every step. Entropy above 0.98 log 2 lowers it.
    """
    settings = {"target_entropy_scale": 0.98, "learning_rate": 1e-2}
    algorithm, rows = masked([[1, 1, 0, 0, 0, 0, 0, 0]] * 3, **settings)
    set_head(algorithm.policy, [0.0] * 8)
    for _ in range(20):
        metrics = algorithm.update(rows)
    assert metrics["alpha"].item() < 1.0


def test_a_mask_that_allows_nothing_counts_as_one_that_allows_all() -> None:
    """Uniform over four choices: H = log 4 in every row, and the target is log(4) / 2."""
    algorithm, rows = masked([[0, 0, 0, 0]] * 3, target_entropy_scale=0.5)
    metrics = algorithm.update(rows)
    assert metrics["entropy"].item() == pytest.approx(math.log(4), rel=1e-5)
    assert temperature_gradient(algorithm) == pytest.approx(0.5 * math.log(4), rel=1e-5)


def test_a_target_entropy_that_was_given_is_kept_with_masks() -> None:
    """H = 0 with one allowed choice, target 1/4: the temperature's gradient is -1/4."""
    algorithm, rows = masked([[1, 0, 0, 0]] * 3, target_entropy=0.25)
    algorithm.update(rows)
    assert temperature_gradient(algorithm) == pytest.approx(-0.25)


def test_masked_choices_count_in_no_expectation() -> None:
    """Choice 1, worth 1000, is not allowed: V = Q(choice 0) and H = 0, with finite gradient."""
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), x=OBS)
    torch.manual_seed(0)
    config = SACConfig(learning_rate=1e-3, alpha=50.0)
    algorithm = SAC.make(space, CHOICES, config, hidden_sizes=(8,))
    with torch.no_grad():
        for network in (algorithm.critic, algorithm.target):
            network.ensemble.weights[-1].zero_()
            network.ensemble.biases[-1].copy_(torch.tensor([1.0, 1000.0]))
    rows = three_rows(action=torch.zeros(3, dtype=torch.int64))
    mask = torch.tensor([[1, 0]], dtype=torch.int8).expand(3, 2)
    for name in ("obs", "next_obs"):
        rows[name] = TensorDict({"x": rows[name], "action_mask": mask}, batch_size=3)
    metrics = algorithm.update(rows)
    # y = 1, 2 + 1/2, 7 + 1/8 and Q = 1
    torch.testing.assert_close(metrics["priority"], torch.tensor([0.0, 1.5, 6.125]))
    assert metrics["entropy"].item() == 0.0
    assert metrics["actor_loss"].item() == pytest.approx(-1.0, abs=0.1)
    assert all(torch.isfinite(p).all() for p in algorithm.policy.parameters())


# -- making --------------------------------------------------------------------------------


@pytest.mark.parametrize("action_space", [ACT, CHOICES])
def test_make_policy_fits_what_was_saved(action_space: Any) -> None:
    algorithm = made(0, action_space)
    policy = SAC.make_policy(OBS, action_space, algorithm.config, hidden_sizes=(8,))
    policy.load_state_dict(algorithm.state_dict()["policy"])
    obs = torch.randn(3, 2)
    torch.testing.assert_close(policy.act(obs, {}).action, algorithm.policy.act(obs, {}).action)


def test_conditioning() -> None:
    algorithm = made(learning_starts=10)
    assert algorithm.conditioning(9, 100, 2)["random"].tolist() == [True, True]
    assert algorithm.conditioning(10, 100, 2)["random"].tolist() == [False, False]


def test_wrong_spaces_and_settings_are_refused() -> None:
    with pytest.raises(SpaceError, match="sac needs a Box or Discrete action space, got Multi"):
        SAC.make(OBS, spaces.MultiBinary(3), SACConfig())
    with pytest.raises(SpaceError, match="infinite bound"):
        SAC.make(OBS, spaces.Box(-math.inf, math.inf, (1,)), SACConfig())
    with pytest.raises(ConfigError, match="core='lstm' is not for sac"):
        SAC.make(OBS, ACT, SACConfig(), core="lstm")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_critics": 2, "critic_subset": 3}, "critic_subset=3"),
        ({"critic_dropout": 1.0}, "critic_dropout"),
        ({"alpha": -0.1}, "alpha"),
        ({"initial_alpha": 0.0}, "initial_alpha"),
        ({"actor_update_interval": 0}, "actor_update_interval"),
        ({"gamma": 1.5}, "gamma"),
    ],
)
def test_bad_hyperparameters_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SACConfig(**settings)


def test_a_fixed_alpha_is_that_of_the_config_when_a_run_goes_on() -> None:
    """As after --resume RUN --set alpha=0.2, which had no effect."""
    for before in (0.1, None):
        later = made(alpha=0.2)
        later.load_state_dict(made(alpha=before).state_dict())
        assert float(later.state_dict()["log_alpha"].exp()) == pytest.approx(0.2)
    learned = made(alpha=None)
    learned.load_state_dict(made(alpha=None, initial_alpha=3.0).state_dict())
    assert float(learned.state_dict()["log_alpha"].exp()) == pytest.approx(3.0)


@pytest.mark.parametrize(("fixed", "begins_at"), [(0.25, 0.25), (0.0, 2.0)])
def test_a_temperature_that_was_fixed_is_learned_from_there_on(
    fixed: float, begins_at: float
) -> None:
    """No step changes the logarithm of 0, so that begins with initial_alpha.

    Adam's first step is as long as its rate, whatever the gradient: 0.1 to log alpha, up or down.
    """
    before = made(alpha=fixed)
    before.update(random_batch(1))
    state = before.state_dict()
    learner = made(initial_alpha=2.0, alpha_learning_rate=0.1)
    learner.load_state_dict(state)
    assert float(learner.alpha()) == pytest.approx(begins_at)
    learner.update(random_batch(1))
    step = math.log(float(learner.alpha()) / begins_at)
    assert abs(step) == pytest.approx(0.1, rel=1e-3)
