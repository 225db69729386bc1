"""`--on-worker-failure restart`: a run outlives its workers, and does not do it for ever."""

from __future__ import annotations

import csv
import gc
import json
import os
import signal
import sys
import weakref
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import redline
from redline.errors import ConfigError, WorkerError
from redline.train.runs import execution

SMALL: dict[str, Any] = {
    "total_env_steps": 96, "num_envs": 2, "rollout_length": 8, "num_workers": 1,
    "hidden_sizes": (8,), "log_interval": 16, "checkpoint_interval": 32, "preset": "default",
    "num_minibatches": 2, "num_epochs": 1, "quiet": True, "tensorboard": False,
}  # fmt: skip


class Deadly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose process is killed in its 20th step, as often as there are files to take."""

    def __init__(self, lives: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.lives, self.count = lives, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        left = sorted(self.lives.iterdir())
        if self.count == 20 and left:
            left[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)


def deaths(folder: Path, number: int) -> Path:
    folder.mkdir()
    for each in range(number):
        (folder / str(each)).touch()
    return folder


def test_a_run_goes_on_after_its_worker_was_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lives = deaths(tmp_path / "lives", 1)
    run = redline.train(
        "ppo", env=lambda: Deadly(lives), out=tmp_path / "run", collector="central",
        on_worker_failure="restart", **SMALL,
    )  # fmt: skip
    assert run.exit_code == 0
    said = capfd.readouterr().err
    assert "was killed by SIGKILL" in said
    assert "Restart 1: all workers are started anew and begin fresh episodes" in said
    with (tmp_path / "run" / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["env_steps"] == "96"
    assert [row["worker_restarts"] for row in rows].count("1") >= 3
    ended = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    assert (ended["state"], ended["worker_restarts"]) == ("complete", 1)
    # The count is a part of what is saved.
    resumed = redline.train(
        resume=tmp_path / "run", env=lambda: Deadly(lives), total_env_steps=112, quiet=True
    )
    assert resumed.exit_code == 0
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert list(csv.DictReader(file))[-1]["worker_restarts"] == "1"


def test_a_worker_that_dies_ahead_is_replaced_at_a_checkpoint(tmp_path: Path) -> None:
    """The third rollout, in which it dies, is made while the second is saved."""
    lives = deaths(tmp_path / "lives", 1)
    run = redline.train(
        "ppo", env=lambda: Deadly(lives), out=tmp_path / "run", collector="async",
        on_worker_failure="restart", **SMALL | {"checkpoint_interval": 16},
    )  # fmt: skip
    assert run.exit_code == 0
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert list(csv.DictReader(file))[-1]["worker_restarts"] == "1"


class Notes:
    """Writes down which episodes have ended: (env_id, episode_id)."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []

    def on_episode(self, state: Any) -> None:
        self.ended.append((state.episode.env_id, state.episode.episode_id))


class Ending(Deadly):
    """Its episodes end after four steps."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.count % 4 == 0, False, info


@pytest.mark.parametrize("collector", ["central", "workers", "async"])
def test_episodes_are_numbered_on_by_new_workers(collector: str, tmp_path: Path) -> None:
    """Two die in their step 20, in the third rollout of 8; 4 episodes are learned from of each."""
    lives, notes = deaths(tmp_path / "lives", 2), Notes()
    more: dict[str, Any] = {"num_envs": 1, "num_minibatches": 1, "collector": collector}
    redline.train(
        "ppo", env=lambda: Ending(lives), out=tmp_path / "run", on_worker_failure="restart",
        callbacks=[notes], **SMALL | more,
    )  # fmt: skip
    assert notes.ended == [(0, number) for number in range(24)]
    again = Notes()
    redline.train(
        resume=tmp_path / "run", env=lambda: Ending(lives), total_env_steps=112, quiet=True,
        callbacks=[again],
    )  # fmt: skip
    assert again.ended == [(0, number) for number in range(28)]  # those before were saved


class Numbered(Deadly):
    """Its number is what a callback last said."""

    number = -1


class SetsEach:
    """Numbers the environments in each iteration."""

    def on_iteration(self, state: Any) -> None:
        state.envs.set_attr("number", state.iteration)


def test_a_worker_that_dies_ahead_is_replaced_where_an_attribute_is_set(tmp_path: Path) -> None:
    """The third rollout is waited for by the callback of the second iteration."""
    lives = deaths(tmp_path / "lives", 1)
    run = redline.train(
        "ppo", env=lambda: Numbered(lives), out=tmp_path / "run", collector="async",
        on_worker_failure="restart", callbacks=[SetsEach()],
        **SMALL | {"checkpoint_interval": 1000},
    )  # fmt: skip
    assert run.exit_code == 0
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert list(csv.DictReader(file))[-1]["worker_restarts"] == "1"


@pytest.mark.parametrize("collector", ["central", "workers", "async"])
def test_workers_that_were_replaced_leave_no_collector_behind(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has rollouts and weights in shared memory: with images a gigabyte, lost by the hour."""
    made: list[weakref.ref[Any]] = []
    make = execution.make_collector

    def make_and_note(*given: Any) -> Any:
        found = make(*given)
        made.append(weakref.ref(found))
        return found

    alive: list[int] = []

    class Looks:
        def on_iteration(self, state: Any) -> None:
            gc.collect()
            alive.append(sum(each() is not None for each in made))

    monkeypatch.setattr(execution, "make_collector", make_and_note)
    lives = deaths(tmp_path / "lives", 3)
    more: dict[str, Any] = {"num_envs": 1, "num_minibatches": 1, "collector": collector}
    redline.train(
        "ppo", env=lambda: Deadly(lives), out=tmp_path / "run", on_worker_failure="restart",
        callbacks=[Looks()], **SMALL | more,
    )  # fmt: skip
    assert len(made) == 4
    assert alive == [1] * 12


