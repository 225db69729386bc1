"""Previous actions and rewards in rollouts: the same whatever collects (FAULTS 13)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch.nn.functional import one_hot

from redline.algos.ppo import PPO, PPOConfig
from redline.algos.r2d1 import R2D1, R2D1Config
from redline.data import Rollout
from redline.envs import EnvSettings
from redline.policies import make_policy
from redline.policies.policy import Policy
from redline.previous_inputs import ACTION, REWARD
from tests.collect.placements import PLACEMENTS, assert_equal, copied, make
from tests.collect.scripted import ExactPolicy
from tests.envs.scripted import Ordered


def check(rollout: Rollout, before: Rollout | None) -> None:
    """Row t + 1 shows row t's action and reward, zeros after an end and after no transition.

    Args:
        rollout: of CartPole, whose rewards are 1.
        before: the collector's rollout before, a copy; None: these are its first rows.
    """
    obs, length = rollout["obs"], rollout.rollout_length
    ended = rollout.done | ~rollout.valid
    for t in range(-1, length - 1):
        if t < 0 and before is None:
            action = torch.zeros(rollout.num_envs, 2)
            reward = torch.zeros(rollout.num_envs)
        else:
            source = rollout if t >= 0 else before
            assert source is not None
            over = source.done[t] | ~source.valid[t]
            action = torch.nn.functional.one_hot(source["action"][t], 2).float()
            action, reward = action.masked_fill(over[:, None], 0.0), source["reward"][t] * ~over
        rows = rollout.valid[t + 1]  # those that are not valid are all zeros
        assert torch.equal(obs[ACTION][t + 1][rows], action[rows])
        assert torch.equal(obs[REWARD][t + 1][rows, 0], reward[rows])
    ends = rollout.done & rollout.valid
    assert ended.any()
    final = rollout["final_obs"]
    expected = torch.nn.functional.one_hot(rollout["action"], 2).float()
    assert torch.equal(final[ACTION][ends], expected[ends])
    assert torch.equal(final[REWARD][ends][:, 0], rollout["reward"][ends])


@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_collector_shows_the_row_before(placement: str, reset_mode: Any) -> None:
    """And gives the serial collector's rollouts, to the bit, for a policy of exact arithmetic."""
    policy = ExactPolicy()
    settings: dict[str, Any] = {
        "observe_previous": True, "rollout_length": 30, "reset_mode": reset_mode,
    }  # fmt: skip
    with (
        make("serial", policy, **settings) as serial,
        make(placement, policy, **settings) as collector,
    ):
        before = None
        for _ in range(3):
            rollout, wanted = collector.collect(), serial.collect()
            assert_equal(copied(rollout), copied(wanted))
            check(rollout, before)
            before = Rollout(steps=rollout.steps.clone(), initial_state={}, last_obs={})


@pytest.mark.parametrize("core", ["lstm", "transformer"])
def test_learning_sees_what_acting_saw(core: str) -> None:
    """The log-probabilities of a rollout evaluated again are those of acting."""
    policy = recurrent(core)
    with make("serial", policy, observe_previous=True, rollout_length=40) as collector:
        for _ in range(2):
            rollout = collector.collect()
            again = policy.evaluate_rollout(rollout)
            torch.testing.assert_close(again.log_prob.detach(), rollout["log_prob"])
            torch.testing.assert_close(again.value.detach(), rollout["value"])


def test_a_policy_tells_previous_actions_apart() -> None:
    """The same observation and state with another action before: another value."""
    policy = recurrent("lstm")
    obs = {"observed": torch.zeros(2, 4), REWARD: torch.zeros(2, 1), ACTION: torch.eye(2)}
    one, two = policy.value(obs, policy.initial_state(2)).tolist()
    assert one != two


@pytest.mark.parametrize("placement", ["serial", "device", "workers"])
@pytest.mark.parametrize(("algorithm", "config"), [(PPO, PPOConfig()), (R2D1, R2D1Config())])
def test_entries_stay_under_their_names_where_an_episode_ends(
    algorithm: type[PPO | R2D1], config: Any, placement: str
) -> None:
    """Two entries sort behind those that are added, and for PPO all five are of one shape.

    Episodes last three steps: what was acted on in rows 0 to 3 is 0, 1, 2 and, of the next
    episode, 0; the true last observation of row 2 is 3. "zz" is 10 more, "agent" 20 more.
    """
    actions = spaces.Box(-1.0, 1.0, (1,)) if algorithm is PPO else spaces.Discrete(2)
    source = functools.partial(Ordered, actions)
    with EnvSettings(env=source, observe_previous=True).make(1) as env:
        policy = algorithm.make_policy(
            env.observation_space, env.action_space, config,
            core="lstm", core_size=4, hidden_sizes=(4,),
        )  # fmt: skip
    with make(placement, policy, source, observe_previous=True, rollout_length=4) as collector:
        rollout = collector.collect()
    seen, final = rollout["obs"], rollout["final_obs"]
    for name, start in (("state", 0.0), ("zz", 10.0), ("agent", 20.0)):
        assert seen[name][:, 0, 0].tolist() == [start, start + 1, start + 2, start]
        assert final[name][:, 0, 0].tolist() == [0.0, 0.0, start + 3, 0.0]
    assert seen[REWARD][:, 0, 0].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert final[REWARD][:, 0, 0].tolist() == [0.0, 0.0, 0.5, 0.0]
    taken = rollout["action"][2, 0]
    last = taken.clamp(-1.0, 1.0) if algorithm is PPO else one_hot(taken, 2)
    assert final[ACTION][2, 0].tolist() == last.tolist()


def recurrent(core: str) -> Policy:
    torch.manual_seed(0)
    with EnvSettings(env="CartPole-v1", observe_previous=True).make(1) as env:
        return make_policy(
            env.observation_space, env.action_space, hidden_sizes=(16,), core=core, core_size=8,
            core_window=16,
        )  # fmt: skip
