"""Types of the sweeps in C: `csrc/sweep.c`, `decode.c`, `batches.c`, `ticks.c` and `calls.c`."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

Stream = tuple[NDArray[Any], NDArray[Any]]  # times int64 and states uint32

def overlap_masks(starts: list[NDArray[Any]], ends: list[NDArray[Any]], /) -> Mapping[int, int]: ...
def accumulate(streams: list[Stream], sizes: list[int], begin_ns: int, end_ns: int, /) -> bytes: ...
def decode(
    deltas: NDArray[Any],
    codes: NDArray[Any],
    kinds: Any,
    levels: Any,
    carry: bytes,
    from_ns: int,
    until_ns: int,
    /,
) -> dict[str, Any]: ...
def lead(a: Stream, b: Stream, idle: bytes, /) -> tuple[bytes, bytes]: ...
def arrow_schema() -> bytes: ...
def arrow_header(rows: int, /) -> bytes: ...
def unframe(data: bytes, most: int, /) -> tuple[bytes, bytes, int]: ...
def lay(
    times: NDArray[Any],
    numbers: NDArray[Any],
    waits: NDArray[Any],
    begins: NDArray[Any],
    ends: NDArray[Any],
    ready: NDArray[Any],
    unseen: NDArray[Any],
    off_begins: NDArray[Any],
    off_ns: NDArray[Any],
    how: tuple[int, int, int, int],
    /,
) -> bytes: ...
def tally(
    times: NDArray[Any],
    codes: NDArray[Any],
    places: NDArray[Any],
    edges: NDArray[Any],
    functions: int,
    /,
) -> tuple[bytes, bytes, bytes, bytes, bytes]: ...
