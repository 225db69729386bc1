"""Losses, targets and gradients of scripts/ are the library's, on the same batch and weights.

Tolerances: the same sums in another order, in float32, so 1e-5 relative and 1e-6 absolute.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos import a2c, critics, ddpg, ppo, sac, td3
from redline.algos.algorithm import normalized
from redline.algos.distributional import project_categorical
from redline.algos.dqn import DQN, DQNConfig
from redline.algos.r2d1 import R2D1, R2D1Config
from redline.algos.sac import SACConfig
from redline.algos.td3 import TD3Config
from redline.data import SequenceBatch, masked_mean
from redline.returns import discounted_return, gae, rescale, unrescale
from tests.parity.single_file import (
    copy_in_order,
    copy_recurrent,
    copy_twins,
    in_library_order,
    load,
    twin_gradients,
)

OBS, ACTION, CHOICES, ROWS, GAMMA = 5, 2, 3, 12, 0.9
OBS_SPACE = spaces.Box(-1.0, 1.0, (OBS,), np.float32)
NETWORK: dict[str, Any] = {"hidden_sizes": (8, 8), "activation": "relu"}


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def gradients(parameters: Iterable[Tensor]) -> list[Any]:
    return [parameter.grad for parameter in parameters]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


def terminations() -> Tensor:
    """Some rows terminate; the others, truncated or not, bootstrap."""
    return (torch.arange(ROWS) % 4 == 1).float()


def continuous_batch(module: Any) -> tuple[Any, TensorDict]:
    """A batch of the program, and the same of the library."""
    replay = module.Replay(ROWS, OBS, ACTION, "cpu")
    replay.rows.normal_()
    replay.rows[:, OBS + ACTION + 1] = terminations()
    batch = replay.batch(torch.arange(ROWS))
    own = {
        "obs": batch.obs,
        "action": batch.obs_action[:, OBS:],
        "reward": batch.reward,
        "discount": GAMMA * (1.0 - batch.terminated),
        "next_obs": batch.next_obs,
        "weight": torch.ones(ROWS),
    }
    return batch, TensorDict(own, [ROWS])


@pytest.mark.parametrize("log_std_bias", [0.0, -40.0, 8.0])
def test_sac(log_std_bias: float) -> None:
    """Also where the log standard deviation is clamped, at either end."""
    module = load("sac_continuous")
    actor, critic = module.Actor(OBS, ACTION, 8), module.TwinCritic(OBS, ACTION, 8)
    target = module.TwinCritic(OBS, ACTION, 8).requires_grad_(False)
    with torch.no_grad():
        actor.net.last.bias[ACTION:] += log_std_bias
    box = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
    own = sac.SAC.make(OBS_SPACE, box, SACConfig(), **NETWORK)
    copy_in_order(actor.parameters(), own.policy.parameters())
    copy_twins(critic, own.critic)
    copy_twins(target, own.target)
    batch, own_batch = continuous_batch(module)
    noise, alpha = torch.randn(2, ROWS, ACTION), torch.tensor(0.3)

    loss = module.critic_loss(actor, critic, target, alpha, batch, noise[0], GAMMA)
    with torch.no_grad():
        action, log_prob = own.policy.sample(batch.next_obs, noise[0])
        soft_value = own.target(batch.next_obs, action).amin(dim=0) - alpha * log_prob
        y = critics.bootstrapped(own_batch["reward"], own_batch["discount"], soft_value)
    values = own.critic(own_batch["obs"], own_batch["action"])
    expected, _ = critics.critic_loss(values, y, own_batch["weight"])
    assert_close(loss, expected)
    expected.backward()
    assert_close(
        list(torch.autograd.grad(loss, critic.parameters())), twin_gradients(own.critic.ensemble)
    )

    loss, entropy = module.actor_loss(actor, critic, alpha, batch.obs, noise[1])
    action, log_prob = own.policy.sample(batch.obs, noise[1])
    value = own.critic(batch.obs, action).amin(dim=0)
    expected = sac.actor_loss(value, -log_prob, alpha)
    assert_close(loss, expected)
    assert_close(entropy, -log_prob.mean().detach())
    expected.backward(inputs=list(own.policy.parameters()))
    assert_close(
        list(torch.autograd.grad(loss, actor.parameters())), gradients(own.policy.parameters())
    )
    log_alpha = torch.tensor(-0.7)
    assert_close(
        module.temperature_loss(log_alpha, entropy, -2.0),
        sac.temperature_loss(log_alpha, -log_prob.detach(), -2.0),
    )


def test_a_whole_update_of_sac() -> None:
    """Three updates against the library's losses, torch's Adam and a target moved by hand."""
    module = load("sac_continuous")
    args = module.Args(batch_size=ROWS, gamma=GAMMA, tau=0.1)
    actor, critic = module.Actor(OBS, ACTION, 8), module.TwinCritic(OBS, ACTION, 8)
    box = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
    own = sac.SAC.make(OBS_SPACE, box, SACConfig(), **NETWORK)
    copy_in_order(actor.parameters(), own.policy.parameters())
    copy_twins(critic, own.critic)
    copy_twins(critic, own.target)
    replay = module.Replay(ROWS, OBS, ACTION, "cpu")
    replay.rows.normal_()
    replay.rows[:, OBS + ACTION + 1] = terminations()
    update = module.make_update(actor, critic, replay, args)
    log_alpha = torch.zeros((), requires_grad=True)
    adams = [
        torch.optim.Adam(parameters, lr=rate)
        for parameters, rate in (
            (own.critic.parameters(), 1e-3), (own.policy.parameters(), 3e-4), ([log_alpha], 1e-3),
        )
    ]  # fmt: skip
    batch = replay.batch(torch.arange(ROWS))
    for step in range(3):
        torch.manual_seed(step)
        update(torch.arange(ROWS))
        torch.manual_seed(step)
        noise, alpha = torch.randn(2, ROWS, ACTION), log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = own.policy.sample(batch.next_obs, noise[0])
            soft_value = own.target(batch.next_obs, action).amin(dim=0) - alpha * log_prob
            y = batch.reward + GAMMA * (1.0 - batch.terminated) * soft_value
        values = own.critic(batch.obs, batch.obs_action[:, OBS:])
        loss, _ = critics.critic_loss(values, y, torch.ones(ROWS))
        adams[0].zero_grad()
        loss.backward()
        adams[0].step()
        action, log_prob = own.policy.sample(batch.obs, noise[1])
        value = own.critic(batch.obs, action).amin(dim=0)
        adams[1].zero_grad()
        sac.actor_loss(value, -log_prob, alpha).backward()
        adams[1].step()
        adams[2].zero_grad()
        sac.temperature_loss(log_alpha, -log_prob.detach(), -float(ACTION)).backward()
        adams[2].step()
        with torch.no_grad():
            for slow, fast in zip(own.target.parameters(), own.critic.parameters(), strict=True):
                slow += 0.1 * (fast - slow)
    again = copy.deepcopy(own.critic)
    copy_twins(critic, again)
    assert_close(list(again.parameters()), list(own.critic.parameters()))
    assert_close(list(actor.parameters()), list(own.policy.parameters()))
    assert_close(update(torch.arange(ROWS))["alpha"], log_alpha.detach().exp())


def test_td3() -> None:
    module = load("td3_continuous")
    actor, critic = module.Actor(OBS, ACTION, 8), module.TwinCritic(OBS, ACTION, 8)
    target_actor, target = module.Actor(OBS, ACTION, 8), module.TwinCritic(OBS, ACTION, 8)
    box = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
    own = td3.TD3.make(OBS_SPACE, box, TD3Config(), **NETWORK)
    copy_in_order(actor.parameters(), own.policy.parameters())
    copy_in_order(target_actor.parameters(), own.target_policy.parameters())
    copy_twins(critic, own.critic)
    copy_twins(target, own.target)
    batch, own_batch = continuous_batch(module)
    unit_noise = 3.0 * torch.randn(ROWS, ACTION)

    noise = 0.2 * unit_noise
    loss = module.critic_loss(target_actor, critic, target, batch, noise, GAMMA, 0.5)
    with torch.no_grad():
        action = td3.smoothed(own.target_policy(batch.next_obs), unit_noise, 0.2, 0.5)
        next_value = own.target(batch.next_obs, action).amin(dim=0)
        y = critics.bootstrapped(own_batch["reward"], own_batch["discount"], next_value)
    values = own.critic(own_batch["obs"], own_batch["action"])
    expected, _ = critics.critic_loss(values, y, own_batch["weight"])
    assert_close(loss, expected)
    expected.backward()
    assert_close(
        list(torch.autograd.grad(loss, critic.parameters())), twin_gradients(own.critic.ensemble)
    )

    loss = module.actor_loss(actor, critic, batch.obs)
    expected = ddpg.actor_loss(own.critic(batch.obs, own.policy(batch.obs))[0])
    assert_close(loss, expected)
    expected.backward(inputs=list(own.policy.parameters()))
    assert_close(
        list(torch.autograd.grad(loss, actor.parameters())), gradients(own.policy.parameters())
    )


def q_learner(network: Any, target: Any, config: DQNConfig) -> DQN:
    """The library's, with these weights."""
    own = DQN.make(
        OBS_SPACE, spaces.Discrete(CHOICES), config, seed=0, hidden_sizes=(120, 84),
        activation="relu",
    )  # fmt: skip
    copy_in_order(network.parameters(), own.policy.parameters())
    copy_in_order(target.parameters(), own.target_policy.parameters())
    return own


