"""A setting that the user changes and nothing in the run uses is refused, naming whose it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import redline
from redline.algos.registry import algorithm_names, declaration
from redline.cli import main
from redline.collect import SerialCollector
from redline.collect.collector import CollectorSetup
from redline.command_line.train import parse_train_arguments
from redline.errors import ConfigError
from redline.train.runs.idle_settings import changed_settings
from redline.train.settings import PolicySettings, RunSettings

SMALL: dict[str, Any] = {
    "preset": "default",
    "total_env_steps": 64,
    "num_envs": 2,
    "hidden_sizes": (4,),
    "quiet": True,
    "tensorboard": False,
}
ON_POLICY: dict[str, Any] = SMALL | {"rollout_length": 16}
OFF_POLICY: dict[str, Any] = SMALL | {
    "rollout_length": 8, "batch_size": 4, "replay_size": 64, "replay_ratio": 1.0,
    "learning_starts": 16,
}  # fmt: skip

IDLE: list[tuple[str, str, dict[str, Any], str]] = [
    # (algorithm, env, settings, what the error names)
    ("ppo", "CartPole-v1", {"cpu_affinity": "97-99"}, "collector='central'"),
    ("ppo", "CartPole-v1", {"num_workers": 3}, "env_backend='processes'"),
    ("ppo", "CartPole-v1", {"max_staleness": 2}, "'async' and collector='ray', and here is"),
    ("ppo", "CartPole-v1", {"max_staleness": 2, "collector": "workers"}, "collector='async'"),
    ("ppo", "CartPole-v1", {"num_groups": 3, "collector": "central"}, "collector='alternating'"),
    ("ppo", "CartPole-v1", {"overlap_groups": False}, "collector='alternating'"),
    ("ppo", "CartPole-v1", {"worker_timeout_s": 3.0}, "eval_async"),
    ("ppo", "CartPole-v1", {"worker_timeout_s": 3.0, "eval_interval": 32}, "eval_async"),
    ("ppo", "CartPole-v1", {"eval_async": True}, "eval_interval other than 0"),
    ("ppo", "CartPole-v1", {"eval_episodes": 3}, "eval_interval other than 0"),
    ("ppo", "CartPole-v1", {"eval_max_episode_steps": 9}, "eval_interval other than 0"),
    ("ppo", "CartPole-v1", {"checkpoint_gap": 32}, "checkpoints='gap' or 'last+gap'"),
    ("ppo", "CartPole-v1", {"checkpoints": "none", "checkpoint_interval": 32}, "checkpoints other"),
    ("ppo", "CartPole-v1", {"accelerate": "eager", "self_check": False}, "accelerate other than"),
    ("ppo", "CartPole-v1", {"atari_preset": "machado-2018"}, "ALE environments, and here are none"),
    ("ppo", "CartPole-v1", {"core_size": 8}, "core other than 'none'"),
    ("ppo", "CartPole-v1", {"core": "lstm", "core_window": 8}, "core='transformer'"),
    ("ppo", "CartPole-v1", {"initial_log_std": -1.0}, "Box actions, and here are Discrete"),
    ("dqn", "CartPole-v1", {"v_min": -5.0}, "value_distribution='categorical'"),
    ("dqn", "CartPole-v1", {"noisy_std": 0.1}, "noisy=True"),
    ("dqn", "CartPole-v1", {"num_quantiles": 8}, "value_distribution='quantile'"),
    ("dqn", "CartPole-v1", {"priority_alpha": 0.5}, "prioritized=True"),
    ("dqn", "CartPole-v1", {"her_share": 0.5}, "replay='her'"),
    ("dqn", "CartPole-v1", {"ape_x_epsilon": 0.3}, "epsilon_schedule='ape-x'"),
    (
        "dqn", "CartPole-v1", {"epsilon_schedule": "ape-x", "epsilon_final": 0.2},
        "epsilon_schedule='linear'",
    ),
    (
        "dqn", "CartPole-v1", {"value_distribution": "categorical", "huber_threshold": 2.0},
        "value_distribution other than 'categorical'",
    ),
    ("sac", "Pendulum-v1", {"alpha": 0.1, "initial_alpha": 0.2}, "alpha=None"),
    ("sac", "Pendulum-v1", {"target_entropy_scale": 0.7}, "Discrete actions, and here are Box"),
    (
        "sac", "CartPole-v1", {"target_entropy": 0.1, "target_entropy_scale": 0.7},
        "target_entropy=None",
    ),
    ("td3", "Pendulum-v1", {"priority_beta": 0.5}, "prioritized=True"),
    ("td3", "Pendulum-v1", {"noise_color": 1.0, "exploration_noise": 0.0}, "exploration_noise"),
    ("ddpg", "Pendulum-v1", {"noise_color": 1.0, "exploration_noise": 0.0}, "exploration_noise"),
    ("td3", "Pendulum-v1", {"target_noise_clip": 0.3, "target_noise": 0.0}, "target_noise other"),
    ("ppo", "CartPole-v1", {"clip_range_value": 0.2, "value_coef": 0.0}, "value_coef other than"),
    ("ppo", "CartPole-v1", {"activation": "relu", "hidden_sizes": ()}, "hidden_sizes other than"),
    ("ppo", "FrozenLake-v1", {"normalize_obs": True}, "float observations, and here are none"),
    ("ppo", "redline/CartPole-v1", {"check_env": "always"}, "env_backend='processes'"),
]  # fmt: skip


def started(algorithm: str, env: str, out: Path, **settings: Any) -> Any:
    usual = ON_POLICY if algorithm == "ppo" else OFF_POLICY
    if algorithm in ("dqn", "r2d1"):
        usual = usual | {"target_update_interval": 1}
    return redline.train(algorithm, env=env, out=out, **(usual | settings))


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "said"), IDLE, ids=[f"{c[0]}-{'-'.join(c[2])}" for c in IDLE]
)
def test_what_has_no_effect_is_refused(
    algorithm: str, env: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has no effect in this run") as caught:
        started(algorithm, env, tmp_path / "run", **settings)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_image_or_a_network_of_ones_own_has_no_hidden_layers(
    algorithm: str, tmp_path: Path
) -> None:
    """The convolutional network ends in a layer of its own; SAC's critics have the layers."""
    with pytest.raises(ConfigError, match="dense layers, and here are none"):
        started(algorithm, "MinAtar/Breakout-v1", tmp_path / "a")
    network = {"network": lambda space: nn.Flatten()}
    with pytest.raises(ConfigError, match="dense layers, and here are none"):
        started(algorithm, "CartPole-v1", tmp_path / "b", **network)
    run = started("sac", "MinAtar/Breakout-v1", tmp_path / "c", learning_starts=48)
    assert run.inspect()["env_steps"] == 64


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"num_workers": 1, "env_backend": "processes"}),
        ("ppo", {"num_workers": 1, "cpu_affinity": "auto", "collector": "workers"}),
        ("ppo", {"worker_timeout_s": 20.0, "eval_async": True, "eval_interval": 64}),
        ("ppo", {"max_staleness": 1, "core_size": 128, "eval_episodes": 10}),  # the defaults
        ("ppo", {"check_env": "always", "normalize_obs": True, "clip_range_value": 0.2}),
        ("ppo", {"check_env": "off", "env_backend": "processes"}),
        ("dqn", {"prioritized": True, "priority_alpha": 0.5}),
        ("dqn", {"noisy": True, "epsilon_final": 0.0}),  # both explore
    ],
)
def test_what_has_an_effect_or_is_the_default_is_not(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = started(algorithm, "CartPole-v1", tmp_path / "run", **settings)
    assert run.inspect()["env_steps"] == 64


def test_a_preset_may_set_what_has_no_effect() -> None:
    """The user turns the core off; its size, 64, is the preset's and not the user's."""
    words = ["ppo", "--env", "redline/TMaze-v1", "--core", "none", "--cpu-affinity", "auto"]
    assert changed_settings(parse_train_arguments(words), "ppo") == {"cpu_affinity"}


def test_a_collector_of_ones_own_says_what_it_takes(tmp_path: Path) -> None:
    """One that derives from the serial one has its options, and may add to them."""

    class Plain(SerialCollector):
        pass

    class Patient(SerialCollector):
        options = ("max_staleness",)

        @classmethod
        def make(cls, setup: CollectorSetup) -> Any:
            assert setup.max_staleness == 3
            return super().make(setup)

    with pytest.raises(ConfigError, match="max_staleness=3 has no effect"):
        started("ppo", "CartPole-v1", tmp_path / "a", collector=Plain, max_staleness=3)
    run = started("ppo", "CartPole-v1", tmp_path / "b", collector=Patient, max_staleness=3)
    assert run.inspect()["env_steps"] == 64


def test_a_run_of_before_is_resumed_with_whatever_it_has(tmp_path: Path) -> None:
    """0.1 accepted them: the run goes on as it did."""
    out = tmp_path / "run"
    started("ppo", "CartPole-v1", out)
    config = json.loads((out / "config.json").read_text())
    config["run"] |= {"max_staleness": 5, "eval_async": True}
    config["policy"]["core_size"] = 9
    (out / "config.json").write_text(json.dumps(config))
    resumed = redline.train(resume=out, total_env_steps=128, quiet=True, accept_changed_config=True)
    assert resumed.inspect()["env_steps"] == 128


def test_the_command_line_refuses_likewise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", "CartPole-v1", "--out", str(tmp_path / "run"), "--cpu-affinity", "97-99"]
    assert main(["train", "ppo", *words]) == 2
    assert "cpu_affinity='97-99' has no effect in this run" in capfd.readouterr().err


def test_every_condition_names_settings_that_there_are() -> None:
    """A renamed setting must not leave a rule behind that never applies."""
    stand_ins = {"actions", "environments", "layers", "observations"}
    for algorithm in algorithm_names():
        parts = (RunSettings, PolicySettings, declaration(algorithm).Config)
        known = {name for part in parts for name in part.__dataclass_fields__} | stand_ins
        for part in parts:
            for kind in part.__mro__:
                for name, conditions in vars(kind).get("only_with", {}).items():
                    assert name in part.__dataclass_fields__, (algorithm, name)
                    assert {condition.name for condition in conditions} <= known


def test_the_activation_of_the_critics_layers_alone_has_an_effect(tmp_path: Path) -> None:
    """A linear policy beside a critic of layers; it was refused."""
    settings = {"hidden_sizes": (), "critic_hidden_sizes": (8,), "activation": "relu"}
    run = started("ppo", "CartPole-v1", tmp_path / "run", **settings)
    kinds = [type(module).__name__ for module in run.policy().modules()]
    assert kinds.count("ReLU") == 1