def test_restarts_in_a_row_are_limited(tmp_path: Path) -> None:
    """Rollouts of 32 steps, each of which meets the 20th step: none is ever completed."""
    lives = deaths(tmp_path / "lives", 9)
    settings: dict[str, Any] = SMALL | {"rollout_length": 32, "max_worker_restarts": 2}
    with pytest.raises(WorkerError, match="failed again after 2 restarts in a row"):
        redline.train(
            "ppo", env=lambda: Deadly(lives), out=tmp_path / "run", collector="central",
            on_worker_failure="restart", **settings,
        )  # fmt: skip
    assert len(list(lives.iterdir())) == 9 - 3  # the first workers, and two restarts


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"collector": "central", "deterministic": True}, "deterministic=True asks for the same"),
        ({"collector": "serial", "num_workers": 2}, "on_worker_failure='restart' has no effect"),
        ({"collector": "central", "max_worker_restarts": 0}, "max_worker_restarts=0 must be above"),
    ],
)
def test_where_it_cannot_be_it_is_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = SMALL | {"on_worker_failure": "restart"} | settings
    with pytest.raises(ConfigError, match=said):
        redline.train("ppo", env="CartPole-v1", out=tmp_path / "run", **given)


def test_an_unused_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it belongs to on_worker_failure='restart'"):
        redline.train(
            "ppo", env="CartPole-v1", out=tmp_path / "run", collector="central",
            max_worker_restarts=5, **SMALL,
        )  # fmt: skip


def test_a_run_whose_worker_died_is_resumed_with_restarts(tmp_path: Path) -> None:
    """It was refused: only a run that began with them had them."""
    lives, out = deaths(tmp_path / "lives", 2), tmp_path / "run"
    core = str(min(os.sched_getaffinity(0)))  # one that this process may use
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        redline.train(
            "ppo", env=lambda: Deadly(lives), out=out, collector="central", cpu_affinity=core,
            **SMALL,
        )  # fmt: skip
    changes = {"on_worker_failure": "restart", "max_worker_restarts": 1, "cpu_affinity": "none"}
    resumed = redline.train(
        resume=out, env=lambda: Deadly(lives), quiet=True, set=changes | {"check_env": "always"}
    )
    assert resumed.exit_code == 0
    assert not list(lives.iterdir())
    with (out / "progress.csv").open() as file:
        assert [row["worker_restarts"] for row in csv.DictReader(file)][-1] == "1"


class Leaving(Deadly):
    """CartPole that calls sys.exit in its 20th step, as often as there are files to take."""

    def step(self, action: Any) -> Any:
        self.count += 1
        left = sorted(self.lives.iterdir())
        if self.count == 20 and left:
            left[0].unlink()
            sys.exit(0)
        return self.env.step(action)


@pytest.mark.parametrize("collector", ["central", "workers"])
def test_a_worker_that_exits_is_restarted(
    collector: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was an error of the environment, which ended the run."""
    lives = deaths(tmp_path / "lives", 1)
    run = redline.train(
        "ppo", env=lambda: Leaving(lives), out=tmp_path / "run", collector=collector,
        on_worker_failure="restart", **SMALL,
    )  # fmt: skip
    assert run.exit_code == 0
    said = capfd.readouterr().err
    assert "step() raised SystemExit(0)" in said
    assert "Restart 1: all workers are started anew" in said
