"""Beginning a run with what another one has learned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import redline
from redline.errors import ConfigError, IncompatibleCheckpointError, RunDirectoryError
from redline.train.runs.run import Run
from redline.train.runs.warm_start import _source_of, source_checkpoint

ON: dict[str, Any] = {
    "total_env_steps": 64,
    "num_envs": 2,
    "rollout_length": 32,
    "learning_rate": 1e-9,
    "tensorboard": False,
    "num_threads": 1,
}
OFF: dict[str, Any] = {
    "total_env_steps": 64,
    "learning_starts": 32,
    "batch_size": 8,
    "replay_size": 128,
    "replay_ratio": 8,
    "learning_rate": 1e-9,
    "tensorboard": False,
    "num_threads": 1,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "source"
    settings = ON | {"learning_rate": 1e-2}
    return redline.train(
        "ppo", env="CartPole-v1", out=out, normalize_obs=True, quiet=True, **settings
    )


def weights(run: Run) -> dict[str, torch.Tensor]:
    return run.checkpoint().state["algorithm"]["policy"]


def test_weights_are_taken_where_names_and_shapes_fit(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MountainCar has two numbers per observation and three actions: only the inside fits."""
    run = redline.train(
        "ppo", env="MountainCar-v0", out=tmp_path / "r", init_from=source.out, seed=9, **ON
    )
    before, after = weights(source), weights(run)
    assert torch.allclose(after["torso.1.2.weight"], before["torso.1.2.weight"], atol=1e-5)
    assert after["torso.1.0.weight"].shape == (64, 2)
    said = capsys.readouterr().err
    assert "taken: policy.torso.1.2.weight" in said
    assert "other shape, begins anew: policy.torso.1.0.weight [64, 4] is not [64, 2]" in said
    assert "init_from" in (run.out / "history.jsonl").read_text().splitlines()[0]


@pytest.mark.parametrize("parts", ["weights", "normalizer", "weights,normalizer"])
def test_parts_are_chosen(source: Run, tmp_path: Path, parts: str) -> None:
    run = redline.train(
        "ppo", env="CartPole-v1", out=tmp_path / "r", init_from=str(source.out),
        init_parts=parts, normalize_obs=True, seed=9, quiet=True, **ON,
    )  # fmt: skip
    before, after = weights(source), weights(run)
    same = torch.allclose(after["torso.1.2.weight"], before["torso.1.2.weight"], atol=1e-5)
    assert same == ("weights" in parts)
    count = float(after["normalizer.moments.0.count"])
    assert count == (128 if "normalizer" in parts else 64)


def test_targets_and_replay_follow(tmp_path: Path) -> None:
    first = redline.train("td3", env="Pendulum-v1", out=tmp_path / "a", quiet=True, **OFF)
    second = redline.train(
        "td3", env="Pendulum-v1", out=tmp_path / "b", init_from=first.out, seed=9, quiet=True,
        init_parts="weights,replay", **OFF | {"total_env_steps": 40, "learning_starts": 33},
    )  # fmt: skip
    old, new = (run.checkpoint().state["algorithm"] for run in (first, second))
    for part in ("policy", "target_policy", "critic", "target"):
        for name, leaf in old[part].items():
            assert torch.allclose(new[part][name], leaf, atol=1e-4), (part, name)
    ppo = redline.train("ppo", env="CartPole-v1", out=tmp_path / "c", quiet=True, **ON)
    with pytest.raises(ConfigError, match="has none"):
        redline.train(
            "dqn", env="CartPole-v1", out=tmp_path / "d", init_from=ppo.out, quiet=True,
            init_parts="replay", target_update_interval=10, **OFF,
        )  # fmt: skip


