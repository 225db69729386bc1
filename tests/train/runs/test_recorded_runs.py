"""Runs that learn from recorded episodes, and runs that record them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import redline
from redline.cli import main
from redline.errors import ConfigError, IncompatibleCheckpointError
from redline.offline import read_episodes
from redline.train.runs.run import Run

BC: dict[str, Any] = {
    "total_env_steps": 256 * 200,
    "eval_interval": 0,
    "hidden_sizes": (32,),
    "normalize_obs": True,  # an upright pole's angles are small
    "learning_rate": 3e-3,
    "tensorboard": False,
    "num_threads": 1,
    "quiet": True,
}
SAC: dict[str, Any] = {
    "total_env_steps": 64,
    "learning_starts": 0,
    "batch_size": 16,
    "replay_ratio": 16,
    "replay_size": 4000,
    "hidden_sizes": (32,),
    "normalize_obs": True,
    "tensorboard": False,
    "num_threads": 1,
}
CLIPPED: dict[str, Any] = {
    "total_env_steps": 64,
    "num_envs": 1,
    "learning_starts": 8,
    "target_update_interval": 1,
    "clip_reward": True,
    "tensorboard": False,
    "num_threads": 1,
    "hidden_sizes": (4,),
}


class Countdown(gymnasium.Env[Any, Any]):
    """Observes (episode, step). Even episodes terminate after 3 steps, odd ones are cut after 2."""

    metadata: ClassVar[dict[str, Any]] = {}
    observation_space = spaces.Box(-999, 999, (2,), np.float64)
    action_space = spaces.Discrete(2, start=5)

    def __init__(self) -> None:
        self._episode, self._step = -1, 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._episode, self._step = self._episode + 1, 0
        return np.array([self._episode, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (5, 6)
        self._step += 1
        odd = self._episode % 2 == 1
        obs = np.array([self._episode, self._step], np.float64)
        reward = 10.0 * self._episode + self._step
        return obs, reward, not odd and self._step == 3, odd and self._step == 2, {}


def balanced(steps: int, seed: int = 0) -> dict[str, Any]:
    """CartPole by a rule that balances it: push the way the pole leans and falls."""
    env = gymnasium.make("CartPole-v1")
    rows: list[tuple[Any, ...]] = []
    obs, _ = env.reset(seed=seed)
    while len(rows) < steps:
        action = int(obs[2] + 0.3 * obs[3] + 0.02 * obs[0] + 0.05 * obs[1] > 0)
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, terminated, truncated, after))
        obs = after if not (terminated or truncated) else env.reset()[0]
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return dict(zip((*names, "next_observations"), columns, strict=True))


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return balanced(3000)


@pytest.fixture(scope="module")
def cloned(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    np.savez(folder / "data.npz", **data)
    return redline.train("bc", env="CartPole-v1", data=folder / "data.npz", out=folder / "bc", **BC)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on `Countdown`, to record episodes of."""
    return redline.train(
        "ppo",
        env=Countdown,
        out=tmp_path_factory.mktemp("runs") / "ppo",
        total_env_steps=8,
        num_envs=1,
        rollout_length=8,
        num_minibatches=1,
        tensorboard=False,
        num_threads=1,
        quiet=True,
    )


def test_a_clone_reaches_its_teacher(cloned: Run, data: dict[str, Any]) -> None:
    """The rule balances the pole to the end, and so does its clone, or nearly."""
    assert data["terminations"].sum() == 0
    assert cloned.evaluate(10).return_mean > 400


@pytest.mark.parametrize("suffix", ["npz", "minari"])
def test_recorded_episodes_are_those_that_were_lived(
    counted: Run, tmp_path: Path, suffix: str
) -> None:
    """Six episodes on six environments: each is the first one there, which terminates; then two.

    With one environment, episodes 0 and 1 follow each other.
    """
    if suffix == "minari":
        pytest.importorskip("minari", reason="extra minari is not installed")
    out = tmp_path / ("d.npz" if suffix == "npz" else "d")
    recorded = counted.collect(6, out, seed=3)
    found = read_episodes(out)
    assert found.num_episodes == 6
    for name in ("obs", "action", "reward", "terminated", "truncated", "final_obs"):
        assert np.array_equal(getattr(found, name), getattr(recorded, name)), name
    assert set(np.asarray(found.action).tolist()) <= {5, 6}
    obs, final = np.asarray(found.obs), np.asarray(found.final_obs)
    first = 0
    for episode, last in enumerate(found.last_steps.tolist()):
        number = obs[first, 0]
        steps = 3 if number % 2 == 0 else 2
        assert obs[first : last + 1].tolist() == [[number, t] for t in range(steps)]
        assert final[episode].tolist() == [number, steps]
        assert found.terminated[last] == (number % 2 == 0)
        assert found.truncated[last] == (number % 2 == 1)
        rewards = [10 * number + t + 1 for t in range(steps)]
        assert found.reward[first : last + 1].tolist() == rewards
        first = last + 1


