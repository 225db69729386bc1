"""Collectors by class, by name, by module and by entry point; each is built from one setup."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from redline import registry
from redline.collect import (
    AlternatingCollector,
    AsyncCollector,
    CentralCollector,
    Collector,
    CollectorSetup,
    DeviceCollector,
    SerialCollector,
    WorkersCollector,
    collector_label,
    collector_names,
    find_collector,
)
from redline.envs import EnvSettings
from redline.errors import ConfigError, UnknownNameError
from redline.policies import make_policy
from tests.collect.placements import assert_equal, copied, make
from tests.collect.scripted import ExactPolicy

CLASSES = {
    "serial": SerialCollector,
    "central": CentralCollector,
    "alternating": AlternatingCollector,
    "workers": WorkersCollector,
    "async": AsyncCollector,
    "device": DeviceCollector,
}


SETTINGS = EnvSettings(env="CartPole-v1")


class OwnCollector(SerialCollector):
    """A user's own."""


def setup_for(env: Any = "CartPole-v1", **settings: Any) -> CollectorSetup:
    source = EnvSettings(env=env)
    some: dict[str, Any] = {"num_envs": 4, "num_workers": 2, "rollout_length": 20, "seed": 3}
    some |= {"policy": ExactPolicy()} | settings
    return CollectorSetup(env=source.make(4), settings=source, **some)


def test_built_in_collectors_are_found_by_name_and_class() -> None:
    assert collector_names()[:7] == (*CLASSES, "ray")
    for name, kind in CLASSES.items():
        assert find_collector(name) is find_collector(kind) is kind
        assert collector_label(kind) == collector_label(name) == name


@pytest.mark.parametrize("name", CLASSES)
def test_a_setup_builds_each_of_them(name: str) -> None:
    """All give the rollout of the serial collector; the device's draws noise of its own."""
    if name == "device":
        with SETTINGS.make(1) as env:
            policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(4,))
        with find_collector(name).make(setup_for(policy=policy)) as built:
            assert type(built) is DeviceCollector
            assert built.collect().num_valid() == 80
        return
    with make("serial", ExactPolicy()) as serial, find_collector(name).make(setup_for()) as built:
        assert type(built) is CLASSES[name]
        assert_equal(copied(built.collect()), copied(serial.collect()))


def test_serial_collects_on_devices_where_data_are_placed_there() -> None:
    with find_collector("serial").make(setup_for("redline/CartPole-v1")) as native:
        assert type(native) is DeviceCollector
    with find_collector("serial").make(setup_for(policy_device="cpu")) as placed:
        assert type(placed) is DeviceCollector
    with OwnCollector.make(setup_for("redline/CartPole-v1")) as own:
        assert type(own) is OwnCollector
    setup = setup_for(env_device="cpu")
    with setup.env, pytest.raises(ConfigError, match="OwnCollector collects arrays"):
        OwnCollector.make(setup)


def test_own_collectors_are_found_by_class_and_by_module() -> None:
    assert find_collector(OwnCollector) is OwnCollector
    label = collector_label(OwnCollector)
    assert label == "tests.collect.test_registry:OwnCollector"
    assert find_collector(label) is OwnCollector

    class Local(SerialCollector):
        """No module gives it back."""

    assert collector_label(Local).startswith("python:")


def test_installed_collectors_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("own", "tests.collect.test_registry:OwnCollector", "redline.collectors")
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    assert find_collector("own") is OwnCollector
    assert collector_names() == (*CLASSES, "ray", "own")
    assert collector_label(OwnCollector) == "own"


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("seriel", "no collector 'seriel'. Did you mean 'serial'?"),
        ("nowhere_to_be_found:Mine", "no module 'nowhere_to_be_found'"),
        ("tests.collect.test_registry:Nothing", "has no collector 'Nothing'"),
    ],
)
def test_unknown_names_are_refused(choice: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        find_collector(choice)


def test_what_is_no_collector_is_refused() -> None:
    for choice in (int, "tests.collect.test_registry:CLASSES"):
        with pytest.raises(ConfigError, match=r"derived from redline\.collect\.Collector"):
            find_collector(choice)  # type: ignore[arg-type]
    setup = setup_for()
    with setup.env, pytest.raises(ConfigError, match="has no `make`"):
        Collector.make(setup)


def test_back_ends_that_do_not_fit_are_refused() -> None:
    assert SerialCollector.choose_backend("CartPole-v1", "processes") == "processes"
    assert CentralCollector.choose_backend("CartPole-v1", "auto") == "gymnasium"
    assert AlternatingCollector.choose_backend("CartPole-v1", "envpool") == "envpool"
    for kind, env, backend, message in (
        (CentralCollector, "CartPole-v1", "envpool", "steps its environments by itself"),
        (AlternatingCollector, "redline/CartPole-v1", "auto", "in tensor operations"),
        (WorkersCollector, "CartPole-v1", "processes", "processes inside of processes"),
    ):
        with pytest.raises(ConfigError, match=message):
            kind.choose_backend(env, backend)
