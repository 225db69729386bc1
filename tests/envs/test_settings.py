"""Arguments of make_vec: what is refused, and how it says so."""

from __future__ import annotations

import functools
import sys
from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from redline.envs import EnvSettings, make_vec
from redline.errors import ConfigError, EnvError, MissingExtraError, UnknownNameError
from tests.envs.scripted import Counting


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("CartPole-v9", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("HalfCheeta-v5", "'HalfCheetah-v5'"),
        ("MinAtar/Breakou-v1", "'MinAtar/Breakout-v1'"),
        ("ALE/breakout", "'ALE/Breakout-v5'"),
        ("xyzzy", "pprint_registry"),
        ("no_such_module:Thing-v0", "cannot be imported"),
    ],
)
def test_unknown_environments_come_with_close_matches(name: str, close: str) -> None:
    with pytest.raises(UnknownNameError, match=close):
        make_vec(name, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "threads"}, "Choose one of auto, vector, ale"),
        ({"backend": "vector"}, "for a ready gymnasium.vector.VectorEnv only"),
        ({"backend": "ale"}, "steps ALE/\\*-v5 games only"),
        ({"preset": "dqn-2015"}, "is an Atari protocol"),
        ({"episodic_life": False}, "episodic_life=False is a setting of ALE's games, and CartPole"),
        ({"sticky_actions": 0.25}, r"sticky_actions=0.25 is .* Leave sticky_actions out"),
        ({"noop_max": 30}, "noop_max=30 is a setting of ALE's games"),
        ({"frame_skip": 2}, "frame_skip=2 is a setting of ALE's games"),
        ({"env": Counting, "frame_skip": 2}, "and Counting is not an ALE"),
        ({"env": "ALE/Pong-v5", "sticky_actions": 1.0}, "sticky_actions=1.0 is no probability"),
        ({"env": "ALE/Pong-v5", "noop_max": -1}, "noop_max=-1 is negative"),
        ({"env": "ALE/Pong-v5", "frame_skip": 0}, "frame_skip=0 must be at least 1"),
        ({"num_threads": -1}, "num_threads=-1"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"worker_timeout_s": 0.0}, "worker_timeout_s=0.0"),
        ({"env": Counting, "backend": "envpool"}, "needs an id, not a callable"),
        ({"env": Counting, "env_kwargs": {"length": 2}}, "functools.partial"),
        ({"env": 3}, "of type int"),
        ({"env": Counting()}, "is one gymnasium.Env"),
        ({"env_kwargs": {"wings": 2}}, "do not fit CartPole-v1.*wings"),
        ({"env": "MinAtar/Breakout-v1", "env_kwargs": {"wings": 2}}, r"\['wings'\] are unknown"),
        ({"backend": "processes", "num_workers": 3}, "num_workers=3 is more than num_envs=2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vec(**({"env": "CartPole-v1", "num_envs": 2} | changes))


@pytest.mark.parametrize(("number", "first"), [(0, 0), (-3, 0), (1, -1)])
def test_numbers_of_environments_are_checked(number: int, first: int) -> None:
    with pytest.raises(ConfigError):
        make_vec("CartPole-v1", number, first_env_id=first)


def test_a_callable_must_make_an_environment() -> None:
    with pytest.raises(EnvError, match="returned dict, not a gymnasium"):
        make_vec(dict, 1)


# Loaded by an earlier test, they would not ask for the package again.
_SIMULATORS = ("gymnasium.envs.mujoco", "gymnasium.envs.box2d")


@pytest.mark.parametrize(
    ("module", "env_id", "backend", "pip"),
    [
        ("ale_py", "ALE/Pong-v5", "auto", r"redline\[atari\]"),
        ("ale_py", "ALE/Pong-v5", "gymnasium", r"redline\[atari\]"),
        ("minatar", "MinAtar/Breakout-v1", "auto", r"redline\[minatar\]"),
        ("envpool", "CartPole-v1", "envpool", r"redline\[envpool\]"),
        ("mujoco", "HalfCheetah-v5", "auto", r"redline\[mujoco\]"),
        ("Box2D", "LunarLander-v3", "auto", r"redline\[box2d\]"),
    ],
)
def test_missing_packages_come_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, module: str, env_id: str, backend: str, pip: str
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == module or name.startswith(_SIMULATORS):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=pip):
        make_vec(env_id, 1, backend=backend)


def test_settings_travel_to_a_worker_and_make_a_part_of_the_batch() -> None:
    settings = EnvSettings(env=functools.partial(Counting, length=2))
    assert settings.env_id == "Counting"
    copied = cloudpickle.loads(cloudpickle.dumps(settings))
    env = copied.make(2, first_env_id=6)
    assert (env.first_env_id, env.num_envs, env.env_id) == (6, 2, "Counting")
    env.reset(0)
    env.step(np.zeros(2, dtype=np.int64))
    assert [r.env_id for r in env.step(np.zeros(2, dtype=np.int64)).episodes] == [6, 7]


def test_choices_left_open_are_filled_in_and_can_be_read() -> None:
    assert EnvSettings(env="CartPole-v1").backend == "gymnasium"
    atari = EnvSettings(env="ALE/Pong-v5")
    assert (atari.backend, atari.preset) == ("ale", "dqn-2015")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("Taxi-v3", "Taxi-v4"), ("HalfCheetah-v9", "HalfCheetah-v5"), ("CartPol-v1", "CartPole-v1")],
)
def test_unknown_ids_suggest_other_versions_first(asked: str, meant: str) -> None:
    """Taxi-v3 got 'Ant-v3' and 'ALE/Boxing-v5', which have its letters and not its sense."""
    with pytest.raises(UnknownNameError, match=f"Did you mean '{meant}'"):
        make_vec(asked, 1)


@pytest.mark.skipif(find_spec("mujoco") is None, reason="MuJoCo is not installed")
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_package_that_is_there_is_not_called_missing() -> None:
    with pytest.raises(EnvError, match=r"HalfCheetah-v3 cannot be made: .*gymnasium-robotics"):
        make_vec("HalfCheetah-v3", 1)


def test_a_module_of_the_present_directory_may_register_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for algorithms and callbacks; an installed `redline` does not begin its path here."""
    (tmp_path / "nearby_envs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        'gymnasium.register("Nearby-v0", CartPoleEnv, max_episode_steps=5)\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    with make_vec("nearby_envs:Nearby-v0", 1) as env:
        assert env.observation_space.shape == (4,)