def discrete_batch(module: Any) -> tuple[Any, TensorDict, Any]:
    """A batch of the program, the same of the library, and the program's replay."""
    replay = module.Replay(ROWS, OBS, "cpu")
    replay.rows.normal_()
    replay.rows[:, OBS] = torch.randint(CHOICES, (ROWS,)).float()
    replay.rows[:, OBS + 2] = terminations()
    batch = replay.batch(torch.arange(ROWS))
    own = {
        "obs": batch.obs,
        "action": batch.action,
        "reward": batch.reward,
        "discount": GAMMA * (1.0 - batch.terminated),
        "next_obs": batch.next_obs,
        "weight": torch.ones(ROWS),
    }
    return batch, TensorDict(own, [ROWS]), replay


def test_dqn() -> None:
    """Loss, gradients, and the parameters after two whole updates of either side."""
    module = load("dqn")
    network, target = module.QNetwork(OBS, CHOICES), module.QNetwork(OBS, CHOICES)
    settings = {"learning_rate": 1e-3, "adam_eps": 1e-8, "double_q": False, "n_step": 1}
    off = {"huber_threshold": None, "max_grad_norm": 0.0, "target_update_interval": 1_000}
    own = q_learner(network, target, DQNConfig(**settings, **off))
    batch, own_batch, replay = discrete_batch(module)
    loss = module.q_loss(network, target, batch, GAMMA)
    own_values = own.policy.evaluate(batch.obs).q.gather(1, batch.action[:, None]).squeeze(1)
    expected = 0.5 * (own.target(own_batch).values.squeeze(1) - own_values).square().mean()
    assert_close(loss, expected)
    expected.backward()
    assert_close(
        list(torch.autograd.grad(loss, network.parameters())), gradients(own.policy.parameters())
    )
    args = module.Args(gamma=GAMMA, learning_rate=1e-3)
    update = module.make_update(network, target, replay, args)
    for _ in range(2):
        update(torch.arange(ROWS))
        own.update(own_batch)
    assert_close(list(network.parameters()), list(own.policy.parameters()))


