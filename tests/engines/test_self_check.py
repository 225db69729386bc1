"""The self-check finds planted faults, names them, and changes nothing where there is none."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from redline.algos.a2c import A2C
from redline.engines.engine import Engine, choose_engine, twin
from redline.engines.self_check import CheckedUpdate
from redline.errors import ConfigError
from tests.engines.learners import ALGORITHMS, batch, differing, make
from tests.engines.test_engine import COMPILING

Fault = Callable[[Any], Callable[[Any], dict[str, Any]]]
"""An algorithm -> an update of it with one mistake."""


def around(before: Callable[[Any], Any], after: Callable[[Any, Any, Any], Any]) -> Fault:
    """The written update between two actions; what `after` returns are the metrics."""

    def fault(learner: Any) -> Callable[[Any], Any]:
        def update(data: Any) -> Any:
            kept = before(learner)
            return after(learner, dict(learner.update(data)), kept)

        return update

    return fault


def with_gradient(change: Callable[[Any], Any], parameter: Callable[[Any], Any]) -> Fault:
    """One parameter's gradient is changed before it is used."""

    def after(learner: Any, metrics: Any, handle: Any) -> Any:
        handle.remove()
        return metrics

    return around(lambda learner: parameter(learner).register_hook(change), after)


def with_config(**settings: Any) -> Fault:
    """The update of other hyperparameters."""

    def fault(learner: Any) -> Any:
        return twin(learner, config=replace(learner.config, **settings)).update

    return fault


def not_changing(tensors: Callable[[Any], Any]) -> Fault:
    """The update leaves some tensors as they were."""

    def after(learner: Any, metrics: Any, kept: Any) -> Any:
        with torch.no_grad():
            for tensor, value in zip(tensors(learner), kept, strict=True):
                tensor.copy_(value)
        return metrics

    return around(lambda learner: [t.detach().clone() for t in tensors(learner)], after)


def then(action: Callable[[Any, Any], Any]) -> Fault:
    """The update, and then something more, from the algorithm and the metrics."""
    return around(lambda _: None, lambda learner, metrics, _: action(learner, metrics) or metrics)


def stale_observations(learner: Any) -> Any:
    """The rows of the batch before, as a buffer that was not refilled holds them."""

    def update(data: Any) -> Any:
        if hasattr(data, "with_columns"):
            return learner.update(data.with_columns(obs=data["obs"].roll(1, dims=0)))
        return learner.update(data.copy().update({"obs": data["obs"].roll(1, dims=0)}))

    return update


def rate_ignored(learner: Any) -> Any:
    """The step size of another moment of the schedule."""

    def update(data: Any) -> Any:
        present = learner.optimizer._present
        learner.optimizer.set_learning_rate(0.9 * present)
        metrics = learner.update(data)
        learner.optimizer.set_learning_rate(present)
        return metrics

    return update


def raising(_: Any) -> Any:
    def update(data: Any) -> Any:
        raise RuntimeError("no such kernel")

    return update


def half_done(learner: Any) -> Any:
    """It fails after it has changed something."""

    def update(data: Any) -> Any:
        learner.update(data)
        raise RuntimeError("no such kernel")

    return update


def drawn_too_often(learner: Any, _: Any) -> None:
    torch.rand(1, generator=learner.generator)


def global_generator(learner: Any, _: Any) -> None:
    torch.rand(1)


def not_a_number(learner: Any, _: Any) -> None:
    with torch.no_grad():
        learner.policy.value_head.weight[0, 0] = torch.nan


def one_row_wrong(learner: Any, _: Any) -> None:
    """One unit of a layer moves twice as far."""
    weight = learner.policy.torso[1][0].weight
    with torch.no_grad():
        weight[0] += learner.config.learning_rate


