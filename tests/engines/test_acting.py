"""Which runs act through kernels, and that a run says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.algos.ppo import PPO
from redline.engines.cpu.acting import ActorCriticRowActor
from redline.policies.distributions import Categorical

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 1,
    "rollout_length": 32,
    "num_minibatches": 2,
    "total_env_steps": 64,
    "preset": "default",
    "num_threads": 1,
    "tensorboard": False,
    "seed": 1,
}
WRITTEN, KERNELS = "acting: the policy as it is written", "acting: CPU kernels, row by row"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accelerate": "auto"}, KERNELS),
        ({"accelerate": "cpu"}, KERNELS),
        ({"accelerate": "eager"}, WRITTEN),
        ({"accelerate": "eager", "cpu_acting": True}, KERNELS),
        ({"accelerate": "auto", "cpu_acting": False}, WRITTEN),
        ({"accelerate": "auto", "num_envs": 2}, WRITTEN),
    ],
)
def test_a_run_acts_as_it_says(
    settings: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """What is said is what runs: a new run's actions are counted where they are drawn."""
    drawn: list[int] = []
    act = ActorCriticRowActor.act

    def counted(self: ActorCriticRowActor, *args: Any) -> None:
        drawn.append(1)
        act(self, *args)

    monkeypatch.setattr(ActorCriticRowActor, "act", counted)
    run = redline.train("ppo", out=tmp_path / "run", **(SETTINGS | settings))
    out, err = capfd.readouterr()
    assert said in out + err
    config = json.loads((run.out / "config.json").read_text())["run"]
    assert config["cpu_acting"] is (said == KERNELS or "num_envs" in settings)
    assert len(drawn) == (64 if said == KERNELS else 0)
    if said == WRITTEN:
        samples: list[int] = []
        sample = Categorical.sample

        def sampled(self: Categorical, *args: Any) -> Any:
            samples.append(1)
            return sample(self, *args)

        monkeypatch.setattr(Categorical, "sample", sampled)
        redline.train(resume=run.out, total_env_steps=128, quiet=True)
        assert len(samples) == 64 // settings.get("num_envs", 1)


def test_an_edited_distribution_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under auto, too: the kernels stand back when what they stand for has changed."""
    samples: list[int] = []
    sample = Categorical.sample

    def counted(self: Categorical, *args: Any) -> Any:
        samples.append(1)
        return sample(self, *args)

    monkeypatch.setattr(Categorical, "sample", counted)
    redline.train("ppo", out=tmp_path / "run", quiet=True, **SETTINGS)
    assert len(samples) == 64


def test_a_resumed_run_keeps_its_engine_and_the_reason(tmp_path: Path, capfd: Any) -> None:
    class Mine(PPO):
        """Unknown to the kernels."""

    run = redline.train(Mine, out=tmp_path / "run", **SETTINGS)
    before = json.loads((run.out / "config.json").read_text())
    assert "Mine" in before["engine"]
    redline.train(Mine, resume=run.out, total_env_steps=128)
    after = json.loads((run.out / "config.json").read_text())
    assert after["engine"] == before["engine"]
    out, err = capfd.readouterr()
    assert "as asked for" not in out + err
