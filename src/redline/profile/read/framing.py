"""Batches of rows in an event file, an Arrow stream: by the recorder's framing, or by the library.

Nothing is unpacked, and no batch is believed to hold more rows than its file has bytes for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.errors import SessionError
from redline.profile.read.regular import regular_size

ROW_BYTES = 6  # uint32 and uint16
READ_BYTES = 1 << 20  # of a file, at once
BATCH_ROWS = 1 << 15  # at most, as the recorder writes them
LONGEST_BATCH = 192 + ROW_BYTES * BATCH_ROWS  # bytes; see csrc/arrow_stream.h
MAP_BYTES = 1 << 25  # of a file, mapped at once: what is mapped counts as memory in use

__all__ = ["framed_batches", "is_compressed", "library_batches", "pyarrow", "recorder_framing"]


def pyarrow() -> Any:
    """The package, which has no types.

    Raises:
        SessionError: if it cannot be imported: pyarrow 26 needs numpy 2, and pip does not know.
    """
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise SessionError(
            f"sessions are read by pyarrow, which cannot be imported here ({error}). Install one "
            f"that fits: pip install 'pyarrow>=16,<26' for numpy 1.26, or pip install 'numpy>=2'"
        ) from error


@cache
def recorder_framing() -> tuple[bytes, Callable[[bytes, int], tuple[bytes, bytes, int]]]:
    """What the recorder writes at the beginning of a file, and what takes its batches apart."""
    try:
        from redline.profile import _sweep
    except ImportError:  # such files are read by the library as well, only slower
        return b"", lambda data, most: (b"", b"", 0)
    return _sweep.arrow_schema(), _sweep.unframe


def framed_batches(path: Path) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint16], int]]:
    """The rows at the beginning of a file that are framed to the byte as the recorder does it.

    Some at once, with the place of their end. They are most of a file, in batches of some hundred
    rows each: reading them through the library would take most of a report's time.
    """
    schema, unframe = recorder_framing()
    regular_size(path)
    with path.open("rb") as file:
        if not schema or file.read(len(schema)) != schema:
            return
        begin, data = len(schema), file.read(READ_BYTES)
        while True:
            deltas, codes, end = unframe(data, BATCH_ROWS)
            begin += end
            if codes:
                yield np.frombuffer(deltas, np.uint32), np.frombuffer(codes, np.uint16), begin
            more = file.read(READ_BYTES)
            if not more or len(data) - end > LONGEST_BATCH:
                return  # what is left is cut short, or framed by somebody else
            data = data[end:] + more


def library_batches(path: Path, at: int, rows: int) -> Iterator[Any]:
    """The batches from a place in the file on, behind which there are so many rows."""
    pa = pyarrow()
    ipc: Any = import_module("pyarrow.ipc")
    size = regular_size(path)
    with pa.memory_map(os.fsencode(path)) as source:
        schema = _schema(ipc.MessageReader.open_stream(source))
        at = at or source.tell()
    while True:
        with pa.memory_map(os.fsencode(path)) as source:
            source.seek(at)
            messages = ipc.MessageReader.open_stream(source)
            while source.tell() < at + MAP_BYTES:
                try:
                    message = messages.read_next_message()
                except StopIteration:
                    return
                if is_compressed(message.metadata):
                    raise pa.ArrowInvalid("it is compressed, which recordings are not")
                batch: Any = ipc.read_record_batch(message, schema)
                batch.validate()  # else a wrong length would have us read beyond the file
                rows += batch.num_rows
                if rows * ROW_BYTES > size:
                    raise pa.ArrowInvalid("it claims more rows than its size can hold")
                yield batch
            at = source.tell()


def _schema(messages: Any) -> Any:
    pa = pyarrow()
    ipc: Any = import_module("pyarrow.ipc")
    try:
        schema: Any = ipc.read_schema(messages.read_next_message())
    except StopIteration:
        raise pa.ArrowInvalid("it has no beginning") from None
    if schema.names != ["delta_ns", "code"] or schema.types != [pa.uint32(), pa.uint16()]:
        raise pa.ArrowInvalid(f"no event file: {schema.names}")
    return schema


def is_compressed(metadata: Any) -> bool:
    """Whether the header of an Arrow message (a flatbuffer) says that its body is compressed.

    Of `Message` the third field is the header, of `RecordBatch` the fourth is the compression; see
    Message.fbs of the Arrow format.

    Raises:
        ValueError: if the header is damaged.
    """
    data = memoryview(metadata).cast("B")
    try:
        (message,) = struct.unpack_from("<I", data, 0)
        header = _field(data, message, 2)
        if header == 0:
            return False
        batch = header + struct.unpack_from("<I", data, header)[0]
        return _field(data, batch, 3) != 0
    except struct.error as error:
        raise ValueError(f"a damaged header: {error}") from error


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 if it is not there."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0 or 4 + 2 * number + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0
