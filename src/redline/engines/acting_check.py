"""Whether captured acting gives what the policy gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_CLOSE = 1e-4  # relative and absolute; to round otherwise is all that a captured step may do


def are_close(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    """Whether numbers agree to rounding. Waits for the device.

    Args:
        wanted: of the policy as it is written.
        found: of the captured one.

    Returns:
        Of whole numbers and flags only the shapes count: where two actions are as good, rounding
        may choose the other one.
    """
    return all(
        torch.allclose(a, b, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
        if a.is_floating_point()
        else a.shape == b.shape
        for a, b in zip(wanted, found, strict=True)
    )
