"""How back ends are found, and what each says that it serves."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from redline import registry
from redline.envs import Backend, EnvSettings, make_vec
from redline.envs.backends.registry import (
    BACKENDS,
    backend_label,
    backend_names,
    choose_backend,
    find_backend,
)
from redline.errors import ConfigError, EnvError, UnknownNameError
from tests.envs.scripted import Counting


class Zeros(Backend):
    """The least that a back end needs: it has no episodes and cannot be saved."""

    name = "zeros"

    def __init__(self, settings: EnvSettings, num_envs: int, first_env_id: int) -> None:
        obs_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.allocate(settings.env_id, num_envs, first_env_id, obs_space, spaces.Discrete(2))

    def reset(self, seed: int | None) -> None:
        self.buffers.clear_flags()

    def step(self, action: Any, active: Any) -> bool:
        self.buffers.write_outcome(action, False, False)
        return False


HERE = f"{__name__}:Zeros"


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "gymnasium"),
        (Counting, "gymnasium"),
        ("ALE/Pong-v5", "ale"),
        ("redline/CartPole-v1", "device"),
        ("redline/TMaze-v1", "gymnasium"),
    ],
)
def test_auto_asks_each_class_in_turn(env: Any, name: str) -> None:
    assert choose_backend(env, "auto").name == name
    assert EnvSettings(env=env).backend == name


def test_every_built_in_one_is_found_by_its_name_and_its_class() -> None:
    assert backend_names()[: len(BACKENDS) + 1] == ("auto", *(known.name for known in BACKENDS))
    for known in BACKENDS:
        assert find_backend(known.name) is find_backend(known) is known
        assert backend_label(known) == known.name
    assert [known.name for known in BACKENDS if known.threaded] == ["ale", "envpool"]
    assert [known.name for known in BACKENDS if known.single_envs] == ["gymnasium", "processes"]
    assert [known.name for known in BACKENDS if known.on_device] == ["device"]


def test_the_least_back_end_steps() -> None:
    env = make_vec("anything", 3, backend=Zeros)
    env.reset(0)
    assert env.step(np.array([0, 1, 1])).reward.tolist() == [0.0, 1.0, 1.0]
    assert env.restorable == "its back end cannot save its state"
    with pytest.raises(EnvError, match="anything cannot be saved: its back end cannot"):
        env.state_dict()
    with pytest.raises(ConfigError, match="the zeros back end cannot leave environments idle"):
        env.step(np.zeros(3, np.int64), active=np.ones(3, np.bool_))


def test_one_of_ones_own_is_found_by_class_module_and_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint("nothing", HERE, "redline.env_backends")
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    assert find_backend("nothing") is find_backend(HERE) is find_backend(Zeros) is Zeros
    assert backend_names()[-1] == "nothing"
    assert backend_label(Zeros) == backend_label(HERE) == "nothing"
    with pytest.raises(UnknownNameError, match="processes, envpool, nothing; or give"):
        find_backend("zeros")


def test_settings_carry_the_class_to_a_worker_and_through_changes() -> None:
    settings = dataclasses.replace(EnvSettings(env="anything", backend=HERE), num_workers=3)
    assert settings.backend is settings.backend_class is Zeros
    copied = cloudpickle.loads(cloudpickle.dumps(settings))
    assert copied.make(2, first_env_id=4).first_env_id == 4


def test_what_is_no_back_end_is_refused() -> None:
    class Taken(Zeros):
        name = "ale"

    nameless = type("Nameless", (Backend,), {})
    for given, error, message in (
        ("no_such_module:Thing", UnknownNameError, "no module 'no_such_module'"),
        (f"{__name__}:Ones", UnknownNameError, "has no environment back end 'Ones'"),
        (f"{__name__}:HERE", ConfigError, "is no environment back end"),
        (Counting, ConfigError, "derives from redline.envs.Backend"),
        (Taken, ConfigError, "has the name 'ale'"),
        (nameless, ConfigError, "has the name None"),
    ):
        with pytest.raises(error, match=message):
            make_vec("anything", 1, backend=given)
    assert backend_label(Taken).startswith("python:")


def test_looking_back_ends_up_loads_no_simulator_and_no_torch() -> None:
    """A process that only steps environments starts in a fraction of torch's time."""
    code = (
        "import sys; from redline.envs.backends.registry import choose_backend; "
        "choose_backend('redline/CartPole-v1', 'auto'); choose_backend('CartPole-v1', 'envpool'); "
        "heavy = ('torch', 'ale_py', 'envpool', 'mujoco', 'redline.envs.settings'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
