"""Collectors: environments x policy -> `Rollout`, one interface for every placement.

| name | where it steps | where it acts |
|---|---|---|
| `SerialCollector` | this process | this process |
| `DeviceCollector` | a device, or behind one | the policy's device, from this process |
| `CentralCollector` | worker processes | this process, on all environments as one batch |
| `AlternatingCollector` | worker processes | this process, for one group while others step |
| `WorkersCollector` | worker processes | the same worker processes, each with its own copy |
| `AsyncCollector` | worker processes | likewise, while the learner learns |
"""

from redline.collect.central import AlternatingCollector, CentralCollector
from redline.collect.collector import Collector, ResetMode
from redline.collect.device import DeviceCollector
from redline.collect.future import RolloutFuture
from redline.collect.serial import SerialCollector
from redline.collect.workers import AsyncCollector, WorkersCollector

__all__ = [
    "AlternatingCollector",
    "AsyncCollector",
    "CentralCollector",
    "Collector",
    "DeviceCollector",
    "ResetMode",
    "RolloutFuture",
    "SerialCollector",
    "WorkersCollector",
]