def test_c51() -> None:
    """Two whole updates of either side, whose loss differs by a constant only."""
    module = load("c51")
    args = module.Args(gamma=GAMMA, learning_rate=1e-3, num_atoms=7, v_min=-2.0, v_max=2.0)
    network, target = (module.QNetwork(OBS, CHOICES, args) for _ in range(2))
    settings = {"learning_rate": 1e-3, "adam_eps": 0.01 / args.batch_size, "double_q": False}
    shape = {"value_distribution": "categorical", "num_atoms": 7, "v_min": -2.0, "v_max": 2.0}
    off = {"max_grad_norm": 0.0, "target_update_interval": 1_000, "n_step": 1}
    own = q_learner(network, target, DQNConfig(**settings, **shape, **off))  # type: ignore[arg-type]
    batch, own_batch, replay = discrete_batch(module)
    wanted = own.target(own_batch)
    assert wanted.probability is not None
    y = project_categorical(wanted.values, wanted.probability, network.atoms)
    assert_close(module.project(wanted.values, wanted.probability, network.atoms), y)
    chosen = own.policy.evaluate(batch.obs).outputs[torch.arange(ROWS), batch.action]
    expected = -(y * chosen.log_softmax(dim=1)).sum(dim=1).mean()
    loss = module.c51_loss(network, target, batch, GAMMA)
    assert_close(loss, expected)
    expected.backward()
    assert_close(
        list(torch.autograd.grad(loss, network.parameters())), gradients(own.policy.parameters())
    )
    update = module.make_update(network, target, replay, args)
    for _ in range(2):
        update(torch.arange(ROWS))
        own.update(own_batch)
    assert_close(list(network.parameters()), list(own.policy.parameters()))


