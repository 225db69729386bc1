"""Policies that are told their skill: acting, rollouts, learning, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.algos.a2c import A2C, A2CConfig
from redline.algos.appo import APPO, APPOConfig
from redline.algos.impala import Impala, ImpalaConfig
from redline.algos.ppo import PPO, PPOConfig
from redline.algos.reinforce import Reinforce, ReinforceConfig
from redline.collect import SerialCollector
from redline.errors import ConfigError, SpaceError
from redline.policies import SkillPolicy, make_policy, with_skill
from tests.collect.scripted import ScriptedEnv

K = 3
LENGTHS = [[2, 5], [3], [20], [4, 1]]
ENDS = ["terminated", "truncated", "truncated", "terminated"]


def make(core: str = "none") -> tuple[SkillPolicy, ScriptedEnv]:
    """A policy whose actions and values differ from skill to skill, and four environments."""
    torch.manual_seed(0)
    env = ScriptedEnv(LENGTHS, ENDS)
    inside = make_policy(
        with_skill(env.observation_space, K), env.action_space, core=core, core_size=8,
        normalize_obs=True,
    )  # fmt: skip
    with torch.no_grad():
        inside.policy_head.weight.mul_(100)
    return SkillPolicy(inside, env.observation_space, K), env


@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
@pytest.mark.parametrize("core", ["none", "lstm", "transformer"])
def test_skill_and_greed_may_change_at_every_collection(core: str, reset_mode: Any) -> None:
    """Also for environments whose episode has ended; evaluation sees what acting saw."""
    policy, env = make(core)
    collector = SerialCollector(env, policy, rollout_length=6, seed=4, reset_mode=reset_mode)
    told = [([0, 1, 2, 0], [0, 0, 1, 1]), ([2, 2, 0, 1], [1, 0, 0, 0])]
    for skills, greedy in told:
        skill = torch.tensor(skills)
        conditioning = {"skill": skill, "greedy": torch.tensor(greedy, dtype=torch.bool)}
        rollout = collector.collect(conditioning)
        valid = rollout.valid
        assert valid.all() == (reset_mode == "immediate")
        expected = skill.expand(6, 4).float()
        assert torch.equal(rollout["skill"], torch.where(valid, expected, 0.0))
        with torch.no_grad():
            output = policy.evaluate_rollout(rollout)
        for got, acted in ((output.log_prob, "log_prob"), (output.value, "value")):
            torch.testing.assert_close(got[valid], rollout[acted][valid], rtol=1e-4, atol=1e-5)
        policy.update_normalizer(rollout)


def test_greedy_environments_take_the_mode_of_their_own_skill() -> None:
    """A skill whose choice is certain: only the one-hot entries count, as logits 9 at 2 z + 1."""
    policy, env = make()
    inside: Any = policy.policy
    inside.torso = torch.nn.Identity()
    inside._features = lambda inputs, state: (
        torch.nn.functional.one_hot(inputs["skill"], K).float(),
        state,
    )
    inside.policy_head = torch.nn.Linear(K, 10)
    with torch.no_grad():
        inside.policy_head.weight.zero_()
        inside.policy_head.bias.zero_()
        for z in range(K):
            inside.policy_head.weight[2 * z + 1, z] = 9.0
    obs = torch.from_numpy(env.reset())
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(0), 4))
    skill = torch.tensor([2, 0, 1, 2])
    greedy = {"skill": skill, "greedy": torch.ones(4, dtype=torch.bool)}
    assert policy.act(obs, {}, noise, greedy).action.tolist() == [5, 1, 3, 5]
    assert policy.act(obs, {}, None, {"skill": skill}).action.tolist() == [5, 1, 3, 5]


def test_rollouts_are_bootstrapped_with_the_value_of_their_skill() -> None:
    policy, env = make()
    collector = SerialCollector(env, policy, rollout_length=4, seed=4)
    skill = torch.tensor([1, 2, 0, 1])
    rollout = collector.collect({"skill": skill})
    assert rollout["truncated"][2, 1]
    cut = policy.value(rollout["final_obs"][2], {}, {"skill": skill})
    assert rollout["bootstrap_value"][2, 1] == cut[1]
    last = policy.value(rollout.last_obs, {}, {"skill": skill})
    other = policy.value(rollout.last_obs, {}, {"skill": (skill + 1) % K})
    running = ~rollout.done[-1]
    assert running.any()
    torch.testing.assert_close(rollout["bootstrap_value"][-1][running], last[running])
    assert not torch.isclose(last, other).any()


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        (PPO, PPOConfig),
        (A2C, A2CConfig),
        (Reinforce, ReinforceConfig),
        (Impala, ImpalaConfig),
        (APPO, APPOConfig),
    ],
)
def test_every_on_policy_algorithm_learns_with_skills(
    algorithm: Any, config: Any, core: str
) -> None:
    """If learning saw other skills than acting did, the first step's ratios were not 1."""
    policy, env = make(core)
    one_step = {"num_epochs": 1, "num_minibatches": 1} if issubclass(config, PPOConfig) else {}
    learner = algorithm(policy, config(num_envs=4, rollout_length=8, **one_step), seed=0)
    collector = SerialCollector(env, policy, rollout_length=8, seed=4)
    rollout = collector.collect({"skill": torch.tensor([0, 1, 2, 0])})
    before = {name: leaf.clone() for name, leaf in policy.state_dict().items()}
    metrics = learner.update(rollout)
    assert all(value.isfinite() for value in metrics.values())
    if "rho" in metrics:
        assert metrics["rho"].item() == pytest.approx(1.0, abs=1e-4)
        assert metrics["behavior_kl"].item() == pytest.approx(0.0, abs=1e-4)
    if "approx_kl" in metrics:
        assert metrics["approx_kl"].item() == pytest.approx(0.0, abs=1e-5)
    assert any(not torch.equal(before[name], leaf) for name, leaf in policy.state_dict().items())


