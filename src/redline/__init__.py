"""Redline: deep reinforcement learning in PyTorch at the speed the machine allows."""

__version__ = "0.1.0"
