"""What a policy remembers: cleared where episodes begin, the same for any number of workers."""

from __future__ import annotations

import gymnasium
import torch

from redline.collect import SerialCollector, WorkersCollector
from redline.envs import EnvSettings
from redline.policies import SkillPolicy, make_policy, with_skill

SETTINGS = EnvSettings(env="CartPole-v1")


def remembering_policy() -> SkillPolicy:
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    inside = make_policy(
        with_skill(env.observation_space, 3), env.action_space, hidden_sizes=(16,),
        core="transformer", core_size=8, core_window=6,
    )  # fmt: skip
    return SkillPolicy(inside, env.observation_space, 3)


def test_states_are_the_same_in_one_process_and_in_several() -> None:
    """Three collections with other skills each; states, rows and their replay agree.

    Elsewhere a collector cleared what was remembered at episode starts and another did not,
    and states depended on how many workers there were.
    """
    policy = remembering_policy()
    serial = SerialCollector(SETTINGS.make(3), policy, rollout_length=30, seed=3)
    workers = WorkersCollector(
        SETTINGS, policy, num_envs=3, num_workers=2, rollout_length=30, seed=3
    )
    with serial, workers:
        for skills in ([0, 1, 2], [2, 2, 1], [1, 0, 0]):
            conditioning = {"skill": torch.tensor(skills)}
            expected, rollout = serial.collect(conditioning), workers.collect(conditioning)
            for made in (expected, rollout):
                assert made["terminated"].any()
                assert made["skill"][-1].tolist() == skills
                with torch.no_grad():
                    log_prob = policy.evaluate_rollout(made).log_prob
                torch.testing.assert_close(log_prob, made["log_prob"], rtol=1e-4, atol=1e-5)
            assert torch.equal(rollout["action"], expected["action"])
            for name, leaf in expected.initial_state.items():
                torch.testing.assert_close(rollout.initial_state[name], leaf, rtol=1e-4, atol=1e-5)
