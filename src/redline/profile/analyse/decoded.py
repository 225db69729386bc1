"""A shard decoded: what its thread was doing, as a stream of states over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from redline.errors import ProfileError
from redline.profile.reader import Process, Shard

Stream = tuple[NDArray[np.int64], NDArray[np.uint32]]

__all__ = ["Decoded", "State", "Stream", "decode"]


class State(NamedTuple):
    """What a thread is doing; operations by name id, 0 for none."""

    operation: int  # the innermost operation
    marked: int  # the innermost that was not inferred from Python code, and so is always seen
    level: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded shard."""

    index: int
    stream: Stream  # of indices into `states`, 0: the thread is not there
    states: list[State | None]
    special_times: NDArray[np.int64]  # [M] ns
    special_codes: NDArray[np.uint16]  # [M] CODE_*, or 2 * id + is_end of phases
    special_values: NDArray[np.int64]  # [M] of payloads
    inclusive_ns: NDArray[np.int64]  # [largest id begun + 1] time inside each name
    counts: NDArray[np.int64]  # [largest id begun + 1] begins of each name
    last_ns: int


def decode(process: Process, shard: Shard) -> Decoded:
    """Follow the begins and ends of a shard.

    Raises:
        ProfileError: if the C extension was not built.
    """
    try:
        from redline.profile import _sweep
    except ImportError as error:
        raise ProfileError(
            "the C extension redline.profile._sweep was not built, so no session can be analysed. "
            "Install a C compiler and run `pip install --force-reinstall redline`"
        ) from error
    raw = _sweep.decode(shard.deltas, shard.codes, *process.name_tables)
    inclusive_ns = np.frombuffer(raw["inclusive_ns"], np.int64)
    counts = np.frombuffer(raw["counts"], np.int64)
    used = int(np.flatnonzero(counts).max(initial=-1)) + 1
    keys = np.frombuffer(raw["keys"], np.uint64).tolist()
    states = [State(key >> 24 & 0xFFFF, key >> 8 & 0xFFFF, key & 0xFF) for key in keys]
    return Decoded(
        index=0 if shard.path.stem == "monitor" else shard.index,
        stream=(np.frombuffer(raw["times"], np.int64), np.frombuffer(raw["states"], np.uint32)),
        states=[None, *states],
        special_times=np.frombuffer(raw["special_times"], np.int64),
        special_codes=np.frombuffer(raw["special_codes"], np.uint16),
        special_values=np.frombuffer(raw["special_values"], np.int64),
        # All ids would be half a megabyte for each of thousands of threads.
        inclusive_ns=inclusive_ns[:used].copy(),
        counts=counts[:used].copy(),
        last_ns=raw["last_ns"],
    )