def test_the_projection_by_hand() -> None:
    """Atoms 0, 1, 2: 0.25 lies between two, 1 on one, 5 and -3 beyond the ends."""
    atoms = torch.tensor([0.0, 1.0, 2.0])
    values = torch.tensor([[0.25, 1.0, 5.0, -3.0]])
    mass = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    projected = load("c51").project(values, mass, torch.tensor([0.0, 1.0, 2.0, 3.0]))
    assert_close(projected, torch.tensor([[0.3 + 0.1, 0.1 + 0.3, 0.0, 0.2]]))
    three = load("c51").project(values[:, :3], mass[:, :3], atoms)
    assert_close(three, torch.tensor([[0.3, 0.1 + 0.3, 0.2]]))


def ended_rollout() -> dict[str, Any]:
    """[T, B] rows with both kinds of end, of which none is a filler."""
    rng = np.random.default_rng(5)
    shape = (7, 3)
    terminated, truncated = rng.random(shape) < 0.25, rng.random(shape) < 0.25
    numbers = {name: rng.normal(size=shape).astype(np.float32) for name in ("reward", "value")}
    next_value = rng.normal(size=shape).astype(np.float32)
    ends = terminated | truncated
    # Where the episode goes on, the successor is the next row.
    next_value[:-1] = np.where(ends[:-1], next_value[:-1], numbers["value"][1:])
    return {
        **numbers, "next_value": next_value, "terminated": terminated,
        "truncated": truncated & ~terminated,
    }  # fmt: skip


def library_gae(rows: dict[str, Any], valid: Any) -> tuple[Any, Any]:
    names = ("reward", "value", "next_value", "terminated", "truncated")
    given = [torch.from_numpy(rows[name]) for name in names]
    result = gae(*given, torch.from_numpy(valid), gamma=GAMMA, gae_lambda=0.8)
    return result[0].numpy(), result[1].numpy()


