"""Evaluation mode for a while, after which every part is in the mode that it was in.

`module.train()` puts all parts into training mode, and a user may keep one of them in evaluation
mode: a normalization whose statistics are to stay, say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a module with all its parts."""
    training = {part for part in module.modules() if part.training}
    if not training:
        yield
        return
    before = module.training
    module.eval()  # as a method, which a user's module may have one of its own of
    try:
        yield
    finally:
        module.train(before)
        for part in module.modules():
            part.training = part in training


def copy_modes(into: nn.Module, module: nn.Module) -> None:
    """Put each part of a copy into the mode of its original.

    Args:
        into: a copy of the module.
        module: its original.
    """
    for part, original in zip(into.modules(), module.modules(), strict=True):
        part.training = original.training