FAULTS: dict[str, tuple[str, Fault, str]] = {
    "wrong sign of a gradient": (
        "ppo-box",
        with_gradient(torch.neg, lambda ppo: ppo.policy.policy_head.bias),
        "policy.policy_head.bias",
    ),
    # Adam's first step is the gradient's sign: its size shows in the moments alone.
    "a gradient of twice the size": (
        "dqn",
        with_gradient(lambda g: 2.0 * g, lambda dqn: dqn.parameters[0]),
        "policy.torso.1.0.weight (exp_avg_sq of its optimizer)",
    ),
    "missing entropy term": (
        "ppo-box",
        lambda learner: twin(learner, entropy_coef=torch.zeros(())).update,
        "policy.action_head",
    ),
    "value coefficient forgotten": (
        "ppo-discrete",
        with_config(value_coef=1.0),
        "policy.value_head.weight",
    ),
    "gradients not clipped": ("dqn", with_config(max_grad_norm=0.0), "of its optimizer"),
    "advantages not normalized": ("ppo-box", with_config(normalize_advantage=False), ""),
    "discount forgotten": ("a2c", with_config(gamma=1.0), ""),
    "stale observations on-policy": ("a2c", stale_observations, ""),
    "stale observations off-policy": ("ddpg", stale_observations, ""),
    "target network not moved": (
        "ddpg",
        not_changing(lambda ddpg: list(ddpg.target.parameters())),
        "target.",
    ),
    "actor not learned": ("td3", not_changing(lambda td3: td3.parameters), "policy."),
    "actor's targets not moved": (
        "td3",
        not_changing(lambda td3: list(td3.target_policy.parameters())),
        "target_policy.",
    ),
    "hard target copy left out": (
        "dqn",
        not_changing(lambda dqn: list(dqn.target_policy.parameters())),
        "target.",
    ),
    "alpha not learned": ("sac", not_changing(lambda sac: [sac._log_alpha]), "log_alpha"),
    "one layer not learned": (
        "sac",
        not_changing(lambda sac: [sac.critic.ensemble.weights[1]]),
        "critic.ensemble.weights.1",
    ),
    "one unit wrong": ("ppo-box", then(one_row_wrong), "policy.torso.1.0.weight"),
    "Adam's count off by one": (
        "ppo-box",
        then(lambda ppo, _: ppo.optimizer.counts[2].add_(1.0) and None),
        "(step of its optimizer)",
    ),
    "count of updates off by one": (
        "sac",
        then(lambda sac, _: setattr(sac, "updates", sac.updates + 1)),
        "updates",
    ),
    "generator drawn once too often": ("sac", then(drawn_too_often), "generator"),
    "global generator drawn from": ("sac", then(global_generator), "random numbers"),
    "metric of the batch before": (
        "a2c",
        then(lambda _, metrics: metrics | {"policy_loss": metrics["policy_loss"] + 0.5}),
        "the metric policy_loss",
    ),
    "metric of the wrong shape": (
        "a2c",
        then(lambda _, metrics: metrics | {"entropy": metrics["entropy"].expand(3)}),
        "the metric entropy",
    ),
    "priorities not returned": (
        "dqn",
        then(lambda _, metrics: {n: v for n, v in metrics.items() if n != "priority"}),
        "the metric priority",
    ),
    "priorities in another order": (
        "ddpg",
        then(lambda _, metrics: metrics | {"priority": metrics["priority"].flip(0)}),
        "the metric priority",
    ),
    "learning rate ignored": ("reinforce", rate_ignored, "policy."),
    "not a number": ("a2c", then(not_a_number), "policy.value_head.weight"),
    "an error": ("ppo-box", raising, "no such kernel"),
    "an error half way": ("sac", half_done, "no such kernel"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_the_run_goes_on_right(fault: str) -> None:
    """Several updates after it: parameters, moments and counts equal a purely eager run's."""
    name, plant, named = FAULTS[fault]
    eager, run = make(name), make(name)
    said: list[str] = []
    checked = CheckedUpdate(
        run, Engine("faulty", "planted", plant(run), checked_at=(0,)), said.append
    )
    turns = {"td3": 2, "dqn": 3, "sac": 2}.get(name, 1)  # updates until every part has had its turn
    data = [batch(name, eager, seed) for seed in range(turns + 2)]
    for rows in data[:turns]:
        state = torch.get_rng_state()
        eager.update(rows)
        torch.set_rng_state(state)
        checked(rows)
        if said:
            break
        # Until its turn comes, this fault is none, or too small to see.
        run.load_state_dict(eager.state_dict())
    assert len(said) == 1, "not found"
    assert named in said[0]
    assert "faulty" in said[0]
    assert "eager" in said[0]
    assert checked.agrees is False
    for rows in data[turns:]:
        assert not differing(eager.update(rows), checked(rows))
    assert not differing(eager.state_dict(), run.state_dict())


def generators() -> list[Any]:
    """The states of all global generators, to compare."""
    return [
        torch.get_rng_state().tolist(),
        str(np.random.get_state()),
        random.getstate(),
    ]


def runs_alike(name: str, mode: str, updates: int, backend: str = "inductor") -> CheckedUpdate:
    """With the check and without: the same results, states and generators, to the bit."""
    results: list[Any] = []
    checked = None
    for with_check in (True, False):
        torch._dynamo.reset()
        learner = make(name)
        engine = choose_engine(learner, mode, backend=backend)
        update: Any = engine.update
        if with_check:
            if engine.name == "eager":  # nothing would be checked: it is held to itself
                engine = replace(engine, checked_at=(0,))
            update = checked = CheckedUpdate(learner, engine, pytest.fail)
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        metrics = [dict(update(batch(name, learner, seed))) for seed in range(updates)]
        state = {key: value for key, value in learner.state_dict().items()}
        results.append(({str(i): m for i, m in enumerate(metrics)}, state, generators()))
    (metrics, state, drawn), (other_metrics, other_state, other_drawn) = results
    assert not differing(metrics, other_metrics)
    assert not differing(state, other_state)
    assert drawn == other_drawn
    assert checked is not None
    return checked


@pytest.mark.parametrize("name", [*ALGORITHMS, "rainbow", "iqn", "redq", "ppo-limited"])
def test_without_a_fault_the_check_changes_nothing(name: str) -> None:
    assert runs_alike(name, "cpu", 4).agrees


@pytest.mark.filterwarnings(*COMPILING)
def test_without_a_fault_the_check_changes_nothing_when_compiled() -> None:
    assert runs_alike("a2c", "compile", 3, "aot_eager").agrees


@pytest.mark.parametrize(
    ("name", "compared"),
    [("a2c", 1), ("td3", 2), ("sac", 2), ("dqn", 2), ("diayn", 1)],
)
def test_every_kind_of_update_is_compared_once(name: str, compared: int) -> None:
    """TD3's actor learns in the second update, DQN's target network moves in the third."""
    learner = make(name)
    calls = []
    engine = Engine("same", "", lambda data: calls.append(0) or learner.update(data), None, (0,))
    checked = CheckedUpdate(learner, engine, pytest.fail)
    eager = make(name)
    steps = []
    before = learner.update
    for seed in range(6):
        data = batch(name, eager, seed)
        count: list[int] = []
        learner.update = lambda rows, count=count: count.append(0) or before(rows)
        checked(data)
        del learner.update
        steps.append(len(count))  # 2 where the written update ran beside the engine's
    assert steps.count(2) == compared
    assert steps[-1] == 1


def test_the_check_goes_by_the_count_of_a_resumed_run() -> None:
    """A run that is resumed between two turns of the actor compares the next one."""
    learner = make("td3")
    for seed in range(1):
        learner.update(batch("td3", learner, seed))
    seen: list[str] = []
    plant = not_changing(lambda td3: td3.parameters)
    checked = CheckedUpdate(learner, Engine("faulty", "", plant(learner), None, (0,)), seen.append)
    checked(batch("td3", learner, 1))
    assert "policy." in seen[0]


def online_for_target(learner: Any) -> Any:
    """The online networks take the place of the target ones."""
    return twin(learner, target=learner.critic, target_policy=learner.policy).update


def first_temperature(learner: Any) -> Any:
    """The temperature of the start, for ever."""
    alpha = learner.alpha()
    learner.alpha_optimizer.set_learning_rate(0.05)  # what thousands of updates would do
    return twin(learner, alpha=lambda: alpha).update


def first_learning_rate(learner: Any) -> Any:
    """What the schedule says comes to nothing."""
    rate = learner.optimizer.learning_rate.clone()

    def update(data: Any) -> Any:
        learner.optimizer.learning_rate.copy_(rate)
        return learner.update(data)

    return update


@pytest.mark.parametrize(
    ("name", "plant", "named"),
    [
        ("ddpg", online_for_target, "critic"),
        ("sac", first_temperature, "critic_optimizer"),
        ("a2c-box", first_learning_rate, "policy"),
    ],
)
def test_faults_that_show_only_later_are_found(name: str, plant: Fault, named: str) -> None:
    """At the first update targets equal the online networks, and nothing is scheduled yet."""
    learner, said = make(name), []
    engine = Engine("faulty", "planted", plant(learner), checked_at=(0, 1, 10, 100))
    checked = CheckedUpdate(learner, engine, said.append)
    for update in range(102):
        if name == "a2c-box":
            rate = learner.config.learning_rate * (1.0 - update / 200)
            learner.set_hyperparameters({"learning_rate": rate})
        before = len(said)
        checked(batch(name, make(name), update % 8))
        if update == 0:
            assert not said
        if len(said) > before:
            break
    assert named in said[0]


class Hoarder(A2C):
    """Keeps things that its state leaves out."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.seen: list[int] = []
        self.counts: dict[str, int] = {}
        self.extra = torch.nn.Linear(2, 1)
        self.extra_optimizer = torch.optim.Adam(self.extra.parameters())

    def update(self, rollout: Any) -> Any:
        self.seen.append(len(self.seen))
        self.counts["all"] = self.counts.get("all", 0) + 1
        self.extra_optimizer.zero_grad()
        self.extra(torch.ones(2)).sum().backward()
        self.extra_optimizer.step()
        rollout["reward"].mul_(0.5)
        return super().update(rollout)

    def state_dict(self) -> Any:
        return super().state_dict() | {"table": np.arange(3.0)}


def test_what_a_users_state_leaves_out_is_put_back() -> None:
    results = []
    for with_check in (True, False):
        torch.manual_seed(0)
        learner = make("a2c", Hoarder)
        update: Any = learner.update
        if with_check:
            engine = Engine("same", "", learner.update, checked_at=(0, 1))
            update = CheckedUpdate(learner, engine, pytest.fail)
        for seed in range(3):
            update(batch("a2c", make("a2c"), seed))
        results.append((learner.seen, learner.counts, learner.extra.weight.tolist()))
        assert not learner.load_state_dict(learner.state_dict())
    assert results[0] == results[1]
    assert results[0][0] == [0, 1, 2]


class Counts(A2C):
    """Counts what its state leaves out, and goes by it."""

    turns = 0

    def update(self, rollout: Any) -> Any:
        self.turns += 1
        return super().update(rollout) if self.turns < 3 else {}


class Lists:
    """An algorithm of a user's own: networks in a list, and much beside its state."""

    inner, device = "", torch.device("cpu")

    def __init__(self) -> None:
        self.nets = [torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)]
        self.mean, self.recent = np.zeros(3), deque[int]()
        self.averages = {"w": torch.zeros(2), "of": [torch.zeros(1)]}

    def update(self, data: Any) -> dict[str, Any]:
        with torch.no_grad():
            for net in self.nets:
                net.weight -= 0.1
        self.mean += 1
        self.recent.append(1)
        self.averages["w"] += 1  # type: ignore[operator]
        self.averages["of"][0] += 1
        return {"pair": 1.0}

    def state_dict(self) -> dict[str, Any]:
        return {"nets": [net.state_dict() for net in self.nets], "point": Point(1.0, 2.0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for net, own in zip(self.nets, state["nets"], strict=True):
            net.load_state_dict(own)


class Point(NamedTuple):
    """A pair in a state."""

    x: float
    y: float


def test_lists_and_what_changes_in_place_are_compared_and_put_back() -> None:
    """Tensors in a list ended the run; arrays, deques and what containers hold changed twice."""
    plain, checked = Lists(), Lists()
    checked.load_state_dict(plain.state_dict())
    held = checked.averages["w"], checked.nets[0].weight
    engine = Engine("same", "", checked.update, checked_at=(0,))
    update = CheckedUpdate(checked, engine, pytest.fail)
    for _ in range(2):
        plain.update(None)
        update(None)
    assert update.agrees
    for one, other in zip(checked.nets, plain.nets, strict=True):
        assert torch.equal(one.weight, other.weight)
    assert checked.mean.tolist() == [2.0] * 3
    assert list(checked.recent) == [1, 1]
    assert (checked.averages["w"].tolist(), checked.averages["of"][0].item()) == ([2.0, 2.0], 2.0)
    assert held[0] is checked.averages["w"]
    assert held[1] is checked.nets[0].weight

    def forgets_one() -> dict[str, Any]:
        checked.update(None)
        with torch.no_grad():
            checked.nets[1].weight += 0.1
        return {"pair": 1.0}

    told: list[str] = []
    engine = Engine("wrong", "", lambda _: forgets_one(), checked_at=(0,))
    CheckedUpdate(checked, engine, told.append)(None)
    assert "nets.1.weight" in told[0]


def test_a_count_beside_the_state_that_an_engine_forgets_is_found() -> None:
    """As a captured graph does: it was captured in the first turn, and has no other."""
    learner = make("a2c", Counts)
    said: list[str] = []
    forgetful = Engine("graph", "", lambda rows: A2C.update(learner, rows), None, (0,))
    update = CheckedUpdate(learner, forgetful, said.append)
    for seed in range(4):
        update(batch("a2c", make("a2c"), seed))
    assert "changed the attribute turns" in said[0]
    assert learner.turns == 4


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "returned None, not its metrics"),
        ({"loss": "low"}, "the metric 'loss' = 'low'"),
        ({"loss": torch.zeros(3)}, "which is not one number"),
    ],
)
def test_metrics_that_are_none_are_named(returned: Any, said: str) -> None:
    learner = make("a2c")
    checked = CheckedUpdate(learner, Engine("x", "", learner.update, None, (0,)), pytest.fail)
    learner.update = lambda _: returned
    with pytest.raises(ConfigError, match=f"A2C.update .*{said}"):
        checked(batch("a2c", make("a2c"), 0))


