"""What cannot fit into memory is refused before any work, with the bytes needed and those there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import redline
from redline.cli import main
from redline.envs import make_vec
from redline.envs.backends import env_loop
from redline.errors import ConfigError, RedlineError
from redline.free_memory import require_memory, resident_bytes
from redline.replay import storage
from redline.train.runs.memory_checks import limited_allocations

SMALL: dict[str, Any] = {"preset": "default", "total_env_steps": 64, "quiet": True}


class ManyActions(gymnasium.Env[Any, Any]):
    """Any number of actions, none of which does anything."""

    def __init__(self, actions: int) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, True, {}


@pytest.mark.parametrize(
    ("algorithm", "settings", "named"),
    [
        # 10**9 environments x 1,000 bytes, whatever else they take.
        ("ppo", {"num_envs": 10**9}, "num_envs=1000000000.*1,000,000,000,000 bytes"),
        ("ppo", {"num_envs": 10**9, "env": "redline/CartPole-v1"}, "100,000,000,000 bytes"),
        ("dqn", {"num_envs": 10**9, "replay_size": 10**12}, "num_envs=1000000000"),
        # 10**9 rows x (8 environments x (16 + 8 + 27) bytes + 2,000 of Python)
        ("ppo", {"rollout_length": 10**9}, "rollout_length=1000000000.*2,408,000,000,000 bytes"),
        # A matrix of 10**6 x 10**6 x 4 bytes, of which training keeps 4.
        ("ppo", {"hidden_sizes": (10**6, 10**6)}, "hidden_sizes.*1,000,000 x 1,000,000 float32"),
        ("sac", {"hidden_sizes": (10**6, 10**6), "env": "Pendulum-v1"}, "16,000,.* bytes"),
        ("ppo", {"core": "lstm", "core_size": 10**6}, "core_size=1000000"),
        ("dqn", {"replay_size": 10**12}, r"replay of capacity=1,000,000,000,000 .* GB"),
        ("dqn", {"replay_size": 10**18}, r"replay of capacity"),
        (
            "ppo",
            {"num_envs": 10**6, "num_workers": 10**6, "collector": "workers"},
            "num_workers=1000000",
        ),
    ],
)
def test_what_is_too_large_is_refused_with_the_arithmetic(
    algorithm: str, settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    settings = {"env": "CartPole-v1", **SMALL, "out": tmp_path / "run", **settings}
    if algorithm != "ppo":
        settings |= {"learning_starts": 8, "replay_ratio": 256.0}
        settings["total_env_steps"] = 10**6
    with pytest.raises(ConfigError, match=named) as refused:
        redline.train(algorithm, **settings)
    assert re.search(r"there are [\d,]+ bytes|is available", str(refused.value))
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_a_billion_actions_are_refused_by_their_layer(algorithm: str, tmp_path: Path) -> None:
    settings = {**SMALL, "out": tmp_path / "run"}
    if algorithm != "ppo":
        settings |= {"learning_starts": 8, "total_env_steps": 10**6}
    with pytest.raises(ConfigError, match=r"1,000,000,000 x \d+ float32"):
        redline.train(algorithm, env=lambda: ManyActions(10**9), **settings)


class Pictures(gymnasium.Env[Any, Any]):
    """Pictures of 6,400 bytes."""

    observation_space = spaces.Box(0, 255, (80, 80), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_a_run_says_that_short_episodes_may_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100,000 pictures take 0.65 GB, and with an end in each row 1.28 GB."""
    monkeypatch.setattr(storage, "available_memory", lambda: (10**9, "a test"))
    redline.train(
        "dqn", env=Pictures, out=tmp_path / "run", preset="default", quiet=True, num_envs=1,
        total_env_steps=40, learning_starts=8, replay_size=100_000, target_update_interval=1,
        replay_ratio=4.0, tensorboard=False, checkpoints="none",
    )  # fmt: skip
    said = capsys.readouterr().err
    assert "replay of capacity=100,000 transitions takes 0.65 GB" in said
    assert "up to 1.28 GB, and 1.00 GB is available (a test)" in said


def test_the_limit_draws_nothing_and_changes_no_result() -> None:
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(3)
        layer = nn.Linear(5, 7)
        nn.init.orthogonal_(layer.weight)
        return [layer.weight, layer.bias, torch.randn(4)]

    plain = drawn()
    with limited_allocations("a test"):
        limited = drawn()
    assert all(torch.equal(a, b) for a, b in zip(plain, limited, strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(10**6, 10**7),
        lambda: torch.zeros((10**6, 10**7), dtype=torch.int64),
        lambda: torch.ones(10**13),
        lambda: torch.ones(1).new_empty((10**6, 10**7)),
        lambda: torch.randn(10**13),
    ],
)
def test_every_way_to_make_a_tensor_is_seen(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="a tensor of"), limited_allocations("a test"):
        make()


