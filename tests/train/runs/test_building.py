"""What a run says at its start of settings that are hardly meant so."""

from __future__ import annotations

from typing import Any

import pytest

from redline.algos.registry import find_algorithm
from redline.envs import EnvSettings
from redline.train.presets import preset_config
from redline.train.runs.building import said_at_start


def _said(
    algorithm: str, changed: frozenset[str] = frozenset(), preset: str = "default", **settings: Any
) -> list[str]:
    config = preset_config(algorithm, "Pendulum-v1", preset).replace(**settings)
    with EnvSettings(env="Pendulum-v1").make(1) as env:
        return said_at_start(config, env, find_algorithm(algorithm), changed)


def test_a_run_that_begins_to_learn_late_says_so() -> None:
    """Of 10,000 env_steps the first 5,000 are without an update, though nobody asked for that."""
    (said,) = _said("sac", total_env_steps=10_000)
    assert "learning_starts=5000 of total_env_steps=10000 env_steps" in said
    assert "Give a smaller learning_starts" in said
    assert _said("sac", total_env_steps=20_000) == []
    assert _said("ppo", total_env_steps=10_000) == []


def test_a_late_start_that_was_asked_for_is_not_spoken_of() -> None:
    asked = frozenset(["learning_starts"])
    assert _said("sac", asked, total_env_steps=10_000, learning_starts=6_000) == []


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg", "tqc", "crossq"])
def test_presets_begin_to_learn_early_enough(algorithm: str) -> None:
    assert _said(algorithm, preset="pendulum") == []


def test_critics_too_wide_for_a_cpu_are_spoken_of() -> None:
    """An update of CrossQ with the paper's took 1.5 s of a core: a million would take 17 days."""
    (said,) = _said("crossq")
    assert "critic_hidden_sizes=2048,2048" in said
    assert "such as 256,256" in said
    assert _said("crossq", critic_hidden_sizes=(256, 256)) == []
    assert _said("crossq", frozenset(["critic_hidden_sizes"])) == []
    assert _said("crossq", device="cuda") == []
