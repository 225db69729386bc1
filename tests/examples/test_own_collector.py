"""`examples/own_collector.py`: one class that every run can collect with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import redline
from redline.collect import CollectorSetup, find_collector
from redline.envs import EnvSettings
from redline.errors import ConfigError, IncompatibleCheckpointError
from tests.collect.scripted import CountingPolicy, ScriptedEnv

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def curious(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return find_collector("own_collector:CuriousCollector")


def made(curious: Any) -> Any:
    setup = CollectorSetup(
        env=ScriptedEnv([[2]], ["truncated"]),
        settings=EnvSettings(env="CartPole-v1"),
        policy=CountingPolicy(),
        num_envs=1,
        rollout_length=4,
    )
    return curious.make(setup)


def test_bonus_by_hand(curious: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations 0, 1, 10, 11 with hashes 0, 1, 0, 1; rewards 1, 2, 1, 2, and 0.1 / sqrt(2).

    The second rollout meets 20, 21, 30, 31: each hash has come up 4 times by its end.
    """
    monkeypatch.setattr(curious, "hashes", lambda self, obs: obs[..., 0].long() % 10)
    with made(curious) as collector:
        first = collector.collect()["reward"][:, 0].clone()
        second = collector.collect()["reward"][:, 0]
    expected = torch.tensor([1.0, 2.0, 1.0, 2.0])
    torch.testing.assert_close(first, expected + 0.1 / 2**0.5)
    torch.testing.assert_close(second, expected + 0.05)


def test_counts_go_on_from_a_checkpoint(curious: Any) -> None:
    with made(curious) as collector:
        collector.collect()
        saved = collector.state_dict()
        expected = collector.collect()["reward"].clone()
    with made(curious) as other:
        other.load_state_dict(saved)
        assert torch.equal(other.collect()["reward"], expected)
        assert np.asarray(other.counts).sum() == 8


def test_a_run_collects_with_it_and_is_resumed_with_it_alone(curious: Any, tmp_path: Path) -> None:
    """A run directory alone does not decide what is imported; evaluating needs no collector."""
    out = tmp_path / "run"
    run = redline.train(
        "ppo", env="CartPole-v1", collector=curious, total_env_steps=1024, out=out,
        tensorboard=False, quiet=True,
    )  # fmt: skip
    assert run.config.run.collector == "own_collector:CuriousCollector"
    assert redline.load(out).evaluate(episodes=1).episodes == 1
    with pytest.raises(ConfigError, match="the collector of this run, 'own_collector"):
        redline.train(resume=out, total_env_steps=2048, quiet=True)
    with pytest.raises(IncompatibleCheckpointError, match="not on serial"):
        redline.train(resume=out, collector="serial", total_env_steps=2048, quiet=True)
    longer = redline.train(resume=out, collector=curious, total_env_steps=2048, quiet=True)
    assert longer.inspect()["env_steps"] == 2048
