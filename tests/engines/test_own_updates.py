"""What a user wrote in an algorithm is what trains, with every engine."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import redline
import redline.train
from redline.algos.a2c import A2C
from redline.algos.algorithm import clip_gradients
from redline.algos.dqn import DQN, Target
from redline.algos.ppo import PPO
from redline.algos.registry import find_algorithm
from redline.algos.sac import SAC, DiscreteSAC, SACConfig
from redline.algos.td3 import TD3
from redline.data import Rollout, SequenceBatch, masked_mean
from redline.engines.engine import choose_engine
from redline.errors import SpaceError
from tests.engines.learners import (
    ALGORITHMS,
    BOX,
    CHOICE,
    LEARNERS,
    OBS,
    batch,
    differing,
    distance,
    make,
    parameters,
    says,
)
from tests.engines.test_engine import COMPILING

REWARDED = [name for name in ALGORITHMS if name != "bc"]  # which learns from actions alone


def negated(data: Any) -> Any:
    """The same batch with the opposite of what is to be maximized."""
    if isinstance(data, SequenceBatch):
        return replace(data, steps=negated(data.steps))
    if isinstance(data, TensorDict):
        return data.copy().update({"reward": -data["reward"]})
    name = "advantage" if "advantage" in data.steps.keys() else "reward"  # noqa: SIM118
    return data.with_columns(**{name: -data[name]})


def with_own_step(kind: Any) -> Any:
    """A subclass whose `step` learns the opposite."""

    class Contrary(kind):
        def step(self, data: Any, *rest: Any) -> Any:
            return super().step(negated(data), *rest)

    return Contrary


def with_own_update(kind: Any) -> Any:
    """A subclass whose `update` learns the opposite."""

    class Contrary(kind):
        def update(self, data: Any) -> Any:
            if "skill" in (data.keys() if isinstance(data, TensorDict) else ()):
                # DIAYN looks at no reward: that its skills are the others is as wrong.
                return super().update(data.copy().update({"skill": 2.0 - data["skill"]}))
            return super().update(negated(data))

    return Contrary


def trains_by_its_own_update(name: str, kind: Any, mode: str, *, backend: str = "inductor") -> str:
    """Three updates by an engine, by eager mode and by the parent class; the engine's reason."""
    eager, run, parent = make(name, kind), make(name, kind), make(name)
    assert type(run) is kind
    start = parameters(run)
    engine = choose_engine(run, mode, backend=backend)
    for seed in range(3):
        data = batch(name, eager, seed)
        eager.update(data)
        parent.update(data)
        engine.update(data)
    wanted = parameters(eager)
    moved = distance(start, wanted)
    assert moved > 0.0
    assert distance(parameters(parent), wanted) > 0.02 * moved
    if engine.name != "eager":
        assert distance(parameters(run), wanted) < 0.01 * moved
    else:
        assert not differing(eager.state_dict(), run.state_dict())
    return engine.reason


@pytest.mark.parametrize("mode", ["eager", "cpu", "auto"])
@pytest.mark.parametrize("own", [with_own_step, with_own_update])
@pytest.mark.parametrize("name", REWARDED)
def test_a_subclass_trains_by_its_own_loss(name: str, own: Callable[[Any], Any], mode: str) -> None:
    if name == "diayn" and own is with_own_step:
        pytest.skip("DIAYN has no step; that of the SAC inside is tested below")
    reason = trains_by_its_own_update(name, own(LEARNERS[name][0]), mode)
    if mode != "eager" and name != "diayn":  # its own update, with the SAC inside on an engine
        assert says(reason, "Contrary")


# Tracing takes the time here, whatever the backend: one algorithm of each kind of step.
@pytest.mark.filterwarnings(*COMPILING)
@pytest.mark.parametrize("name", ["a2c", "dqn", "ddpg"])
def test_a_subclass_trains_by_its_own_loss_when_compiled(name: str) -> None:
    torch._dynamo.reset()
    kind = with_own_step(LEARNERS[name][0])
    reason = trains_by_its_own_update(name, kind, "compile", backend="aot_eager")
    assert "Contrary.step" in reason


