"""Kept while `collect.actor` imports it; `actor_for` in the package takes its place."""

from __future__ import annotations

import contextlib
from typing import Any

from redline.engines.cpu.images import PackedNetwork

__all__ = ["PackedNetwork", "Packing"]


def Packing(networks: Any, num_images: int) -> Any:  # noqa: N802
    """Nothing: policies act with their plain weights."""
    del networks, num_images
    return contextlib.nullcontext()
