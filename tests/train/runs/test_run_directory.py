"""Names of run directories, which no two runs share."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

import redline
from redline.errors import ConfigError, RunDirectoryError
from redline.train.presets import preset_config
from redline.train.runs.idle_settings import changed_settings, settings_beside_preset
from redline.train.runs.run_directory import RunLock, run_directory, run_name
from redline.train.runs.summary import is_running
from redline.train.settings import RunConfig


def config(**settings: object) -> RunConfig:
    return preset_config("ppo", "ALE/Pong-v5", "default").replace(**settings)


def test_names_tell_what_differs() -> None:
    assert run_name(config()) == "ppo-ALE-Pong-v5-seed1"
    changed = config(learning_rate=1e-3, hidden_sizes=(8, 4), seed=2, quiet=True)
    names = ("learning_rate", "hidden_sizes", "seed", "quiet")
    assert run_name(changed, names) == "ppo-ALE-Pong-v5-hidden_sizes=8x4-learning_rate=0.001-seed2"
    many = ("gamma", "gae_lambda", "learning_rate", "entropy_coef", "num_epochs")
    assert run_name(changed, many).count("=") == 3
    assert "and2more" in run_name(changed, many)
    assert run_name(config(name="mine"), many) == "mine"


@pytest.mark.parametrize(
    ("env", "settings", "name"),
    [
        # (env, what the caller sets, all of it plain defaults, the name)
        ("CartPole-v1", {"gamma": 0.99}, "ppo-CartPole-v1-gamma=0.99-seed1"),
        ("CartPole-v1", {"gamma": 0.98}, "ppo-CartPole-v1-seed1"),  # as the preset has it
        (
            "Walker2d-v5",
            {"normalize_obs": False},
            "ppo-Walker2d-v5-normalize_obs=False-seed1",
        ),
    ],
)
def test_a_plain_default_that_is_not_the_presets_stands_in_the_name(
    env: str, settings: dict[str, object], name: str
) -> None:
    """CartPole's preset has gamma = 0.98, and MuJoCo's normalizes observations."""
    changed = preset_config("ppo", env, "auto").replace(**settings)
    assert run_name(changed, settings_beside_preset(changed, "ppo")) == name


def test_what_ends_with_an_option_is_not_named_beside_it() -> None:
    """SAC's own rates on MuJoCo end with learning_rate, PPO's minibatches with num_envs."""
    for algorithm, env, given in (
        ("sac", "HalfCheetah-v5", {"learning_rate": 1e-4}),
        ("ppo", "LunarLander-v3", {"num_envs": 8}),
        ("sac", "LunarLander-v3", {"env_kwargs": '{"continuous": true}'}),
    ):
        changed = preset_config(algorithm, env, "auto", given).replace(**given)
        assert settings_beside_preset(changed, algorithm) == given.keys()


def test_a_run_is_found_under_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"total_env_steps": 256, "quiet": True, "tensorboard": False, "tune_process": False}
    run = redline.train("ppo", env="CartPole-v1", gamma=0.99, **small)
    assert run.out == Path("runs/ppo-CartPole-v1-gamma=0.99-seed1")


def test_a_repeated_run_keeps_its_settings_in_the_name() -> None:
    base = preset_config("ppo", "CartPole-v1", "auto").replace(gamma=0.99)
    again = base.replace(seed=2)
    assert changed_settings(again, "ppo", base) == {"seed"}
    named = settings_beside_preset(again, "ppo", base)
    assert run_name(again, named) == "ppo-CartPole-v1-gamma=0.99-seed2"


def test_starts_at_the_same_moment_take_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All wait inside, so that each name is taken while the others look for one."""
    monkeypatch.chdir(tmp_path)
    taken: list[Path] = []
    gate = threading.Barrier(8)

    def start() -> None:
        with run_directory(config(group="g")) as out:
            taken.append(out)
            gate.wait(10)
            (out / "config.json").write_text("{}")

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    name = Path("runs/g/ppo-ALE-Pong-v5-seed1")
    assert set(taken) == {name, *(Path(f"{name}-{number}") for number in range(2, 9))}


def test_a_refused_run_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="has no effect"):
        redline.train("ppo", env="CartPole-v1", core_size=64, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_links_of_other_runs_are_none_of_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B links its newest session, and users the newest run; an own folder is still looked at."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/x/wandb").mkdir(parents=True)
    (tmp_path / "runs/x/wandb/latest-run").symlink_to("run-1")
    (tmp_path / "runs/latest").symlink_to("x")
    with run_directory(config()) as out:
        assert out == Path("runs/ppo-ALE-Pong-v5-seed1")
    with (
        pytest.raises(RunDirectoryError, match="latest is a symbolic link"),
        run_directory(config(out="runs")),
    ):
        pass


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_names_must_be_those_of_a_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a folder"):
        config(group=name)


def test_an_own_directory_must_hold_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (
        pytest.raises(RunDirectoryError, match="already holds a run"),
        run_directory(config(out=str(tmp_path))),
    ):
        pass


def test_a_look_at_the_lock_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    """`redline runs` and `redline watch` hold the lock for a moment, to see whether others do."""
    (tmp_path / ".lock").touch()
    with open(tmp_path / ".lock", "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with RunLock(tmp_path):
            assert is_running(tmp_path)
    assert not is_running(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "in use by another process", which nobody could find."""

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = rf"cannot be locked \({os.strerror(number)}\).* or give another --out"
    with pytest.raises(RunDirectoryError, match=said), RunLock(tmp_path):
        pass
