"""Sums over the ranks of a data-parallel run; with one process they cost a look at a flag."""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from redline.errors import ClusterError


def are_several() -> bool:
    """Whether this process is one of several that learn together."""
    return distributed.is_available() and distributed.is_initialized()


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of every rank's tensor, in a new one; the same bits on every rank.

    Args:
        tensor: [...] of one shape on all ranks.

    Raises:
        ClusterError: if another rank has ended.
    """
    total = tensor.clone()
    try:
        distributed.all_reduce(total)  # pyright: ignore[reportUnknownMemberType]
    except RuntimeError as error:
        raise lost_rank(error) from error
    return total


def gather_from_ranks(tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor, in the order of the ranks.

    Args:
        tensor: [...] of one shape on all ranks.

    Raises:
        ClusterError: if another rank has ended.
    """
    own = tensor.contiguous()
    found = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    try:
        distributed.all_gather(found, own)  # pyright: ignore[reportUnknownMemberType]
    except RuntimeError as error:
        raise lost_rank(error) from error
    return found


def lost_rank(error: Exception) -> ClusterError:
    """What to say when a collective fails."""
    first = str(error).strip().partition("\n")[0]
    return ClusterError(
        f"rank {distributed.get_rank()} of {distributed.get_world_size()} lost the others: another "
        f"rank has ended, and its own message says why ({first}). Go on from the last checkpoint "
        f"with: torchrun --nproc-per-node N -m redline train --resume RUN"
    )
