"""Collectors: environments x policy -> `Rollout`, one interface for every placement."""

from redline.collect.collector import Collector, ResetMode
from redline.collect.serial import SerialCollector

__all__ = ["Collector", "ResetMode", "SerialCollector"]
