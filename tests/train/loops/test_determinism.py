"""`deterministic`: the same bits every time, or a refusal by the operator's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor, nn

import redline
from redline.algos.registry import declaration
from redline.devices import kind_of
from redline.errors import ConfigError
from redline.train.loops.determinism import only_deterministic
from redline.train.presets import preset_config
from redline.train.runs.placing import require_deterministic_replay

SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "total_env_steps": 32, "num_envs": 2, "rollout_length": 8,
    "hidden_sizes": (8,), "quiet": True, "tensorboard": False, "checkpoints": "last",
    "preset": "default", "num_minibatches": 1, "num_epochs": 1, "num_threads": 1,
}  # fmt: skip


class Filled(nn.Module):
    """Calls an operator that has no deterministic form on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.output_size = 8

    def forward(self, obs: Tensor) -> Tensor:
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
        return self.linear(obs)


def network(space: gymnasium.Space[Any]) -> nn.Module:
    return Filled()


def test_an_operator_without_a_deterministic_form_is_named(tmp_path: Path) -> None:
    settings = {name: value for name, value in SMALL.items() if name != "hidden_sizes"}
    with pytest.raises(ConfigError, match=r"deterministic=True, but put_ has no deterministic"):
        redline.train("ppo", out=tmp_path / "run", network=network, deterministic=True, **settings)
    assert not torch.are_deterministic_algorithms_enabled()


def test_numbers_on_the_cpu_are_those_without_it(tmp_path: Path) -> None:
    plain = redline.train("ppo", out=tmp_path / "plain", **SMALL)
    strict = redline.train("ppo", out=tmp_path / "strict", deterministic=True, **SMALL)
    assert plain.inspect()["params_sha256"] == strict.inspect()["params_sha256"]
    assert strict.config.run.deterministic


def test_other_errors_pass_through_and_the_mode_is_put_back() -> None:
    def fail() -> None:
        with only_deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fail()
    assert not torch.are_deterministic_algorithms_enabled()


def test_priorities_on_a_device_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first write ended the run, whose directory lay there by then; it named a network."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(kind_of("cuda"), "why_failing", lambda device: None)
    out = tmp_path / "run"
    settings = {"device": "cuda", "prioritized": True, "replay_storage": "device"}
    with pytest.raises(ConfigError, match=r"cumsum, .* on cuda\. Use replay_storage='memory'"):
        redline.train("dqn", env="CartPole-v1", out=out, deterministic=True, **settings)
    assert not out.exists()


@pytest.mark.parametrize(
    "other",
    [
        {"device": "cpu"},
        {"replay_storage": "memory"},
        {"prioritized": False},
        {"deterministic": False},
    ],
)
def test_other_replays_may_be_deterministic(other: dict[str, Any]) -> None:
    wrong = {"device": "cuda", "prioritized": True, "replay_storage": "device"}
    config = preset_config(declaration("dqn"), "CartPole-v1", "default")
    require_deterministic_replay(config.replace(**(wrong | {"deterministic": True} | other)))
