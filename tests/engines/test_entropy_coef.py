"""The weight of the entropy bonus moves in the course of a run, whatever runs the updates."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import redline
from redline.algos.a2c import A2C
from redline.algos.appo import APPO
from redline.algos.impala import Impala
from redline.algos.ppo import PPO
from redline.algos.reinforce import Reinforce
from redline.engines.engine import choose_engine
from redline.errors import ConfigError
from tests.engines.learners import BOX, CHOICE, OBS, B, T, rollout

KINDS = (PPO, APPO, A2C, Impala, Reinforce)
SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "preset": "default",
    "total_env_steps": 1024,
    "num_envs": 4,
    "rollout_length": 32,
    "hidden_sizes": (8,),
    "log_interval": 128,
    "checkpoint_interval": 256,
    "quiet": True,
    "tensorboard": False,
}


def made(kind: Any, space: spaces.Space[Any], entropy_coef: float) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_envs": B, "rollout_length": T}
    if issubclass(kind, PPO):
        sizes |= {"num_epochs": 2, "num_minibatches": 2}
    config = kind.Config(entropy_coef=entropy_coef, **sizes)
    return kind.make(OBS, space, config, seed=0, device="cpu", hidden_sizes=(8, 8))


def learned(learner: Any, engine: str, entropy_coef: float | None = None) -> list[Tensor]:
    """The parameters after two updates, between which the weight may change."""
    update = choose_engine(learner, engine).update
    batches = [rollout(learner.policy, seed) for seed in (1, 2)]
    update(batches[0])
    if entropy_coef is not None:
        learner.set_hyperparameters({"entropy_coef": entropy_coef})
    update(batches[1])
    return [parameter.detach().clone() for parameter in learner.policy.parameters()]


@pytest.mark.parametrize("engine", ["eager", "cpu"])
@pytest.mark.parametrize("space", [BOX, CHOICE], ids=["box", "choice"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_was_set_acts_as_one_that_was_given(
    kind: Any, space: spaces.Space[Any], engine: str
) -> None:
    """Set to 0.3 at once it is the run of 0.3 to the bit; set later it is neither run."""
    given = learned(made(kind, space, 0.3), engine)
    at_once = made(kind, space, 0.1)
    at_once.set_hyperparameters({"entropy_coef": 0.3})
    assert all(map(torch.equal, learned(at_once, engine), given))
    other = learned(made(kind, space, 0.1), engine)
    moved = learned(made(kind, space, 0.1), engine, entropy_coef=0.3)
    for unlike in (given, other):
        assert not all(map(torch.equal, moved, unlike))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBonus:
    """What A2C and its losses need, but for an entropy bonus."""

    num_envs: int = B
    rollout_length: int = T
    gamma: float = 0.99
    learning_rate: float = 1e-3
    optimizer: str = "adam"
    optimizer_eps: float = 1e-5


def test_a_config_of_ones_own_may_have_no_bonus() -> None:
    learner = A2C.make(OBS, CHOICE, NoBonus(), seed=0, hidden_sizes=(8,))
    assert learner.entropy_coef.item() == 0.0
    learner.set_hyperparameters({"learning_rate": 1e-4})


@pytest.mark.parametrize("kind", [PPO, A2C])
def test_a_whole_number_is_a_weight_like_any_other(kind: Any) -> None:
    learner = made(kind, CHOICE, 1)
    learner.set_hyperparameters({"entropy_coef": 0.5})
    assert learner.entropy_coef.item() == 0.5


@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_a_schedule_of_no_bonus_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it belongs to entropy_coef other than 0\.0"):
        redline.train(name, out=tmp_path / "run", **SMALL, entropy_coef_schedule="linear")


@pytest.mark.parametrize("kind", KINDS)
def test_what_schedules_leave_out_is_the_configs(kind: Any) -> None:
    learner = made(kind, CHOICE, 0.25)
    learner.set_hyperparameters({"entropy_coef": 0.5})
    assert learner.entropy_coef.item() == 0.5
    learner.set_hyperparameters({"learning_rate": 1e-3})
    assert learner.entropy_coef.item() == 0.25


def test_the_gradient_by_hand() -> None:
    """Two actions with logits z and 0 that no observation changes, and no advantage.

    H = -sum p log p, and dH/dz = -p (1 - p) z with p = 1 / (1 + exp(-z)). At z = 1 that is
    -0.196612, and the loss is -c H: the norm over both logits' biases is c * 0.196612 * sqrt(2).
    """
    learner = made(A2C, spaces.Discrete(2), 0.5)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.zero_()
        learner.policy.policy_head.bias.copy_(torch.tensor([1.0, 0.0]))
    steps = rollout(learner.policy, 0)
    zeros = {n: torch.zeros(T, B) for n in ("reward", "value", "bootstrap_value")}
    metrics = learner.update(steps.with_columns(**zeros))
    assert metrics["grad_norm"].item() == pytest.approx(0.5 * 0.196612 * 2**0.5, rel=1e-4)


def rows(run: Path) -> list[float]:
    with (run / "progress.csv").open() as file:
        return [float(row["entropy_coef"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_linear_schedule_reaches_zero_at_the_end(name: str, tmp_path: Path) -> None:
    """8 iterations of 128 env_steps: 0.08 (1 - i / 8) is 0.08, 0.07, ... 0.01."""
    settings = SMALL | {"entropy_coef": 0.08, "entropy_coef_schedule": "linear"}
    run = redline.train(name, out=tmp_path / "whole", **settings)
    assert rows(run.out) == pytest.approx([0.08 - 0.01 * i for i in range(8)])
    half = redline.train(name, out=tmp_path / "half", **settings | {"total_env_steps": 512})
    assert rows(half.out) == pytest.approx([0.08 - 0.02 * i for i in range(4)])


class Lower:
    """Halves the weight after each iteration."""

    def on_iteration(self, state: Any) -> None:
        state.set_hyperparameter("entropy_coef", state.hyperparameters["entropy_coef"] / 2)


def test_a_callback_moves_it_and_a_resumed_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    settings = SMALL | {"entropy_coef": 0.08, "callbacks": [Lower()]}
    whole = redline.train("ppo", out=tmp_path / "whole", **settings)
    assert rows(whole.out) == pytest.approx([0.08 / 2**i for i in range(8)])
    half = redline.train("ppo", out=tmp_path / "half", **settings | {"total_env_steps": 512})
    resumed = redline.train(resume=half.out, total_env_steps=1024, callbacks=[Lower()], quiet=True)
    assert rows(resumed.out) == rows(whole.out)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