def test_rewards_are_recorded_as_they_are_paid(tmp_path: Path) -> None:
    """Episode 0 pays 1 + 2 + 3. The learner saw the signs, 1 + 1 + 1."""
    run = redline.train(
        "dqn",
        env=Countdown,
        out=tmp_path / "a",
        quiet=True,
        **CLIPPED,
    )
    recorded = run.collect(1, tmp_path / "d.npz")
    assert recorded.reward.tolist() == [1.0, 2.0, 3.0]


def test_the_return_of_data_is_what_was_paid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 10 + 200, where the learner sees 1 + 1."""
    np.savez(
        tmp_path / "d.npz",
        observations=np.zeros((2, 2)), actions=np.array([5, 6]), rewards=np.array([10.0, 200.0]),
        terminations=np.array([False, True]), truncations=np.array([False, False]),
    )  # fmt: skip
    redline.train(
        "dqn",
        env=Countdown,
        data=tmp_path / "d.npz",
        out=tmp_path / "a",
        **CLIPPED,
    )
    assert "whose return is 210.0" in capsys.readouterr().err


def test_collect_refuses_what_exists(counted: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        counted.collect(1, tmp_path)


def test_the_command_line_records_and_clones(
    cloned: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "d.npz"
    assert main(["collect", str(cloned.out), "--episodes", "2", "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["episodes"] == 2
    assert said["steps"] == read_episodes(out).num_steps
    run = str(tmp_path / "bc")
    options = ["--total-env-steps", "512", "--no-tensorboard", "--out", run]
    assert main(["train", "bc", "--env", "CartPole-v1", "--data", str(out), *options]) == 0
    assert "learns from" in capsys.readouterr().err


def test_a_resumed_run_is_the_same_to_the_bit(data: dict[str, Any], tmp_path: Path) -> None:
    """Stopped after 512 of 1,024 recorded steps, and not stopped."""
    settings = BC | {"total_env_steps": 1024, "checkpoint_interval": 512}
    np.savez(tmp_path / "d.npz", **data)
    path = tmp_path / "d.npz"
    whole = redline.train("bc", env="CartPole-v1", data=path, out=tmp_path / "a", **settings)
    part = settings | {"total_env_steps": 512}
    redline.train("bc", env="CartPole-v1", data=path, out=tmp_path / "b", **part)
    with pytest.raises(ConfigError, match="a run directory alone must not decide"):
        redline.train(resume=tmp_path / "b", total_env_steps=1024, quiet=True)
    resumed = redline.train(resume=tmp_path / "b", total_env_steps=1024, data=path, quiet=True)
    ours, theirs = (run.checkpoint().state["algorithm"]["policy"] for run in (whole, resumed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_shorter_than_its_presets_interval_is_evaluated_at_its_end(
    data: dict[str, Any], tmp_path: Path
) -> None:
    """The preset says 100,000 env_steps: the run ended without any return."""
    settings = {name: value for name, value in BC.items() if name != "eval_interval"}
    settings |= {"total_env_steps": 512, "eval_episodes": 1}
    run = redline.train("bc", env="CartPole-v1", data=data, out=tmp_path / "run", **settings)
    assert run.config.run.eval_interval == 512
    assert float(run.progress()["eval_return_mean"][-1]) >= 1.0


def test_a_run_does_not_go_on_with_other_data(data: dict[str, Any], tmp_path: Path) -> None:
    settings = BC | {"total_env_steps": 512}
    run = redline.train("bc", env="CartPole-v1", data=data, out=tmp_path / "a", **settings)
    assert run.config.run.data == "python:builtins.dict"
    with pytest.raises(ConfigError, match="no file can hold"):
        redline.train(resume=run.out, total_env_steps=1024, quiet=True)
    other = data | {"rewards": data["rewards"] + 1}
    with pytest.raises(IncompatibleCheckpointError, match="have changed"):
        redline.train(resume=run.out, total_env_steps=1024, data=other, quiet=True)
    redline.train(resume=run.out, total_env_steps=1024, data=data, quiet=True)
    np.savez(tmp_path / "moved.npz", **data)
    moved = ["--data", str(tmp_path / "moved.npz"), "--total-env-steps", "1536", "--quiet"]
    assert main(["train", "--resume", str(run.out), *moved]) == 0


def test_sac_goes_on_from_a_clone_and_its_data(
    cloned: Run, data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = redline.train(
        "sac", env="CartPole-v1", data=data, init_from=cloned.out, out=tmp_path / "sac", **SAC
    )
    said = capsys.readouterr().err
    assert "replay begins with 3,000 transitions of" in said
    assert "taken: policy.head.weight" in said
    assert "taken: policy.normalizer" in said
    rows = run.progress()
    assert rows["optimizer_steps"][-1] == 64
    redline.train(resume=run.out, total_env_steps=80, quiet=True)  # its replay is in the checkpoint


def test_statistics_of_observations_begin_with_the_data(
    data: dict[str, Any], tmp_path: Path
) -> None:
    """The first update normalizes all 3,000 rows, and not by the one that was collected."""
    run = redline.train(
        "sac",
        env="CartPole-v1",
        data=data,
        out=tmp_path / "r",
        **SAC | {"total_env_steps": 1, "learning_starts": 0, "normalize_obs": True, "quiet": True},
    )
    saved = run.checkpoint().state["algorithm"]["policy"]
    seen = np.concatenate([data["observations"], gymnasium.make("CartPole-v1").reset()[0][None]])
    assert float(saved["normalizer.moments.0.count"]) == 3001
    mean, spread = seen.astype(np.float64).mean(axis=0), seen.astype(np.float64).std(axis=0)
    assert np.allclose(saved["normalizer.moments.0.offset"], mean, atol=1e-4)
    assert np.allclose(saved["normalizer.moments.0.factor"], 1 / spread, rtol=0.05)


def test_box_actions_are_kept_between_minus_one_and_one(tmp_path: Path) -> None:
    """Pendulum acts in [-2, 2]; SAC's replay holds half of that."""
    env = gymnasium.make("Pendulum-v1")
    obs = np.stack([env.reset(seed=i)[0] for i in range(8)])
    actions = np.linspace(-2, 2, 8, dtype=np.float32)[:, None]
    data = {
        "observations": obs,
        "actions": actions,
        "rewards": np.zeros(8),
        "terminations": np.zeros(8, bool),
        "truncations": np.arange(8) == 7,
        "next_observations": obs,
    }
    run = redline.train(
        "sac",
        env="Pendulum-v1",
        data=data,
        out=tmp_path / "r",
        quiet=True,
        **SAC | {"total_env_steps": 8},
    )
    policy: Any = run.policy()
    assert policy.stored_action(actions)[[0, -1]].flatten().tolist() == [-1.0, 1.0]
    shards = list((run.checkpoint().path / "replay").rglob("*"))
    assert shards


