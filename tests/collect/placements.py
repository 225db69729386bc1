"""Every collector by its name, and what two rollouts have in common."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from redline.collect import (
    AlternatingCollector,
    AsyncCollector,
    CentralCollector,
    Collector,
    DeviceCollector,
    SerialCollector,
    WorkersCollector,
)
from redline.data import Rollout, leaves
from redline.engines.acting import actor_for
from redline.envs import EnvSettings
from redline.policies.policy import Policy
from tests.envs.workers.processes import named_memory

PLACEMENTS = ("serial", "device", "central", "alternating", "workers", "async")
_IN_PROCESSES: dict[str, Any] = {
    "central": CentralCollector,
    "alternating": AlternatingCollector,
    "workers": WorkersCollector,
    "async": AsyncCollector,
}


def make(
    placement: str,
    policy: Policy,
    env: Any = "CartPole-v1",
    *,
    observe_previous: bool = False,
    **settings: Any,
) -> Collector:
    """A collector of 4 environments and rollouts of 20 steps, unless `settings` say otherwise."""
    settings = {"num_envs": 4, "num_workers": 2, "rollout_length": 20, "seed": 3} | settings
    source = EnvSettings(env=env, backend="gymnasium", observe_previous=observe_previous)
    if placement != "device":
        settings["actor_for"] = actor_for
    if placement in _IN_PROCESSES:
        return _IN_PROCESSES[placement](source, policy, **settings)
    del settings["num_workers"]
    settings.pop("timeout_s", None)
    if placement == "device":
        on_device = source.make_on_device(settings.pop("num_envs"), "cpu")
        return DeviceCollector(on_device, policy, noise="host", **settings)
    return SerialCollector(source.make(settings.pop("num_envs")), policy, **settings)


def copied(rollout: Rollout) -> dict[str, Any]:
    """All of a rollout, by name."""
    parts = {name: leaf.clone() for name, leaf in leaves(rollout.steps)}
    parts |= {f"state.{name}": leaf.clone() for name, leaf in rollout.initial_state.items()}
    parts |= {f"last_obs.{name}": leaf.clone() for name, leaf in leaves(rollout.last_obs)}
    return parts | {"episodes": list(rollout.episodes), "version": rollout.version}


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """To the bit, in every part."""
    assert actual.keys() == expected.keys()
    for name, part in expected.items():
        if isinstance(part, torch.Tensor):
            assert actual[name].dtype == part.dtype, name
            assert torch.equal(actual[name], part), name
        else:
            assert actual[name] == part, name


def shared_memory() -> set[str]:
    """Memory with a name that this process and its children have: what they could leave behind."""
    found = named_memory(os.getpid())
    for child in children():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found |= named_memory(int(child))
    return found


def children() -> set[str]:
    """Processes of this one that are alive."""
    me, found = str(os.getpid()), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == me and fields[0] != "Z":
                found.add(entry.name)
    return found
