"""Runs whose policy sees its previous action: evaluation, videos, export, replay of frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tests.envs.scripted import Ordered
from tests.train.runs.test_off_policy_runs import small

import redline
from redline.algos.r2d1 import R2D1
from redline.envs import EnvSettings
from redline.errors import ConfigError
from redline.models import zero_observation
from redline.previous_inputs import ACTION, PLAIN, REWARD
from redline.train.loops.evaluate import evaluate
from redline.train.presets import preset_config
from redline.train.runs.learner import build_replay
from redline.train.runs.run import Run
from redline.train.runs.video import EpisodeFrames

ORDERED = ("agent", REWARD, "state", "zz")
HIDDEN = "redline/CartPoleHiddenVelocity-v1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """PPO with an LSTM, which has learned for two rollouts."""
    return redline.train(
        "ppo", env=HIDDEN, out=tmp_path_factory.mktemp("run") / "ppo", preset="default",
        observe_previous=True, core="lstm", core_size=8, hidden_sizes=(8,), num_envs=4,
        rollout_length=32, num_minibatches=2, total_env_steps=256, quiet=True, tensorboard=False,
    )  # fmt: skip


class Spy(torch.nn.Module):
    """Keeps what a policy's torso is shown."""

    def __init__(self, torso: torch.nn.Module) -> None:
        super().__init__()
        self.torso, self.seen = torso, []

    def forward(self, obs: Any) -> Any:
        self.seen.append({key: leaf.clone() for key, leaf in obs.items()})
        return self.torso(obs)


def spied(run: Run) -> tuple[Any, Spy]:
    policy: Any = run.policy()
    policy.torso = Spy(policy.torso)
    return policy, policy.torso


def settings(**changes: Any) -> EnvSettings:
    return EnvSettings(env=HIDDEN, observe_previous=True, **changes)


def check_episode(seen: list[dict[str, torch.Tensor]]) -> None:
    """Zeros first, then one action and a reward of 1 in every observation of an episode."""
    first, *later = seen
    assert not first[ACTION].any()
    assert first[REWARD].tolist() == [[0.0]]
    assert len(later) > 3
    assert all(obs[ACTION].sum() == 1.0 and obs[REWARD].item() == 1.0 for obs in later)


def test_evaluation_shows_what_training_showed(run: Run) -> None:
    """Two episodes, one after the other in one environment: each begins with zeros."""
    policy, spy = spied(run)
    result = evaluate(lambda n: settings().make(n), policy, episodes=2, seed=5, num_envs=1)
    starts = [t for t, obs in enumerate(spy.seen) if not obs[ACTION].any()]
    assert len(starts) == 2
    assert starts[0] == 0
    for episode in (spy.seen[: starts[1]], spy.seen[starts[1] :]):
        check_episode(episode)
    assert len(spy.seen) == result.episodes * result.length_mean


def test_a_video_shows_what_training_showed(run: Run) -> None:
    policy, spy = spied(run)
    frames = list(EpisodeFrames(settings(clip_reward=True), policy, seed=5))
    assert len(frames) == len(spy.seen)
    check_episode(spy.seen)


def test_an_exported_policy_takes_them_as_inputs(run: Run, tmp_path: Path) -> None:
    program = torch.export.load(run.export(tmp_path / "policy.pt2", format="torch")).module()
    policy: Any = run.policy()
    assert policy.export_module().input_names == (
        f"obs.{PLAIN}", f"obs.{ACTION}", f"obs.{REWARD}", "hidden", "cell",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    zeros: Any = zero_observation(policy.observation_space, 3)
    obs = {key: torch.randn(leaf.shape, generator=generator) for key, leaf in zeros.items()}
    state = policy.initial_state(3)
    output = policy.act(obs, state)
    action, hidden, _ = program(obs, *state.values())
    assert torch.equal(action, output.action)
    torch.testing.assert_close(hidden, output.state["hidden"])


@pytest.mark.parametrize("collector", ["serial", "device"])
def test_r2d1_learns_from_entries_under_their_names(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two entries of the observation sort behind those that are added.

    Episodes are of three steps, so n_step=1 finds t = 1, 2 or 3 in what follows a step; "state"
    is t, "zz" 10 + t and "agent" 20 + t, and the reward before is 0.5 in all three.
    """
    following: list[Any] = []
    update = R2D1.update

    def spied_update(self: R2D1, batch: Any) -> Any:
        rows = batch.steps["valid"]
        following.extend(
            torch.cat([batch.steps["next_obs", name][rows] for name in ORDERED], dim=1).tolist()
        )
        return update(self, batch)

    monkeypatch.setattr(R2D1, "update", spied_update)
    run = small(
        tmp_path / "run", "r2d1", env=lambda: Ordered(gymnasium.spaces.Discrete(2)), n_step=1,
        sequence_length=6, state_interval=6, burn_in=0, core_size=4, target_update_interval=1,
        collector=collector, accelerate="eager", preset="default", total_env_steps=96,
    )  # fmt: skip
    assert run.inspect()["optimizer_steps"] > 0
    assert {tuple(row) for row in following} == {
        (21.0, 0.5, 1.0, 11.0), (22.0, 0.5, 2.0, 12.0), (23.0, 0.5, 3.0, 13.0),
    }  # fmt: skip


def test_without_a_core_they_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="observe_previous=True is for policies that remember"):
        redline.train("ppo", env=HIDDEN, observe_previous=True, core="none", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_hidden_layers_behind_an_image_are_refused_with_them_too(tmp_path: Path) -> None:
    """The convolutional network ends in a layer of its own; both parts join its features."""
    with pytest.raises(ConfigError, match="dense layers, and here are none"):
        redline.train(
            "r2d1", env="MinAtar/Breakout-v1", hidden_sizes=(4,), total_env_steps=50_000,
            quiet=True, out=tmp_path / "run",
        )  # fmt: skip


def test_atari_frames_beside_them_are_stored_once(tmp_path: Path) -> None:
    """Pong, 2,000 rows: 14.1 MB of frames, where whole stacks would take four times that."""
    config = preset_config("r2d1", "ALE/Pong-v5", "auto").replace(
        env="ALE/Pong-v5", num_envs=2, replay_size=2_000, core_size=8
    )
    env_settings = EnvSettings(env="ALE/Pong-v5", clip_reward=False, observe_previous=True)
    with env_settings.make(2) as env:
        policy = R2D1.make_policy(
            env.observation_space, env.action_space, config.algo, core="lstm", core_size=8
        )
        replay = build_replay(config, env, policy, tmp_path, env_settings)
    assert replay.config.frame_stack == 4
    assert replay.config.stacked_keys == (PLAIN,)
    assert replay.nbytes < 1.5 * 2_000 * 84 * 84


def test_r2d1_learns_from_atari_with_them(tmp_path: Path) -> None:
    """A run of the preset's rules, small: sequences of stacked frames with both parts beside."""
    run = small(
        tmp_path / "run", "r2d1", env="ALE/Pong-v5", preset="atari", total_env_steps=48,
        learning_starts=36, num_envs=2, batch_size=2, sequence_length=4, burn_in=2,
        state_interval=6, rollout_length=6, n_step=1, replay_size=64, core_size=8,
        replay_ratio=1.0, target_update_interval=1, head_hidden_sizes=(8,), hidden_sizes=(64, 64),
        log_interval=12, checkpoint_interval=48,
    )  # fmt: skip
    assert run.inspect()["optimizer_steps"] >= 2
    assert not run.config.run.clip_reward
