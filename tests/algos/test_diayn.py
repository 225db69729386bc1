"""DIAYN: its losses by hand, what it gives to SAC, its skills, saving."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from redline.algos.diayn import DIAYN, DIAYNConfig, discriminator_loss, skill_reward
from redline.errors import ConfigError
from redline.models import ObservationEncoder
from redline.policies.skills import joined
from tests.algos.off_policy_batches import ACT, OBS, assert_round_trip, random_batch

LOG = math.log


def config(**settings: Any) -> DIAYNConfig:
    return DIAYNConfig(**({"num_skills": 4, "batch_size": 8, "num_envs": 3} | settings))


def made(seed: int = 0, **settings: Any) -> DIAYN:
    return DIAYN.make(OBS, ACT, config(**settings), seed=seed, hidden_sizes=(8,))


def skilled_batch(seed: int, size: int = 16, num_skills: int = 4) -> TensorDict:
    batch = random_batch(seed, size)
    generator = torch.Generator().manual_seed(seed)
    batch["skill"] = torch.randint(num_skills, (size,), generator=generator).float()
    return batch


def test_loss_and_reward_by_hand() -> None:
    """q = (1/4, 3/4) and (1/2, 1/2), skills 1 and 0, weights 1 and 3, K = 2.

    loss = -(log 3/4 + 3 log 1/2) / 2;  r = log 3/4 + log 2 and log 1/2 + log 2 = 0
    """
    logits = torch.tensor([[0.0, LOG(3)], [5.0, 5.0]])
    skill = torch.tensor([1, 0])
    loss = discriminator_loss(logits, skill, torch.tensor([1.0, 3.0]))
    assert loss.item() == pytest.approx(-(LOG(3 / 4) + 3 * LOG(1 / 2)) / 2)
    assert skill_reward(logits, skill).tolist() == pytest.approx([LOG(1.5), 0.0], abs=1e-6)


def test_sac_learns_from_the_discriminators_reward_and_never_sees_the_environments() -> None:
    """Reward, observations and skills as they reach SAC; r_z is of before the step."""
    diayn = made()
    with torch.no_grad():
        # Logits 0 whatever the observation, but log 5 for skill 2: q = 1/8, 1/8, 5/8, 1/8.
        diayn.discriminator.head.weight.zero_()
        diayn.discriminator.head.bias.copy_(torch.tensor([0.0, 0.0, LOG(5), 0.0]))
    received: list[Any] = []
    update = diayn.sac.update
    diayn.sac.update = lambda batch: received.append(batch) or update(batch)  # type: ignore[method-assign]
    batch = skilled_batch(0, 4)
    batch["skill"] = torch.tensor([2.0, 0.0, 2.0, 3.0])
    batch["reward"].fill_(torch.nan)
    metrics = diayn.update(batch)
    (given,) = received
    expected = [LOG(5 / 8) + LOG(4), LOG(1 / 8) + LOG(4)]
    assert given["reward"].tolist() == pytest.approx(
        [expected[0], expected[1], expected[0], expected[1]], abs=1e-5
    )
    assert given["obs", "skill"].tolist() == given["next_obs", "skill"].tolist() == [2, 0, 2, 3]
    assert torch.equal(given["obs", "observation"], batch["obs"])
    assert torch.equal(given["next_obs", "observation"], batch["next_obs"])
    assert torch.equal(given["discount"], batch["discount"])
    assert metrics["discriminator_accuracy"].item() == 0.5
    assert metrics["skill_reward"].item() == pytest.approx(sum(expected) / 2, abs=1e-5)
    assert all(metrics[name].isfinite() for name in DIAYN.metric_names)
    assert diayn.discriminator.head.bias[2].item() != pytest.approx(LOG(5), abs=1e-6)


def test_the_discriminator_learns_which_skill_led_where() -> None:
    diayn = made(learning_rate=0.05)
    for seed in range(120):
        batch = skilled_batch(seed, 32)
        angle = batch["skill"] * (math.pi / 2)
        batch["next_obs"] = torch.stack([angle.cos(), angle.sin()], dim=1)
        metrics = diayn.update(batch)
    assert metrics["discriminator_accuracy"].item() == 1.0
    assert metrics["skill_reward"].item() == pytest.approx(LOG(4), abs=0.2)


def test_a_skill_lasts_for_its_length_and_depends_on_nothing_but_seed_place_and_time() -> None:
    def skills(env_steps: int, num_envs: int = 3, seed: int = 0) -> list[int]:
        return made(seed, skill_length=10).conditioning(env_steps, 1000, num_envs)["skill"].tolist()

    assert skills(0) == skills(27) != skills(30)  # 27 = 3 environments of 9 steps
    assert skills(10 * 5, 5)[:3] == skills(10 * 3)
    assert skills(0) != skills(0, seed=1)
    drawn = {z for period in range(30) for z in skills(30 * period)}
    assert drawn == {0, 1, 2, 3}


def test_actions_are_uniform_until_learning_starts() -> None:
    diayn = made(learning_starts=100)
    for env_steps, expected in ((0, True), (99, True), (100, False)):
        assert diayn.conditioning(env_steps, 1000, 3)["random"].tolist() == [expected] * 3
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(diayn.policy.draw_noise(rng, 3))
    output = diayn.policy.act(torch.zeros(3, 2), {}, noise, diayn.conditioning(0, 1000, 3))
    torch.testing.assert_close(output.action, torch.erf(noise * 0.5**0.5))


def test_saved_and_loaded_it_goes_on_to_the_bit() -> None:
    assert_round_trip(made, [skilled_batch(seed) for seed in range(6)])


def test_nested_observations_and_discrete_actions() -> None:
    space = spaces.Dict(x=OBS, action_mask=spaces.MultiBinary(3))
    diayn = DIAYN.make(space, spaces.Discrete(3), config(), seed=0, hidden_sizes=(8,))
    batch = skilled_batch(0)
    size = batch.batch_size
    allowed = torch.tensor([1, 1, 0], dtype=torch.int8).expand(*size, 3)
    for name in ("obs", "next_obs"):
        nested = TensorDict({"x": batch[name], "action_mask": allowed}, batch_size=size)
        batch.set(name, nested)
    batch["action"] = torch.zeros(size, dtype=torch.int64)
    assert all(value.isfinite().all() for value in diayn.update(batch).values())
    state = diayn.conditioning(10**6, 10**6, 16)
    acted = diayn.policy.act(batch["obs"], {}, None, state).action
    assert set(acted.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_skills": 1}, "num_skills=1"),
        ({"n_step": 3}, "n_step=3"),
        ({"skill_length": 0}, "skill_length=0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


class OwnNetwork(nn.Module):
    """As for the environment's own Box, which the documentation shows."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 5)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.layer(obs))


