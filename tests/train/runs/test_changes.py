"""What a resumed run may change, by its settings alone."""

from __future__ import annotations

from typing import Any

import pytest

from redline.errors import ConfigError
from redline.train.config_files import GivenSettings, config_of
from redline.train.runs import changes
from redline.train.runs.changes import changed_config, differences, told_of_changes
from redline.train.settings import RunConfig


@pytest.fixture(autouse=True)
def every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with GPUs."""
    monkeypatch.setattr(changes, "require_device", lambda *_, **__: None)
    chosen = {"auto": "cuda"}
    monkeypatch.setattr(changes, "choose_device", lambda asked: (chosen.get(asked, asked), ""))


def config(**settings: Any) -> RunConfig:
    return config_of(GivenSettings(), algorithm="ppo", env="CartPole-v1", **settings)


def changed(before: RunConfig, why: str | None = None, **new: Any) -> dict[str, Any]:
    return {n: now for n, (_, now) in differences(before, changed_config(before, new, why)).items()}


@pytest.mark.parametrize("engine", ["cpu", "cudagraph", "compile+cudagraph"])
def test_an_engine_of_one_kind_of_device_is_chosen_anew(engine: str) -> None:
    before = config(device="cpu", accelerate=engine, cpu_acting=True)
    expected = {"device": "cuda", "accelerate": "auto", "cpu_acting": None}
    assert changed(before, device="cuda") == expected


def test_engines_that_run_anywhere_stay_if_they_were_a_choice() -> None:
    compiled, eager = config(accelerate="compile"), config(accelerate="eager")
    assert changed(compiled, device="cuda") == {"device": "cuda"}
    assert changed(eager, "as asked for", device="cuda") == {"device": "cuda"}
    reason = "the CPU kernels are not installed"
    assert changed(eager, reason, device="cuda") == {"device": "cuda", "accelerate": "auto"}


def test_a_given_engine_counts() -> None:
    found = changed(config(accelerate="cpu"), device="cuda", accelerate="compile")
    assert found == {"device": "cuda", "accelerate": "compile"}
    assert changed(config(accelerate="cpu"), accelerate="eager") == {"accelerate": "eager"}


def test_another_device_of_the_same_kind_is_no_reason_to_choose() -> None:
    before = config(device="cuda:0", accelerate="cudagraph")
    assert changed(before, device="cuda:1") == {"device": "cuda:1"}
    assert changed(config(device="cuda", accelerate="cudagraph"), device="auto") == {}


def test_places_that_the_run_named_may_be_others() -> None:
    before = config(policy_device="cuda", env_device="cuda")
    found = changed(before, policy_device="cpu", env_device="auto", eval_device="cpu")
    assert found == {"policy_device": "cpu", "eval_device": "cpu"}


@pytest.mark.parametrize(
    ("before", "new"),
    [({}, {"policy_device": "cpu"}), ({"env_device": "cpu"}, {"env_device": None})],
)
def test_places_are_neither_given_nor_taken(before: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="those of another loop"):
        changed_config(config(**before), new)


@pytest.mark.parametrize("name", ["seed", "num_envs", "hidden_sizes", "replay_mode"])
def test_what_is_saved_stays(name: str) -> None:
    new = {"seed": 2, "num_envs": 3, "hidden_sizes": (8,), "replay_mode": 1}[name]
    with pytest.raises(ConfigError, match=name):
        changed_config(config(), {name: new})


@pytest.mark.parametrize(
    ("name", "new"),
    [("sequence_length", 30), ("burn_in", 5), ("state_interval", 40), ("priority_alpha", 0.5)],
)
def test_what_the_saved_replay_looks_like_stays(name: str, new: float) -> None:
    """The replay itself refused them later, by names that no setting has."""
    before = config_of(GivenSettings(), algorithm="r2d1", env="CartPole-v1")
    with pytest.raises(ConfigError, match=f"^{name} cannot be changed when a run is resumed"):
        changed_config(before, {name: new})


@pytest.mark.parametrize(
    ("algorithm", "of_the_run", "new"),
    [
        ("dqn", {"value_distribution": "categorical"}, {"v_min": 0.0, "v_max": 500.0}),
        (
            "dqn",
            {"value_distribution": "categorical", "num_quantiles": 51},
            {"value_distribution": "quantile"},
        ),
        ("dqn", {"value_distribution": "categorical"}, {"num_atoms": 21}),
        ("tqc", {}, {"num_quantiles": 20}),
        ("r2d1", {}, {"value_rescaling": False}),
        ("sac", {}, {"critic_hidden_sizes": (3, 3)}),
        ("sac", {}, {"num_critics": 3}),
        ("dqn", {}, {"dueling": True}),
    ],
)
def test_what_saved_outputs_mean_stays(
    algorithm: str, of_the_run: dict[str, Any], new: dict[str, Any]
) -> None:
    """Weights of the same shapes were taken for logits of other atoms, or for quantiles."""
    before = config_of(GivenSettings(), algorithm=algorithm, env="CartPole-v1", **of_the_run)
    with pytest.raises(ConfigError, match=f"^{', '.join(sorted(new))} cannot be changed"):
        changed_config(before, new)


def told(before: RunConfig, **new: Any) -> list[str]:
    return told_of_changes(before, changed_config(before, new), new)


def test_rates_of_their_own_that_stay_are_named() -> None:
    """SAC's preset has 1e-3 for critics and temperature."""
    sac = config_of(GivenSettings(), algorithm="sac", env="HalfCheetah-v5")
    assert told(sac, learning_rate=1e-4) == [
        "learning_rate=0.0001 does not change critic_learning_rate=0.001 and "
        "alpha_learning_rate=0.001, which the run has of its own. Set them, too, if they are meant."
    ]
    one = told(sac, learning_rate=1e-4, critic_learning_rate=1e-4)
    assert "change alpha_learning_rate=0.001, which" in one[0]
    rates = ("learning_rate", "critic_learning_rate", "alpha_learning_rate")
    assert told(sac, **dict.fromkeys(rates, 1e-4)) == []
    assert told(sac, gamma=0.9) == []
    assert told(config(), learning_rate=1e-4) == []


def test_what_begins_anew_is_named() -> None:
    a2c = config_of(GivenSettings(), algorithm="a2c", env="Blackjack-v1")
    assert told(a2c, optimizer="adam") == [
        "adam begins with averages of its own, which rmsprop did not keep."
    ]
    assert "statistics that scale rewards begin anew" in told(a2c, scale_reward=True)[0]
    scaled = config_of(GivenSettings(), algorithm="a2c", env="Blackjack-v1", scale_reward=True)
    assert told(scaled, scale_reward=False) == []
