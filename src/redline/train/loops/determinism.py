"""Runs in which every operator gives the same bits every time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from redline.errors import ConfigError

_REFUSED = "does not have a deterministic implementation"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FILLING: Any = torch.utils.deterministic  # torch gives its attribute no type


@contextmanager
def only_deterministic(*, wanted: bool = True) -> Iterator[None]:
    """Let torch choose deterministic kernels, and refuse operators that have none.

    Args:
        wanted: if not, nothing is changed.

    Raises:
        ConfigError: when such an operator is called; names it.
    """
    if not wanted:
        yield
        return
    mode, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fills = _FILLING.fill_uninitialized_memory
    # cuBLAS is deterministic with a workspace of fixed size only; it is read once per process.
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    _FILLING.fill_uninitialized_memory = False  # every launch would be two
    try:
        yield
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        operator = str(error).split(_REFUSED)[0].strip()
        raise ConfigError(
            f"deterministic=True, but {operator} has no deterministic form on this device. Leave "
            f"--deterministic out, or use a network or a replay without it."
        ) from error
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warns)
        _FILLING.fill_uninitialized_memory = fills
