"""What computes here: versions and kernels that decide the last bits of a run's parameters.

Settings and seed fix a run to the bit on one build. Another version of torch, other vector
instructions or an installation without a C compiler round differently, so `config.json` says which
build wrote a run, and resuming with another one warns.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import redline

_NO_KERNELS = "none"


def build_description() -> dict[str, str]:
    """Names and versions, as `config.json` has them under "build".

    `kernels` are the vector instructions of the compiled CPU kernels; "none" where the package was
    installed without a C compiler.
    """
    try:
        from redline.engines.cpu import kernel_instructions

        kernels = kernel_instructions() or _NO_KERNELS
    except ImportError:
        kernels = _NO_KERNELS
    return {
        "redline": redline.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "kernels": kernels,
    }


def other_build(recorded: Mapping[str, Any]) -> str | None:
    """What of a recorded build differs here, as a warning; None if nothing, or none is recorded."""
    present = build_description()
    differing = [
        f"{name} {recorded[name]} (here {value})"
        for name, value in present.items()
        if name in recorded and recorded[name] != value
    ]
    if not differing:
        return None
    return (
        f"another build wrote this run: {', '.join(differing)}. It goes on from the same "
        f"state, but its parameters will agree with those of that build to rounding only, not to "
        f"the bit."
    )
