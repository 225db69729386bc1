"""Networks of one's own by function, class, place and entry point, and what each is called."""

from __future__ import annotations

import functools
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from gymnasium import spaces
from torch import nn

from redline import registry
from redline.errors import ConfigError, UnknownNameError
from redline.models.registry import find_network, network_label

HERE = __name__
WIDTH = 8


def dense(space: spaces.Space[Any], width: int = WIDTH) -> nn.Module:
    return nn.Linear(spaces.flatdim(space), width)


class Dense(nn.Linear):
    """A class is a factory, too."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(spaces.flatdim(space), WIDTH)

    @classmethod
    def make(cls, space: spaces.Space[Any]) -> nn.Module:
        return cls(space)


class Derived(Dense):
    """What it inherits makes it, not its base."""


@functools.wraps(dense)
def decorated(space: spaces.Space[Any]) -> nn.Module:
    return nn.Sequential(dense(space), nn.ReLU())


class Factory:
    """An object that makes networks."""

    def __call__(self, space: spaces.Space[Any]) -> nn.Module:
        return dense(space)

    def method(self, space: spaces.Space[Any]) -> nn.Module:
        return dense(space)


nameless = lambda space: dense(space)  # noqa: E731 - what has no name of its own


@pytest.mark.parametrize(
    ("network", "label"),
    [
        (dense, "dense"),
        (Dense, "Dense"),
        (Dense.make, "Dense.make"),
        (Derived.make, "Derived.make"),
    ],
)
def test_what_a_module_holds_is_called_by_its_place_and_found_there(
    network: Any, label: str
) -> None:
    assert network_label(network) == f"{HERE}:{label}"
    assert find_network(f"{HERE}:{label}") == find_network(network) == network
    assert network_label(f"{HERE}:{label}") == f"{HERE}:{label}"


@pytest.mark.parametrize(
    ("network", "label"),
    [
        (nameless, f"python:{HERE}.<lambda>"),
        (decorated, f"python:{HERE}.dense"),  # an import of its name gives another function
        (Factory(), f"python:{HERE}.Factory"),
        (Factory().method, f"python:{HERE}.Factory"),
        (partial(dense, width=3), "python:functools.partial"),
    ],
)
def test_what_no_import_gives_back_is_called_python(network: Any, label: str) -> None:
    assert network_label(network) == label
    assert find_network(network) is network


def test_a_function_inside_another_is_called_python() -> None:
    def local(space: spaces.Space[Any]) -> nn.Module:
        return dense(space)

    assert network_label(local).startswith(f"python:{HERE}.")
    assert network_label(partial(dense).__call__).startswith("python:")


def test_installed_networks_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("wide", f"{HERE}:dense", "redline.networks")
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    assert find_network("wide") is dense
    assert network_label("wide") == network_label(dense) == "wide"
    with pytest.raises(
        UnknownNameError, match=r"'wise'\. Did you mean 'wide'\? Choose one of wide; or"
    ):
        find_network("wise")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("mlp", "no network 'mlp'. Give module:Name of your own"),
        ("nowhere_to_be_found:mine", "no module 'nowhere_to_be_found'"),
        (f"{HERE}:nothing", "has no network 'nothing'"),
        ("python:__main__.dense", "no network 'python:__main__.dense'"),
    ],
)
def test_unknown_names_are_refused(choice: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        find_network(choice)


def test_what_makes_no_network_is_refused() -> None:
    for choice in (nn.Linear(2, 2), 3, f"{HERE}:WIDTH"):
        with pytest.raises(ConfigError, match=r"is of type (Linear|int)\. Give a function"):
            find_network(choice)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"is of type Linear\. Give a function"):
        network_label(nn.Linear(2, 2))
    for choice in (nn.Linear, lambda: nn.Identity(), "torch.nn:Linear"):
        with pytest.raises(ConfigError, match="cannot be called with an observation space alone"):
            find_network(choice)  # type: ignore[arg-type]
    assert find_network("torch.nn:Flatten") is nn.Flatten  # all of its arguments have defaults
