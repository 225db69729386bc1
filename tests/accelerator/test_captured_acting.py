"""Acting as one graph gives the rollouts of the policy as it is written, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from redline.algos.dqn import DQN
from redline.algos.sac import SAC
from redline.collect import DeviceCollector, SerialCollector
from redline.data import Rollout
from redline.engines import captured_rollouts
from redline.engines.captured_acting import CapturedActing
from redline.envs import make_device_vec, make_vec
from redline.envs.games.ids import GAMES
from redline.policies import make_policy
from tests.accelerator.stand_in import StandInDevice
from tests.collect.test_device import assert_equal_rollouts

NETWORK: dict[str, Any] = {"hidden_sizes": (8,), "core_size": 4}
KINDS = ("ppo", "lstm", "dqn", "sac")


def policy_for(kind: str, view: Any) -> Any:
    torch.manual_seed(0)
    spaces = view.observation_space, view.action_space
    if kind == "dqn":
        made = DQN.make_policy(*spaces, DQN.Config(), hidden_sizes=(8,))
    elif kind == "sac":
        made = SAC.make_policy(*spaces, SAC.Config(), hidden_sizes=(8,))
    else:
        made = make_policy(*spaces, core="lstm" if kind == "lstm" else "none", **NETWORK)
    return made.to("standin")


def conditioning(kind: str, step: int, num_envs: int) -> dict[str, torch.Tensor] | None:
    """As the algorithms give it: it moves on from rollout to rollout."""
    if kind == "dqn":
        return {"epsilon": torch.full((num_envs,), 0.5 - 0.2 * step).to("standin")}
    if kind == "sac":
        return {"random": torch.full((num_envs,), step == 0).to("standin")}
    return None


def env_for(kind: str) -> str:
    return "redline/Pendulum-v1" if kind == "sac" else "redline/CartPole-v1"


def host(rollout: Rollout) -> Rollout:
    """A copy on the CPU, for the collector writes the next one over it."""
    moved = rollout.to("cpu")
    moved.steps = moved.steps.clone()
    return moved


def no_report(problem: str) -> None:
    raise AssertionError(problem)


def captured(report: Any = no_report) -> CapturedActing:
    acting = CapturedActing(None, captures=True)
    acting.report = report
    return acting


def rollouts(collector: Any, kind: str, count: int = 3) -> list[Rollout]:
    return [host(collector.collect(conditioning(kind, i, 3))) for i in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_with_environments_of_the_host(kind: str, accelerator: StandInDevice) -> None:
    """One copy there, one graph, one copy back; with an LSTM another where episodes ended."""
    env_id = env_for(kind)
    policy = policy_for(kind, make_vec(env_id, 1))
    settings: Any = {"rollout_length": 12, "seed": 3}
    eager = SerialCollector(make_vec(env_id, 3), policy, **settings)
    fast = SerialCollector(make_vec(env_id, 3), policy, **settings, actor_for=captured())
    for one, two in zip(rollouts(eager, kind), rollouts(fast, kind), strict=True):
        assert_equal_rollouts(one, two)
    loop = fast._loops[0]
    accelerator.reset()
    with torch.inference_mode():
        loop.begin(conditioning(kind, 2, 3))
        accelerator.reset()
        loop.act()
    assert accelerator.launches["graph"] == 1
    assert accelerator.num_launches() <= (5 if kind == "lstm" else 3)
    assert len(accelerator.read_backs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_whole_rollouts_with_environments_on_the_device(
    kind: str, accelerator: StandInDevice
) -> None:
    env_id = env_for(kind)
    policy = policy_for(kind, make_vec(env_id, 1))

    def collector(length: int, **settings: Any) -> DeviceCollector:
        env = make_device_vec(env_id, 3, device="standin")
        return DeviceCollector(env, policy, rollout_length=length, seed=3, **settings)

    eager, fast = collector(10), collector(10, rollouts_for=captured().rollouts)
    for one, two in zip(rollouts(eager, kind), rollouts(fast, kind), strict=True):
        assert_equal_rollouts(one, two)
    counts = []
    for each in (fast, collector(5, rollouts_for=captured().rollouts)):
        each.collect(conditioning(kind, 0, 3))
        accelerator.reset()
        each.collect(conditioning(kind, 0, 3))
        counts.append((accelerator.launches["graph"], len(accelerator.read_backs)))
    assert counts[0][0] == counts[1][0] == 1
    assert max(counts[0][1], counts[1][1]) <= 8  # of a rollout, none of a step


def test_a_collector_goes_on_from_its_state() -> None:
    """What the graph begins from is replaced by what was loaded."""
    policy = policy_for("lstm", make_vec("redline/CartPole-v1", 1))

    def collector() -> DeviceCollector:
        env = make_device_vec("redline/CartPole-v1", 3, device="standin")
        return DeviceCollector(
            env, policy, rollout_length=9, seed=3, rollouts_for=captured().rollouts
        )

    whole, other = collector(), collector()
    rollouts(whole, "lstm", 2)
    rollouts(other, "lstm", 1)
    other.load_state_dict(whole.state_dict())
    for one, two in zip(rollouts(whole, "lstm"), rollouts(other, "lstm"), strict=True):
        assert_equal_rollouts(one, two)


@pytest.mark.parametrize("env_id", GAMES)
def test_every_native_game_can_be_captured(env_id: str) -> None:
    """With random actions, two steps at a time."""
    view = make_vec(env_id, 2)
    torch.manual_seed(0)
    policy = make_policy(view.observation_space, view.action_space).to("standin")
    made = [
        DeviceCollector(
            make_device_vec(env_id, 2, device="standin"), policy, rollout_length=2, seed=1, **how
        )
        for how in ({}, {"rollouts_for": captured().rollouts})
    ]
    for _ in range(2):
        one, two = (host(each.collect()) for each in made)
        assert_equal_rollouts(one, two)


class Reading(torch.nn.Module):
    """A torso that looks at its numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 if float(x.sum()) > 0 else x


@pytest.mark.parametrize("on_device", [False, True])
def test_a_policy_that_reads_back_acts_as_it_is_written(on_device: bool) -> None:
    view = make_vec("redline/CartPole-v1", 3)
    policy = policy_for("ppo", view)
    policy.torso = torch.nn.Sequential(Reading(), policy.torso)
    said: list[str] = []
    acting = captured(said.append)
    settings: Any = {"rollout_length": 4, "seed": 3}
    if on_device:
        envs = [make_device_vec("redline/CartPole-v1", 3, device="standin") for _ in range(2)]
        eager: Any = DeviceCollector(envs[0], policy, **settings)
        fast: Any = DeviceCollector(envs[1], policy, **settings, rollouts_for=acting.rollouts)
    else:
        eager = SerialCollector(view, policy, **settings)
        fast = SerialCollector(
            make_vec("redline/CartPole-v1", 3), policy, **settings, actor_for=acting
        )
    for one, two in zip(rollouts(eager, "ppo"), rollouts(fast, "ppo"), strict=True):
        assert_equal_rollouts(one, two)
    assert len(said) == 1
    assert "reads a number back to the host" in said[0]
    assert "test_captured_acting.py" in said[0]


def test_a_long_rollout_is_taken_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_rollouts, "MOST_STEPS", 8)
    env = make_device_vec("redline/CartPole-v1", 3, device="standin")
    policy = policy_for("ppo", env)
    with DeviceCollector(
        env, policy, rollout_length=9, rollouts_for=captured().rollouts
    ) as collector:
        collector.collect()
        assert collector._loops[0].rollouts is None
