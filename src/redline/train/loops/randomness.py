"""The global random generators, which a user's environment or network may draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed Python's, numpy's and torch's global generators, which a user's code may draw from.

    Afterwards they are what they were: a program that draws between two runs of one seed, say
    their learning rates, would draw the same again.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = global_rng_states()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        set_global_rng_states(devices)


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
