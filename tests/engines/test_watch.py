"""What a callback changes of networks after the start is what runs from then on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import redline
from redline.algos.optimizers import Adam
from redline.algos.ppo import PPO
from redline.collect import SerialCollector
from redline.engines.acting import actor_for
from redline.engines.engine import choose_engine
from redline.engines.watch import NetworksWatch, may_have_changed
from redline.envs import make_vec
from redline.policies import make_policy
from tests.accelerator.emulated_graph import capturing_on_the_cpu
from tests.engines import learners
from tests.engines.cpu import test_images as image_learners
from tests.engines.cpu.test_updates import assert_same_state


def frozen(learner: Any) -> None:
    """The first layer of what acts."""
    assert layers(learner)[0].weight.requires_grad
    layers(learner)[0].requires_grad_(False)


def moved(learner: Any) -> None:
    """One weight among many, and not the first."""
    parameter = list(networks(learner)[-1].parameters())[-1]
    parameter.data = parameter.data.clone()


def other_optimizer(learner: Any) -> None:
    learner.critic_optimizer = Adam(learner.critic.parameters(), 0.1)


def other_step(learner: Any) -> None:
    written_step = learner.step
    learner.step = lambda *args: written_step(*args[:-1], False)


def forward_hook(learner: Any) -> None:
    layer = layers(learner)[-1]
    layer.register_forward_hook(lambda _, inputs, output: 2.0 * output)


def gradient_hook(learner: Any) -> None:
    layers(learner)[-1].weight.register_hook(lambda gradient: -gradient)


def other_activation(learner: Any) -> None:
    """A layer of another kind in the place of one."""
    for module in learner.policy.modules():
        for name, part in module.named_children():
            if type(part) in (nn.ReLU, nn.Tanh):
                setattr(module, name, nn.ELU())
                return
    raise AssertionError("there is no activation")


def method_on_an_instance(learner: Any) -> None:
    layer = layers(learner)[-1]
    layer.forward = lambda obs: 2.0 * nn.Linear.forward(layer, obs)  # type: ignore[method-assign]


def networks(learner: Any) -> list[nn.Module]:
    return [part for part in vars(learner).values() if isinstance(part, nn.Module)]


def layers(learner: Any) -> list[nn.Linear]:
    return [part for part in learner.policy.modules() if type(part) is nn.Linear]


def other_mode(learner: Any) -> None:
    """As `eval()` does to one network."""
    learner.policy.eval()


def other_attribute(learner: Any) -> None:
    learner.policy.log_std_range = (-0.5, 0.1)


def other_buffer(learner: Any) -> None:
    learner.policy._buffers["scale"] = learner.policy.scale.clone()


INSIDE = [frozen, forward_hook, gradient_hook, other_activation, method_on_an_instance]


def changed_midway(
    name: str, engine: str, change: Any, *, images: bool = False, **tolerance: float
) -> None:
    """Two learners of which one is run by an engine and both are changed, as by a callback."""
    make = image_learners.make if images else learners.make
    eager, run = make(name), make(name)
    assert choose_engine(run, engine).name == engine
    update = choose_engine(run, engine).update
    for seed in range(5):
        if seed == 2:
            change(eager)
            change(run)
            may_have_changed()
        data = (
            image_learners.LEARNERS[name][1](seed) if images else learners.batch(name, eager, seed)
        )
        eager.update(data)
        update(data)
    assert_same_state(run, eager, **tolerance)


@pytest.mark.parametrize("change", [moved, other_optimizer, other_step, *INSIDE])
def test_what_changes_after_the_start_is_noticed(change: Any) -> None:
    changed_midway("sac", "cpu", change, rtol=1e-4, atol=1e-5)


@image_learners.needs_kernels
@pytest.mark.parametrize("change", [moved, *INSIDE])
def test_what_changes_in_networks_for_images_is_noticed(change: Any) -> None:
    """The copies that the kernels compute with knew nothing of it."""
    changed_midway("ppo", "cpu", change, images=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("change", INSIDE)
@pytest.mark.parametrize("name", ["sac", "ppo-box"])
def test_what_changes_is_captured_anew(name: str, change: Any) -> None:
    """Graphs were chosen by the shapes of their inputs alone."""
    with capturing_on_the_cpu():
        changed_midway(name, "cudagraph", change, rtol=0, atol=0)


@pytest.mark.parametrize("change", [forward_hook, other_activation, method_on_an_instance])
def test_who_acts_looks_again(change: Any) -> None:
    """A rollout by the kernel for one environment, then one of what the policy has become."""
    env = make_vec("Pendulum-v1", 1)
    policy = make_policy(env.observation_space, env.action_space)
    asked: list[Any] = []

    def ask(*of: Any) -> Any:
        asked.append(actor_for(*of))
        return asked[-1]

    def collect(wanted: Any) -> torch.Tensor:
        collector = SerialCollector(
            make_vec("Pendulum-v1", 1), policy, rollout_length=8, seed=3, actor_for=wanted
        )
        first = collector.collect()["value"].clone()
        change(SimpleNamespace(policy=policy)) if wanted is ask else None
        may_have_changed()
        second = collector.collect()["value"].clone()
        assert wanted is None or not torch.equal(first, second)
        return second

    collect(ask)
    assert asked[0] is not None
    assert asked[1] is None
    env.close()


def test_the_range_of_a_standard_deviation_is_the_present_one() -> None:
    changed_midway("sac", "cpu", other_attribute, rtol=1e-4, atol=1e-5)


def test_an_attribute_may_become_anything() -> None:
    """A number became a tensor, which does not compare; and a user's module counts its calls."""

    class Counting(nn.Linear):
        calls = 0

        def forward(self, obs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(obs)

    learner = learners.make("sac")
    learner.policy.scale = 1.0
    learner.policy.dropout = nn.Dropout(0.5)
    learner.policy.own = Counting(2, 2)
    watch = NetworksWatch(learner)
    learner.policy.scale = torch.ones(2)
    may_have_changed()
    assert watch.changed()
    learner.policy.own(torch.zeros(2))  # sets an attribute, which is looked at once
    may_have_changed()
    watch.changed()
    learner.policy.own(torch.zeros(2))
    may_have_changed()
    assert not watch.changed()
    learner.policy.dropout.p = 0.0
    may_have_changed()
    assert watch.changed()


@pytest.mark.parametrize("change", [other_mode, other_attribute, other_buffer])
def test_modes_attributes_and_buffers_are_seen(change: Any) -> None:
    """Dropout goes on in a graph after `eval()`, and a mask stays what it was."""
    learner = learners.make("sac")
    learner.policy.register_buffer("scale", torch.ones(2))
    watch = NetworksWatch(learner)
    may_have_changed()
    assert not watch.changed()
    change(learner)
    may_have_changed()
    assert watch.changed()


class Moving(PPO):
    """Puts its parameters into other memory, as `vector_to_parameters` does."""

    differences: ClassVar[list[float]] = []

    def update(self, rollout: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            value = self.policy.evaluate_rollout(rollout).value
        self.differences.append(float((value - rollout["value"]).abs().max()))
        metrics = super().update(rollout)
        for parameter in self.policy.parameters():
            parameter.data = parameter.data + 1.0
        return metrics


def test_what_acts_looks_again_after_the_update_of_a_users_algorithm(tmp_path: Path) -> None:
    """The kernel for one environment acted with the weights from before for ever."""
    Moving.differences.clear()
    redline.train(
        Moving, env="CartPole-v1", total_env_steps=128, out=tmp_path / "run", quiet=True,
        num_envs=1, rollout_length=32, num_minibatches=1,
    )  # fmt: skip
    assert len(Moving.differences) == 4
    assert max(Moving.differences) < 1e-3


def test_without_callbacks_nothing_is_looked_at() -> None:
    learner = learners.make("sac")
    watch = NetworksWatch(learner)
    forward_hook(learner)
    assert not watch.changed()
    may_have_changed()
    assert watch.changed()
    assert not watch.changed()  # it has been told