def test_the_temperature_goes_with_the_critics_that_learned_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 1 again, the bonus of entropy would outgrow what the critics had learned."""
    settings = OFF | {"env": "Pendulum-v1", "initial_alpha": 0.02}
    first = redline.train("sac", out=tmp_path / "a", quiet=True, **settings)
    learned = first.checkpoint().state["algorithm"]["log_alpha"]
    assert float(learned) == pytest.approx(math.log(0.02), abs=1e-4)
    settings = settings | {"initial_alpha": 1.0, "init_from": first.out, "seed": 9}
    second = redline.train("sac", out=tmp_path / "b", **settings)
    found = second.checkpoint().state["algorithm"]["log_alpha"]
    assert torch.allclose(found, learned, atol=1e-4)
    assert "taken: log_alpha" in capsys.readouterr().err

    fixed = redline.train("sac", out=tmp_path / "c", alpha=0.5, **settings)
    found = fixed.checkpoint().state["algorithm"]["log_alpha"]
    assert float(found) == pytest.approx(math.log(0.5))
    assert "log_alpha" not in capsys.readouterr().err


def test_statistics_begin_with_the_replay_that_was_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By those of one collected row alone, all others would lie at the clip."""
    first = redline.train("td3", env="Pendulum-v1", out=tmp_path / "a", quiet=True, **OFF)
    second = redline.train(
        "td3", env="Pendulum-v1", out=tmp_path / "b", init_from=first.out, seed=9,
        init_parts="weights,replay", normalize_obs=True, **OFF | {"total_env_steps": 33},
    )  # fmt: skip
    assert "statistics of observations begin with those of replay" in capsys.readouterr().err
    assert float(weights(second)["normalizer.moments.0.count"]) == 64 + 33
    kept = redline.train(
        "td3", env="Pendulum-v1", out=tmp_path / "c", init_from=second.out, seed=9, quiet=True,
        init_parts="normalizer,replay", normalize_obs=True, **OFF | {"total_env_steps": 33},
    )  # fmt: skip
    assert float(weights(kept)["normalizer.moments.0.count"]) == 64 + 33 + 33


def test_a_replay_of_other_rewards_is_not_mixed_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raw rewards lay beside signs of rewards in one ring, and nobody said so."""
    first = redline.train("td3", env="Pendulum-v1", out=tmp_path / "a", quiet=True, **OFF)
    capsys.readouterr()
    settings: dict[str, Any] = OFF | {
        "init_from": first.out,
        "init_parts": "weights,replay",
    }
    with pytest.raises(
        IncompatibleCheckpointError, match=r"holds rewards as they are.*Give clip_reward=False"
    ):
        redline.train(
            "td3", env="Pendulum-v1", out=tmp_path / "b", clip_reward=True, quiet=True, **settings
        )
    assert not (tmp_path / "b").exists()
    redline.train("td3", env="Pendulum-v1", out=tmp_path / "c", env_kwargs={"g": 5.0}, **settings)
    said = capsys.readouterr().err
    assert "replay begins with transitions of 'Pendulum-v1' (env_kwargs '{}'), whose" in said
    redline.train("td3", env="Pendulum-v1", out=tmp_path / "d", **settings)
    assert "replay begins with transitions" not in capsys.readouterr().err


def test_statistics_of_other_numbers_are_not_taken_in_halves(
    source: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The count of 128 rows beside a mean and a variance of 0 made all inputs far too large."""
    run = redline.train(
        "ppo", env="MountainCar-v0", out=tmp_path / "r", init_from=source.out, seed=9,
        normalize_obs=True, **ON,
    )  # fmt: skip
    found = weights(run)
    count, factor = (found[f"normalizer.moments.0.{name}"] for name in ("count", "factor"))
    assert float(count) == 64
    squares = found["normalizer.moments.0.squares"]
    assert torch.allclose(factor.double(), (squares / 64 + 1e-8).rsqrt(), rtol=1e-3)
    said = capsys.readouterr().err
    assert "begins anew: policy.normalizer.moments.0.count goes with such ones" in said


def test_a_target_follows_what_it_is_the_target_of() -> None:
    """Discrete SAC has a `target`, which is one of its critics: nothing for DQN."""
    mine = {"torso.0.weight": torch.zeros(2, 3)}
    policy, critic = {"torso.0.weight": torch.ones(2, 3)}, {"encoder.0.weight": torch.ones(2, 3)}
    theirs = {"policy": policy, "critic": critic, "target": critic}
    assert _source_of("target", mine, theirs) is policy
    assert _source_of("target", critic, theirs) is critic
    assert _source_of("target", {"other": torch.zeros(1)}, theirs) is critic  # is told as missing


def test_what_cannot_begin_a_run_is_refused(source: Run, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        source_checkpoint(tmp_path, ("weights",))
    with pytest.raises(ConfigError, match="init_parts has brain"):
        source_checkpoint(source.out, ("brain",))
    with pytest.raises(ConfigError, match="keeps none"):
        redline.train(
            "ppo", env="CartPole-v1", out=tmp_path / "r", init_from=source.out,
            init_parts="replay", quiet=True, **ON,
        )  # fmt: skip
    with pytest.raises(ConfigError, match="fits this run's networks"):
        redline.train(
            "dqn", env="CartPole-v1", out=tmp_path / "r", init_from=source.out, quiet=True,
            hidden_sizes=(5, 6), target_update_interval=10, **OFF,
        )  # fmt: skip
    assert not (tmp_path / "r").exists()
