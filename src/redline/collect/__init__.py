"""Collectors: environments x policy -> `Rollout`, one interface for every placement.

| name | where it steps | where it acts |
|---|---|---|
| `SerialCollector` | this process | this process |
| `WorkersCollector` | worker processes | the same worker processes, each with its own copy |
"""

from redline.collect.collector import Collector, ResetMode
from redline.collect.serial import SerialCollector
from redline.collect.workers import WorkersCollector

__all__ = ["Collector", "ResetMode", "SerialCollector", "WorkersCollector"]