class Amplifying(A2C):
    """Its update makes much of the last digits, in some updates, as PPO's does now and then."""

    amplifies = 1

    def update(self, rollout: Any) -> Any:
        metrics = super().update(rollout)
        self.number = getattr(self, "number", 0) + 1
        if self.number <= self.amplifies:
            with torch.no_grad():
                weight = self.policy.value_head.weight
                weight.add_(0.1 * torch.sin(1e7 * weight.double()).float())
        return metrics


class AlwaysAmplifying(Amplifying):
    amplifies = 100


def rounded_otherwise(learner: Any) -> Any:
    """The same update, with other last digits."""

    def update(data: Any) -> Any:
        with torch.no_grad():
            learner.policy.value_head.weight.mul_(1.0 + 1.5e-7)
        return learner.update(data)

    return update


def checks(learner: Any, engine: Engine, updates: int) -> tuple[CheckedUpdate, list[str], int]:
    """The check, what it said, and how often the written update ran beside the engine's."""
    said: list[str] = []
    checked = CheckedUpdate(learner, engine, said.append)
    compared = 0
    for seed in range(updates):
        data = batch("a2c", learner, seed)
        left = set(checked._left)
        checked(data)
        compared += seed in left
    return checked, said, compared


def test_an_update_that_makes_much_of_rounding_says_nothing_of_the_engine() -> None:
    """PPO on HalfCheetah lost its kernels after 205,000 env_steps: seed 1, by 61 times."""
    learner = make("a2c", Amplifying)
    engine = Engine("other", "", rounded_otherwise(learner), checked_at=(0,))
    checked, said, compared = checks(learner, engine, 4)
    assert said == []
    assert checked.agrees
    assert compared == 2  # the first said nothing, so the second was looked at
    assert learner.number == 4


