"""Which collectors there are; how one is found, `redline.registry` says.

A collector of one's own needs no entry here: it is given as a class or as module:Name, or an
installed package offers it in the group `redline.collectors`.
"""

from __future__ import annotations

from typing import Any

from redline.collect.central import AlternatingCollector, CentralCollector
from redline.collect.collector import Collector
from redline.collect.device import DeviceCollector
from redline.collect.ray_collector import RayCollector
from redline.collect.serial import SerialCollector
from redline.collect.workers import AsyncCollector, WorkersCollector
from redline.errors import ConfigError
from redline.registry import Registry

COLLECTORS: tuple[type[Collector], ...] = (
    SerialCollector,
    CentralCollector,
    AlternatingCollector,
    WorkersCollector,
    AsyncCollector,
    DeviceCollector,
    RayCollector,
)


def _checked(found: Any, given: str) -> type[Collector]:
    if not (isinstance(found, type) and issubclass(found, Collector)):
        raise ConfigError(
            f"collector {given} is not a class derived from redline.collect.Collector. Give such "
            f"a class, not an object of it."
        )
    return found


_REGISTRY: Registry[Collector] = Registry(
    "collector", {kind.name: kind for kind in COLLECTORS}, "redline.collectors", _checked
)
collector_names, find_collector, collector_label = (
    _REGISTRY.names,
    _REGISTRY.find,
    _REGISTRY.label,
)
