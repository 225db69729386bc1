"""Arguments of make_vec: what is refused, and how it says so."""

from __future__ import annotations

import functools
import os
import sys
import threading
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from redline.envs import EnvSettings, cpus, make_vec
from redline.envs.cpus import batch_scheduling, first_core_to_pin, usable_cpus
from redline.envs.games.minatar import IDS
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
        if name.split(".")[0] == module or name.startswith("gymnasium.envs.mujoco"):
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


@pytest.mark.parametrize("env_id", IDS)
def test_minatar_games_keep_to_their_spaces(env_id: str) -> None:
    env = make_vec(env_id, 2)
    assert env.reset(0).dtype == np.uint8
    assert env.observation_space.shape[1:] == (10, 10)
    rng = np.random.default_rng(0)
    for _ in range(30):
        step = env.step(rng.integers(0, env.action_space.n, 2))
        assert set(np.unique(step.obs)) <= {0, 1}


def test_minatar_games_are_reproducible_past_the_first_game() -> None:
    def play() -> list:
        env = make_vec("MinAtar/Breakout-v1", 2)
        env.reset(4)
        rng = np.random.default_rng(0)
        return [env.step(rng.integers(0, 3, 2)).obs.tobytes() for _ in range(80)]

    assert play() == play()


def test_minatar_renders() -> None:
    single = EnvSettings(
        env="MinAtar/Breakout-v1", env_kwargs={"render_mode": "rgb_array"}
    ).single()
    game = single.make()
    game.reset(seed=0)
    image = game.render()
    assert image.shape == (160, 160, 3)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({}, 64),
    ],
)
def test_cores_are_counted_by_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    """FAULTS 25: all cores taken, whatever the cpuset or control group allows."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(100, 164)))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert usable_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("threads", "cores", "allowed", "first"),
    [
        (4, 4, [0, 1, 2, 3], 0),
        (2, 4, [0, 1, 2, 3], -1),  # other pools would take the same two
        (8, 4, [0, 1, 2, 3], -1),
        (2, 4, [2, 3], -1),  # cores 0 and 1 are somebody else's
        (2, 4, [0, 1], -1),
        (4, 4, [], -1),  # the system does not say
        (1, None, [], -1),
    ],
)
def test_threads_are_pinned_where_they_have_every_core_to_themselves(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    cores: int | None,
    allowed: list[int],
    first: int,
) -> None:
    monkeypatch.setattr(cpus.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(cpus, "allowed_cpus", lambda: allowed)
    assert first_core_to_pin(threads) == first


def may_be_patient() -> bool:
    """Whether this system lets plain threads be scheduled as a batch, found in one of its own."""
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(cpus._schedule_this_thread("SCHED_OTHER", "SCHED_BATCH"))
    )
    thread.start()
    thread.join()
    return found[0]


needs_batch = pytest.mark.skipif(not may_be_patient(), reason="threads are scheduled one way here")


def policies(looks: str, monkeypatch: pytest.MonkeyPatch, before: str | None = None) -> list[int]:
    """How a thread is scheduled within, one that it makes there, and it afterwards."""
    seen: list[int] = []
    monkeypatch.setenv("GOMP_SPINCOUNT", looks)

    def schedule() -> None:
        if before is not None:
            os.sched_setscheduler(0, getattr(os, before), os.sched_param(0))
        with batch_scheduling():
            seen.append(os.sched_getscheduler(0))
            within = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
            within.start()
            within.join()
        seen.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=schedule)
    thread.start()
    thread.join()
    return seen


@needs_batch
def test_threads_are_patient_where_nothing_else_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a thread of its own: how it is scheduled is what this is about."""
    batch, other = os.SCHED_BATCH, os.SCHED_OTHER
    assert policies("10000", monkeypatch) == [batch, batch, other]
    assert policies("10000", monkeypatch, "SCHED_IDLE") == [os.SCHED_IDLE] * 3
    # Beside idle threads that hold a core for long, patient ones would wait for them.
    for looks in ("300000", "infinity", ""):
        assert policies(looks, monkeypatch) == [other] * 3


@needs_batch
@pytest.mark.parametrize("name", ["sched_getscheduler", "sched_setscheduler"])
def test_threads_are_plain_where_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    refused: list[str] = []

    def refuse(*arguments: object) -> None:
        refused.append(name)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    monkeypatch.setattr(os, name, refuse)
    with batch_scheduling():
        pass
    assert refused == [name]


def test_threads_are_plain_where_there_is_one_kind_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    monkeypatch.delattr(os, "SCHED_BATCH", raising=False)
    with batch_scheduling():
        pass