def test_gae_of_ppo_continuous() -> None:
    rows = ended_rollout()
    actual = load("ppo_continuous").gae(**rows, gamma=GAMMA, gae_lambda=0.8)
    for mine, expected in zip(actual, library_gae(rows, np.ones((7, 3), bool)), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ppo_atari_envpool", "a2c"])
def test_gae_with_filler_steps(name: str) -> None:
    """Each end is followed by a filler row, whose value the library takes as the bootstrap."""
    rng = np.random.default_rng(6)
    terminated, truncated = (rng.random((9, 4)) < 0.2 for _ in range(2))
    valid = np.ones((9, 4), bool)
    for t in range(1, 9):
        valid[t] = ~((terminated | truncated)[t - 1] & valid[t - 1])
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    truncated &= ~terminated
    value = rng.normal(size=(10, 4)).astype(np.float32)
    reward = np.where(valid, rng.normal(size=(9, 4)), 0.0).astype(np.float32)
    advantage, target = load(name).gae(
        reward, value, terminated, truncated, valid, gamma=GAMMA, gae_lambda=0.8
    )
    rows = {
        "reward": reward, "value": value[:-1], "next_value": value[1:],
        "terminated": terminated, "truncated": truncated,
    }  # fmt: skip
    expected, expected_target = library_gae(rows, valid)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.where(valid, target, 0.0), expected_target, rtol=1e-5, atol=1e-6)


def test_rewards_to_go() -> None:
    rows = ended_rollout()
    rows["truncated"][-1] |= ~rows["terminated"][-1]  # every episode is whole or cut
    names = ("reward", "next_value", "terminated", "truncated")
    actual = load("reinforce").rewards_to_go(*(rows[name] for name in names), GAMMA)
    given = [torch.from_numpy(rows[name]) for name in names]
    expected = discounted_return(*given, torch.ones(7, 3, dtype=torch.bool), gamma=GAMMA)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-5, atol=1e-6)


def numbers(count: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(ROWS) for _ in range(count))


def ppo_expected(
    log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Any, valid: Tensor, args: Any
) -> Tensor:
    advantage = normalized(batch.advantage, valid)
    policy_loss, _ = ppo.clipped_policy_loss(
        log_prob, batch.log_prob, advantage, valid, args.clip_range
    )
    value_loss = ppo.value_loss(value, batch.value, batch.value_target, valid, args.clip_range)
    entropy_bonus = args.entropy_coef * masked_mean(entropy, valid)
    return policy_loss + args.value_coef * value_loss - entropy_bonus


