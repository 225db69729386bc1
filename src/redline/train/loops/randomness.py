"""The global random generators, which a user's environment or network may draw from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from redline.devices import global_rng_states, set_global_rng_states
from redline.generator_states import (
    begins_anew,
    checked_torch_state,
    seed_after,
    set_global_numpy_state,
    set_python_state,
)


def seed_global_generators(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators, which a user's code may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The global generators of Python, numpy and torch, which a user's code may draw from."""
    version, words, gauss = random.getstate()
    saved: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    return saved | global_rng_states()


def set_rng_state(saved: Mapping[str, Any]) -> None:
    """Put the global generators back to what `rng_state` gave.

    Raises:
        CorruptCheckpointError: if a field of one is out of range.
    """
    python = saved["python"]
    set_python_state(python["version"], python["words"], python["gauss"])
    set_global_numpy_state(saved["numpy"])
    torch.set_rng_state(checked_torch_state(saved["torch"]))
    names = saved.keys() - {"python", "numpy", "torch"}
    devices = {name: [checked_torch_state(s, name) for s in saved[name]] for name in names}
    set_global_rng_states(devices)
    if begins_anew() and "cuda" not in devices:
        torch.cuda.manual_seed_all(seed_after(saved["torch"]))  # nothing where there is no CUDA