@pytest.mark.filterwarnings(*COMPILING)
@pytest.mark.parametrize("name", ["reinforce"])
def test_a_subclass_with_its_own_update_uses_it_when_its_step_is_compiled(name: str) -> None:
    torch._dynamo.reset()
    kind = with_own_update(LEARNERS[name][0])
    trains_by_its_own_update(name, kind, "compile", backend="aot_eager")


class SquaredAdvantage(PPO):
    """PPO's step written anew, with a loss of one's own."""

    def step(self, batch: Rollout, stopped: Tensor) -> dict[str, Tensor]:
        output, valid = self.policy.evaluate_rollout(batch), batch["valid"]
        policy_loss = -masked_mean(output.log_prob * batch["advantage"] ** 2, valid)
        self.optimizer.zero_grad()
        (policy_loss + 0.1 * masked_mean(output.value.square(), valid)).backward()
        grad_norm = clip_gradients(self.parameters, 10.0)
        self.optimizer.step()
        return {"policy_loss": policy_loss.detach(), "grad_norm": grad_norm}


class CuriousA2C(A2C):
    """Another estimate of how good the actions were."""

    def estimate(self, rollout: Rollout, output: Any) -> Any:
        advantage, target, metrics = super().estimate(rollout, output)
        return advantage + rollout["obs"].norm(dim=-1), target, metrics


class HalfTarget(DQN):
    """Another target."""

    def target(self, batch: Any, fractions: Tensor | None = None) -> Target:
        whole = super().target(batch, fractions)
        return whole._replace(values=0.5 * whole.values)


class RegularizedSAC(SAC):
    """Another loss of the actor."""

    def _update_actor(self, obs: Any, alpha: Tensor, noise: Tensor) -> dict[str, Tensor]:
        action, log_prob = self.policy.sample(obs, noise)
        loss = action.square().mean() + (alpha * log_prob).mean()
        self.actor_optimizer.zero_grad()
        loss.backward(inputs=self.parameters)
        self.actor_optimizer.step()
        return {"actor_loss": loss.detach(), "entropy": -log_prob.detach().mean()}


class UnsmoothedTD3(TD3):
    """Another target action."""

    def _next_action(self, next_obs: Any, noise: Tensor) -> Tensor:
        return -self.target_policy(next_obs)


@pytest.mark.parametrize("mode", ["eager", "cpu", "auto"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ppo-box", SquaredAdvantage),
        ("a2c", CuriousA2C),
        ("dqn", HalfTarget),
        ("sac", RegularizedSAC),
        ("td3", UnsmoothedTD3),
    ],
)
def test_a_method_of_ones_own_is_the_one_that_runs(name: str, kind: Any, mode: str) -> None:
    reason = trains_by_its_own_update(name, kind, mode)
    if mode != "eager":
        assert says(reason, kind.__name__)


@pytest.mark.parametrize("mode", ["eager", "cpu", "auto"])
@pytest.mark.parametrize(
    ("name", "attribute"),
    [("ppo-box", "step"), ("ppo-box", "optimize"), ("sac", "step"), ("dqn", "target"),
     ("td3", "update"), ("a2c", "estimate")],
)  # fmt: skip
def test_a_method_set_on_the_object_is_the_one_that_runs(
    name: str, attribute: str, mode: str
) -> None:
    calls = []

    def patched(learner: Any) -> Any:
        method = getattr(learner, attribute)

        def own(*args: Any, **kwargs: Any) -> Any:
            calls.append(attribute)
            return method(*args, **kwargs)

        setattr(learner, attribute, own)
        return learner

    learner = patched(make(name))
    choose_engine(learner, mode).update(batch(name, learner, 0))
    assert calls