def test_ppo_continuous() -> None:
    """The density and the entropy are held to torch.distributions, all in float64."""
    module = load("ppo_continuous")
    agent, args = module.Agent(OBS, ACTION, 8).double(), module.Args(entropy_coef=0.02)
    with torch.no_grad():
        agent.log_std.normal_()
    obs, action = torch.randn(ROWS, OBS).double(), torch.randn(ROWS, ACTION).double()
    normal = torch.distributions.Normal(agent.mean(obs), agent.log_std.exp())
    log_prob, entropy = normal.log_prob(action).sum(1), normal.entropy().sum(1)
    old = (log_prob + 0.2 * torch.randn(ROWS)).detach()
    batch = module.Batch(obs, action, old, *(x.double() for x in numbers(3)))
    loss, _ = module.ppo_loss(agent, batch, args)
    valid = torch.ones(ROWS, dtype=torch.bool)
    expected = ppo_expected(log_prob, entropy, agent.value(obs), batch, valid, args)
    assert_close(loss, expected)
    parameters = list(agent.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_ppo_atari() -> None:
    """With rows that are not valid, whatever is in them."""
    module = load("ppo_atari_envpool")
    agent, args = module.Agent(CHOICES), module.Args()
    obs = torch.randint(0, 256, (ROWS, 4, 84, 84), dtype=torch.uint8)
    valid = torch.arange(ROWS) % 5 != 2
    action = torch.randint(CHOICES, (ROWS,))
    logits, value = agent(obs)
    policy = torch.distributions.Categorical(logits=logits)
    log_prob = policy.log_prob(action)
    old = (log_prob + 0.2 * torch.randn(ROWS)).detach()
    old[~valid] = -200.0  # the ratio, near e^200, is infinite in float32
    batch = module.Batch(obs, action, old, *numbers(3), valid.float())
    loss, _ = module.ppo_loss(agent, batch, args)
    expected = ppo_expected(log_prob, policy.entropy(), value, batch, valid, args)
    assert_close(loss, expected)
    parameters = list(agent.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def test_the_atari_network_sees_pixels_divided_by_255() -> None:
    """Whatever the layout in memory."""
    agent = load("ppo_atari_envpool").Agent(CHOICES)
    obs = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    x = obs / 255.0
    for conv in agent.convs:
        x = conv(x).relu()
    x = agent.dense(x.flatten(1)).relu()
    assert_close(agent(obs), (agent.policy(x), agent.critic(x).squeeze(1)))
    assert_close(agent(obs.contiguous(memory_format=torch.channels_last)), agent(obs))


@pytest.mark.parametrize("name", ["a2c", "reinforce"])
def test_policy_gradient(name: str) -> None:
    """With rows that are not valid, whatever is in them."""
    module = load(name)
    agent, args = module.Agent(OBS, CHOICES, 8), module.Args(entropy_coef=0.03)
    obs, action = torch.randn(ROWS, OBS), torch.randint(CHOICES, (ROWS,))
    first, second = numbers(2)
    valid = torch.arange(ROWS) % 5 != 2
    batch = module.Batch(obs, action, first, second, valid.float())
    policy = torch.distributions.Categorical(logits=agent.policy(obs))
    if name == "a2c":
        loss, _ = module.a2c_loss(agent, batch, args)
        advantage, target = first, second
    else:
        loss, _ = module.reinforce_loss(agent, batch, args)
        advantage, target = normalized(first - second, valid), first
    policy_loss = a2c.policy_gradient_loss(policy.log_prob(action), advantage, valid)
    value_loss = 0.5 * masked_mean((agent.value(obs) - target).square(), valid)
    entropy = masked_mean(policy.entropy(), valid)
    expected = policy_loss + args.value_coef * value_loss - 0.03 * entropy
    assert_close(loss, expected)
    parameters = list(agent.parameters())
    assert_close(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters))


def recurrent_batches(module: Any, args: Any) -> tuple[Any, SequenceBatch]:
    """Sequences with both kinds of end, and the same for the library, whose windows are given."""
    length, count, hidden = args.burn_in + args.sequence_length + args.n_step - 1, 4, 6
    shape = (length, count)
    terminated = torch.rand(shape) < 0.15
    truncated = (torch.rand(shape) < 0.15) & ~terminated
    ended = terminated | truncated
    reset = torch.cat([torch.zeros(1, count, dtype=torch.bool), ended[:-1]])
    obs, next_obs = torch.randn(*shape, OBS), torch.randn(*shape, OBS)
    goes_on = ~ended[:-1].unsqueeze(2)
    next_obs[:-1] = torch.where(goes_on, obs[1:], next_obs[:-1])
    batch = module.Batch(
        obs, torch.randint(CHOICES, shape), torch.randn(shape), terminated.float(), ended.float(),
        reset.float(), next_obs, torch.randn(count, 2 * hidden),
    )  # fmt: skip
    reward, discount = torch.zeros(shape), torch.zeros(shape)
    steps, successor = torch.zeros(shape, dtype=torch.int64), torch.zeros_like(obs)
    for t in range(args.burn_in, args.burn_in + args.sequence_length):
        for n in range(count):
            for k in range(args.n_step):
                reward[t, n] += GAMMA**k * batch.reward[t + k, n]
                steps[t, n], successor[t, n] = k + 1, next_obs[t + k, n]
                discount[t, n] = GAMMA ** (k + 1) * (not terminated[t + k, n])
                if ended[t + k, n]:
                    break
    rows = {
        "obs": obs, "action": batch.action, "reward": reward, "discount": discount,
        "num_steps": steps, "next_obs": successor, "terminated": terminated,
        "truncated": truncated, "valid": torch.ones(shape, dtype=torch.bool), "reset": reset,
    }  # fmt: skip
    # The library's sequences have one row more, which it uses for nothing here.
    padded = {name: torch.cat([value, torch.zeros_like(value[:1])]) for name, value in rows.items()}
    state = dict(zip(("hidden", "cell"), batch.state.chunk(2, dim=1), strict=True))
    return batch, SequenceBatch(
        steps=TensorDict(padded, [length + 1, count]), initial_state=state,
        index=torch.arange(count), weight=torch.rand(count),
    )  # fmt: skip


@pytest.mark.parametrize("n_step", [1, 3])
def test_r2d1(n_step: int) -> None:
    """Loss, priorities, and the gradients by the parameters after a step of plain descent."""
    module = load("r2d1")
    sizes = {"burn_in": 2, "sequence_length": 6, "n_step": n_step}
    args = module.Args(**sizes, gamma=GAMMA, hidden_size=6)
    network, target = module.QNetwork(OBS, CHOICES, 6), module.QNetwork(OBS, CHOICES, 6)
    config = R2D1Config(
        num_envs=2, rollout_length=2, state_interval=2, gamma=GAMMA, max_grad_norm=0.0, **sizes
    )
    own = R2D1.make(
        OBS_SPACE, spaces.Discrete(CHOICES), config, seed=0, hidden_sizes=(6,), activation="relu",
        core="lstm", core_size=6,
    )  # fmt: skip
    copy_recurrent(network, own.policy)
    copy_recurrent(target, own.target_policy)
    batch, own_batch = recurrent_batches(module, args)
    loss, priority = module.r2d1_loss(network, target, batch, own_batch.weight, args)
    grads = torch.autograd.grad(loss, list(network.parameters()))
    own.optimizer = torch.optim.SGD(own.policy.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in own.policy.parameters()]
    metrics = own.update(own_batch)
    assert_close(loss.detach(), metrics["loss"])
    assert_close(priority, metrics["priority"])
    named = dict(zip((name for name, _ in network.named_parameters()), grads, strict=True))
    expected = {
        name: old - new
        for (name, new), old in zip(own.policy.named_parameters(), before, strict=True)
    }
    for mine, its in (
        ("encoder.weight", "torso.1.0.weight"),
        ("advantage.weight", "head.advantage.layers.0.weight"),
        ("value.bias", "head.state_value.layers.0.bias"),
    ):
        assert_close(named[mine], expected[its])
    for mine, its in (
        ("core.weight_ih", "core.input_weight"),
        ("core.weight_hh", "core.hidden_weight"),
        ("core.bias_ih", "core.bias"),
    ):
        assert_close(in_library_order(named[mine]), expected[its])


def test_rescaling_of_values() -> None:
    module, x = load("r2d1"), torch.linspace(-300.0, 300.0, 101)
    torch.testing.assert_close(module.rescale(x), rescale(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.unrescale(x / 9), unrescale(x / 9), rtol=1e-5, atol=1e-5)


def test_n_step_windows_by_hand() -> None:
    """Rewards 1, 2, 4, 8, discount 1/2, windows of 3 rows from rows 0 and 1.

    Nothing ends:          1 + 1 + 1 = 3, D = 1/8, row 2; 2 + 2 + 2 = 6, D = 1/8, row 3.
    Row 1 truncates:       1 + 1 = 2, D = 1/4, row 1; 2, D = 1/2, row 1.
    Row 1 terminates:      the same with D = 0.
    """
    column = torch.tensor([1.0, 2.0, 4.0, 8.0])
    none, second = torch.zeros(4), torch.tensor([0.0, 1.0, 0.0, 0.0])
    batch = SimpleNamespace(
        reward=torch.stack([column] * 3, 1),
        terminated=torch.stack([none, none, second], 1),
        ended=torch.stack([none, second, second], 1),
    )
    total, discount, last = load("r2d1").n_step_windows(batch, 0, 2, 3, 0.5)
    assert total.tolist() == [[3.0, 2.0, 2.0], [6.0, 2.0, 2.0]]
    assert discount.tolist() == [[0.125, 0.25, 0.0], [0.125, 0.5, 0.0]]
    assert last.tolist() == [[2, 1, 1], [3, 1, 1]]