def test_other_devices_refuse_by_themselves() -> None:
    with limited_allocations("a test"):
        assert torch.empty(10**6, 10**7, device="meta").is_meta


def test_a_strangers_run_is_refused_before_its_policy_is_made(tmp_path: Path) -> None:
    """Its config.json says layers that no machine holds; `accept` says who edited it."""
    run = redline.train(
        "ppo", env="CartPole-v1", out=tmp_path / "run", tensorboard=False, hidden_sizes=(4,),
        num_envs=1, rollout_length=8, num_minibatches=1, **SMALL,
    )  # fmt: skip
    config = run.out / "config.json"
    content = json.loads(config.read_text())
    content["policy"]["hidden_sizes"] = [10**6, 10**6]
    config.write_text(json.dumps(content))
    loaded = redline.load(run.out, accept_changed_config=True)
    for use in (loaded.policy, lambda: loaded.evaluate(episodes=1)):
        with pytest.raises(ConfigError, match="1,000,000 x 1,000,000 float32"):
            use()


def test_the_bytes_of_many_environments_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first took nothing that counts, the next 256 took 256 GB, so a thousand take 1,000 GB."""
    taken = iter([10**9, 10**9 + 256 * 10**9])
    monkeypatch.setattr(env_loop, "resident_bytes", lambda: next(taken))
    with pytest.raises(ConfigError, match=r"1,000 environments x 1,000,000,000 bytes"):
        make_vec("CartPole-v1", 1000)


def test_the_message_gives_both_figures() -> None:
    with pytest.raises(ConfigError) as refused:
        require_memory(20, "that", "Use less.", (10, "a test"))
    assert str(refused.value) == (
        "that needs at least 20 bytes, and there are 10 bytes (a test). Use less."
    )
    require_memory(10, "that", "Use less.", (10, "a test"))
    with pytest.raises(ConfigError, match=r"\(10,000,000,000,000,000,000,000"):
        require_memory(10**400, "that", "Use less.")  # no float holds it


def test_this_process_holds_memory() -> None:
    assert resident_bytes() > 2**20


@pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])
@pytest.mark.parametrize("what", ["sparse", "deep", "digits"])
def test_monstrous_files_of_settings_are_refused(
    suffix: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"run.{suffix}"
    prefix = {"json": '{"seed": ', "yaml": "seed: ", "toml": "seed = "}[suffix]
    if what == "sparse":
        with path.open("wb") as file:
            file.truncate(60 * 10**9)
    elif what == "deep":
        path.write_text(prefix + "[" * 200_000)
    else:
        path.write_text(prefix + "9" * 5_000 + ("}" if suffix == "json" else ""))
    assert main(["train", "ppo", "--config", str(path), "--env", "CartPole-v1"]) == 2
    said = capsys.readouterr().err
    expected = {"sparse": "60,000,000,000 bytes", "deep": "nested too deep", "digits": "4300"}
    assert expected[what] in said
    assert "Traceback" not in said


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_integers_beyond_64_bits_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{suffix}"
    path.write_text('{"algorithm": "ppo", "env": "CartPole-v1", "num_envs": ' + "9" * 4_000 + "}")
    with pytest.raises(RedlineError, match="num_envs is a whole number of 13,288 bits"):
        redline.train(config=path)


class Sized(ManyActions):
    """Any two spaces, which are only looked at."""

    def __init__(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(
    ("observation", "action", "said"),
    [
        (spaces.Discrete(10**12), spaces.Discrete(2), "1,000,000,000,000 values in all"),
        (spaces.MultiDiscrete([10**12] * 3), spaces.Discrete(2), "3,000,000,000,000 values in all"),
        (spaces.Box(-1, 1, (3,)), spaces.MultiDiscrete([10**12, 2]), "2 x 1,000,000,000,000 x 17"),
    ],
)
def test_spaces_with_more_values_than_memory_are_refused(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any], said: str, tmp_path: Path
) -> None:
    """Each ended in a MemoryError of numpy's, with a traceback."""
    small = {"num_envs": 1, "rollout_length": 8, "num_minibatches": 1, "tensorboard": False}
    with pytest.raises(ConfigError, match=f"{re.escape(said)}.* needs at least .* and there are"):
        redline.train(
            "ppo", env=lambda: Sized(observation, action), out=tmp_path / "run", **SMALL, **small
        )


def test_more_skills_than_memory_holds_are_refused(tmp_path: Path) -> None:
    small = {"learning_starts": 16, "batch_size": 4, "replay_size": 64}
    with pytest.raises(ConfigError, match="1,000,000,000,000 values in all"):
        redline.train(
            "diayn", env="Pendulum-v1", num_skills=10**12, out=tmp_path / "run", **SMALL, **small
        )