@pytest.mark.parametrize("mode", ["eager", "cpu", "auto"])
def test_the_sac_inside_diayn_may_be_ones_own(mode: str) -> None:
    eager, run, parent = make("diayn"), make("diayn"), make("diayn")
    for learner in (eager, run):
        learner.sac.__class__ = RegularizedSAC
    engine = choose_engine(run, mode)
    for seed in range(3):
        data = batch("diayn", eager, seed)
        eager.update(data)
        parent.update(data)
        engine.update(data)
    assert not differing(eager.state_dict(), run.state_dict())
    assert differing(parent.state_dict(), run.state_dict())


def test_a_subclass_of_sac_is_made_for_its_own_actions_only() -> None:
    class Mine(SAC):
        pass

    class MineOfChoices(DiscreteSAC):
        pass

    network = {"hidden_sizes": (4,)}
    assert type(Mine.make(OBS, BOX, SACConfig(), **network)) is Mine
    assert type(MineOfChoices.make(OBS, CHOICE, SACConfig(), **network)) is MineOfChoices
    assert type(SAC.make(OBS, CHOICE, SACConfig(), **network)) is DiscreteSAC
    with pytest.raises(SpaceError, match=r"Mine does not learn from .*\.DiscreteSAC"):
        Mine.make(OBS, CHOICE, SACConfig(), **network)
    with pytest.raises(SpaceError, match=r"Derive it from redline\.algos\.sac\.SAC"):
        MineOfChoices.make(OBS, BOX, SACConfig(), **network)


class IdlePPO(PPO):
    """Learns nothing."""

    def update(self, rollout: Any) -> dict[str, Tensor]:
        return {}


class IdleSAC(SAC):
    """Learns nothing."""

    def update(self, batch: Any) -> dict[str, Tensor]:
        return {}


QUICK: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "hidden_sizes": (8,),
    "preset": "default",
    "num_threads": 1,
    "seed": 3,
}
ON_POLICY_RUN: dict[str, Any] = QUICK | {
    "env": "CartPole-v1",
    "total_env_steps": 128,
    "num_envs": 2,
    "rollout_length": 32,
    "log_interval": 64,
}
OFF_POLICY_RUN: dict[str, Any] = QUICK | {
    "env": "Pendulum-v1",
    "total_env_steps": 60,
    "learning_starts": 20,
    "batch_size": 8,
    "replay_ratio": 8.0,
    "replay_size": 100,
    "log_interval": 20,
}


def policy_as_begun(kind: Any, settings: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters that a run of these settings begins with."""
    begun: dict[str, Tensor] = {}

    class Watched(kind):
        @classmethod
        def make(cls, *args: Any, **kwargs: Any) -> Any:
            learner = super().make(*args, **kwargs)
            begun.update({n: v.clone() for n, v in learner.policy.state_dict().items()})
            return learner

    redline.train(Watched, **settings)
    return begun


@pytest.mark.filterwarnings(*COMPILING)
@pytest.mark.parametrize("mode", ["eager", "cpu", "compile", "auto"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(IdlePPO, ON_POLICY_RUN), (IdleSAC, OFF_POLICY_RUN)],
    ids=["ppo", "sac"],
)
def test_an_update_that_does_nothing_leaves_the_parameters_as_they_began(
    kind: Any, settings: dict[str, Any], mode: str, tmp_path: Path
) -> None:
    begun = policy_as_begun(kind, settings | {"out": tmp_path / "begun", "accelerate": "eager"})
    run = redline.train(kind, out=tmp_path / "run", accelerate=mode, **settings)
    ended = run.policy().state_dict()
    assert begun.keys() == ended.keys()
    for name, value in begun.items():
        assert torch.equal(ended[name], value), name
    rows = list(csv.DictReader((tmp_path / "run" / "progress.csv").read_text().splitlines()))
    assert int(rows[-1]["env_steps"]) >= settings["total_env_steps"]


@pytest.mark.parametrize("name", REWARDED)
def test_a_class_is_found_by_itself(name: str) -> None:
    kind = with_own_update(LEARNERS[name][0])
    assert find_algorithm(kind) is kind
