"""Collectors: environments x policy -> `Rollout`, one interface for every placement.

| name | class | where it steps | where it acts |
|---|---|---|---|
| serial | `SerialCollector` | this process | this process |
| device | `DeviceCollector` | a device, or behind one | the policy's device, from this process |
| central | `CentralCollector` | worker processes | this process, on all environments as one batch |
| alternating | `AlternatingCollector` | worker processes | this process, for one group in turn |
| workers | `WorkersCollector` | worker processes | the same processes, each with its own copy |
| async | `AsyncCollector` | worker processes | likewise, while the learner learns |
| ray | `RayCollector` | actors of a Ray cluster | likewise, anywhere in the cluster |

Inside each of them runs an `ActingLoop`. A collector of your own is one class with a
classmethod `make(setup: CollectorSetup)`; `find_collector` finds it.
"""

from redline.collect.acting_loop import ActorFor
from redline.collect.central import AlternatingCollector, CentralCollector
from redline.collect.collector import Collector, CollectorSetup, RolloutFuture
from redline.collect.device import DeviceCollector
from redline.collect.episodes import ResetMode
from redline.collect.ray_collector import RayCollector
from redline.collect.registry import collector_label, collector_names, find_collector
from redline.collect.serial import SerialCollector
from redline.collect.workers import AsyncCollector, WorkersCollector

__all__ = [
    "ActorFor",
    "AlternatingCollector",
    "AsyncCollector",
    "CentralCollector",
    "Collector",
    "CollectorSetup",
    "DeviceCollector",
    "RayCollector",
    "ResetMode",
    "RolloutFuture",
    "SerialCollector",
    "WorkersCollector",
    "collector_label",
    "collector_names",
    "find_collector",
]