class Rising(gymnasium.Env[Any, int]):
    """A stack of two frames of 3 numbers, which are those of the step; ends after 4 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 9.0, (2, 3), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._seen(), 1.0, self._step == 4, False, {}

    def _seen(self) -> Any:
        return np.array([[self._step - 1] * 3, [self._step] * 3], np.float32)


def test_stacks_begin_with_data_that_lack_last_observations(tmp_path: Path) -> None:
    """Zeros after the terminal steps did not shift, and the data were said not to be stacks."""
    steps = np.tile(np.arange(4, dtype=np.float32), 5)
    run = redline.train(
        "dqn",
        env=Rising,
        out=tmp_path / "r",
        data={
            "observations": np.stack([steps - 1, steps], axis=1)[..., None].repeat(3, axis=2),
            "actions": np.zeros(20, np.int64),
            "rewards": np.ones(20),
            "terminations": steps == 3,
            "truncations": np.zeros(20, bool),
        },
        replay_frame_stack=2,
        replay_size=64,
        total_env_steps=16,
        learning_starts=4,
        batch_size=4,
        target_update_interval=1,
        quiet=True,
        tensorboard=False,
    )
    assert run.checkpoint().metadata["env_steps"] == 16


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ("bc", {}, "data is missing"),
        ("ppo", {"data": "x.npz"}, "learns only from what its own policy"),
        ("bc", {"data": "gone.npz"}, "no such file"),
        ("bc", {"data": "x.npz", "collector": "workers"}, "nothing to collect"),
        ("bc", {"stop_at_return": 400.0}, "stop_at_return=400.0 has no effect"),
        ("bc", {"checkpoints": "best", "eval_interval": 0}, "checkpoints='best' has no effect"),
        ("bc", {"reset_mode": "wait"}, "reset_mode='wait' has no effect"),
        ("bc", {"policy_device": "cpu"}, "policy_device='cpu' has no effect"),
        ("sac", {"data": {"observations": 1}}, "has no actions"),
        ("r2d1", {"core": "lstm"}, "recorded episodes do not hold"),
        ("sac", {"replay_size": 500}, "larger replay_size"),
    ],
)
def test_what_makes_no_sense_is_refused(
    data: dict[str, Any], tmp_path: Path, algorithm: str, settings: dict[str, Any], said: str
) -> None:
    if settings and algorithm in ("r2d1", "sac", "bc") and "data" not in settings:
        settings = settings | {"data": data}
    with pytest.raises(ConfigError, match=said):
        redline.train(
            algorithm, env="CartPole-v1", out=tmp_path / "r", total_env_steps=5_000_000, **settings
        )
    assert not (tmp_path / "r").exists()