class OwnNetworkOfDict(nn.Module):
    """Likewise, for a Dict; it refuses entries that it does not know."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        assert list(space.spaces) == ["observation"]
        self.layer = nn.Linear(space["observation"].shape[0], 5)

    def forward(self, obs: Any) -> Tensor:
        return torch.tanh(self.layer(obs["observation"]))


@pytest.mark.parametrize(
    ("space", "network"),
    [(OBS, OwnNetwork), (spaces.Dict(observation=OBS), OwnNetworkOfDict)],
)
def test_a_network_for_the_environments_observations_gets_the_skill_beside(
    space: Any, network: Any
) -> None:
    """5 features and 4 skills: its first layer after them has 9 inputs."""
    diayn = DIAYN.make(space, ACT, config(), hidden_sizes=(8,), encoder=network)
    actor: Any = diayn.policy.policy
    assert type(actor.torso.torso) is network
    assert type(diayn.discriminator.torso) is network
    plain = torch.tensor([[0.5, -1.0], [0.5, -1.0]])
    obs: Any = plain if space is OBS else {"observation": plain}
    skill = torch.tensor([1, 3])
    features = actor.torso(joined(obs, skill, space is not OBS))
    assert features.shape == (2, 9)
    assert features[:, 5:].tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert torch.equal(features[0, :5], features[1, :5])
    batch = skilled_batch(0)
    if space is not OBS:
        rows = batch.batch_size
        for name in ("obs", "next_obs"):
            batch[name] = TensorDict({"observation": batch[name]}, batch_size=rows)
    metrics = diayn.update(batch)
    assert all(metrics[name].isfinite() for name in DIAYN.metric_names)


def test_a_network_that_takes_the_skill_is_given_it() -> None:
    """As runs that were saved have it."""

    def network(space: Any) -> nn.Module:
        return ObservationEncoder(space)

    actor: Any = DIAYN.make(OBS, ACT, config(), hidden_sizes=(8,), encoder=network).policy.policy
    assert type(actor.torso) is ObservationEncoder
    assert actor.torso.out_features == 2 + 4


def test_a_network_that_fails_says_so_of_the_environments_observations() -> None:
    with pytest.raises(ConfigError, match=r"fails on 2 observations of Box\("):
        DIAYN.make(OBS, ACT, config(), encoder=lambda _: nn.Linear(7, 3))