def test_the_engines_result_stands_where_rounding_decides() -> None:
    """To the bit: a run that was killed and goes on compares other updates."""
    results = []
    for checked_at in ((0,), ()):
        learner = make("a2c", Amplifying)
        engine = Engine("other", "", rounded_otherwise(learner), checked_at=checked_at)
        checks(learner, engine, 3)
        results.append(learner.state_dict())
    assert not differing(*results)


def test_a_fault_beside_an_update_that_makes_much_of_rounding_is_found_next() -> None:
    learner = make("a2c", Amplifying)
    plant = with_gradient(torch.neg, lambda a2c: a2c.policy.policy_head.bias)
    faulty = plant(learner)
    checked, said, _ = checks(learner, Engine("faulty", "", faulty, checked_at=(0,)), 3)
    assert len(said) == 1
    assert "policy.policy_head.bias" in said[0]
    assert checked.agrees is False


def test_an_update_that_can_never_be_compared_runs_as_it_is_written() -> None:
    learner, eager = make("a2c", AlwaysAmplifying), make("a2c", AlwaysAmplifying)
    engine = Engine("other", "", rounded_otherwise(learner), checked_at=(0,))
    checked, said, compared = checks(learner, engine, 15)
    assert compared == 10
    assert "cannot be compared with the update as it is written" in said[0]
    assert "in 10 updates rounding alone changed policy.value_head.weight" in said[0]
    assert "smaller learning rate" in said[0]
    eager.load_state_dict(learner.state_dict())
    eager.number = learner.number
    data = batch("a2c", learner, 99)
    assert not differing(eager.update(data), checked(data))


def test_what_is_not_put_back_is_no_rounding() -> None:
    """An update that differs from itself without a shift: the check falls back, as before."""

    numbers = iter(range(1, 100))  # no check puts it back

    class Counting(A2C):
        def update(self, rollout: Any) -> Any:
            with torch.no_grad():
                self.policy.value_head.weight.add_(0.1 * next(numbers))
            return super().update(rollout)

    learner = make("a2c", Counting)
    _, said, _ = checks(learner, Engine("same", "", learner.update, checked_at=(0,)), 1)
    assert "otherwise than the update as it is written" in said[0]