def test_nested_observations_and_masks_keep_their_places() -> None:
    space = spaces.Dict(x=spaces.Box(-1, 1, (2,)), action_mask=spaces.MultiBinary(4))
    assert set(with_skill(space, K).spaces) == {"x", "action_mask", "skill"}
    inside = make_policy(with_skill(space, K), spaces.Discrete(4))
    policy = SkillPolicy(inside, space, K)
    mask = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0]])
    obs = {"x": torch.zeros(2, 2), "action_mask": mask}
    output = policy.act(obs, {}, None, {"skill": torch.tensor([0, 2])})
    assert output.action.tolist() == [2, 0]
    assert output.extras["skill"].tolist() == [0.0, 2.0]


def test_evaluation_goes_through_the_skills() -> None:
    policy, _ = make()
    assert policy.evaluation_conditioning(5)["skill"].tolist() == [0, 1, 2, 0, 1]


def test_an_exported_policy_takes_the_skill_as_an_input() -> None:
    policy, _ = make()
    module = policy.export_module()
    assert module.input_names == ("obs.observation", "obs.skill")
    obs, skill = torch.randn(4, 1), torch.tensor([0, 1, 2, 0])
    expected = policy.eval().act(obs, {}, None, {"skill": skill}).action
    assert torch.equal(module({"observation": obs, "skill": skill}), expected)


def test_what_cannot_be_is_refused() -> None:
    policy, env = make()
    obs = torch.from_numpy(env.reset())
    with pytest.raises(ConfigError, match="was not told which"):
        policy.act(obs, {}, None)
    with pytest.raises(ConfigError, match="was not told which"):
        policy.act(obs, {}, None, {"greedy": torch.ones(4, dtype=torch.bool)})
    with pytest.raises(ConfigError, match="num_skills=1"):
        with_skill(env.observation_space, 1)
    with pytest.raises(SpaceError, match="'skill' of its own"):
        with_skill(spaces.Dict(skill=spaces.Discrete(2)), K)
