"""The global random generators, which a user's environment or network may draw from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


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
    if torch.cuda.is_available():
        saved["cuda"] = torch.cuda.get_rng_state_all()
    return saved


def set_rng_state(saved: Mapping[str, Any]) -> None:
    """Put the global generators back to what `rng_state` gave."""
    python = saved["python"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(saved["cuda"]))
