"""Arrays of a buffer: in memory, in a file, or on a device, with a record of what changed.

Address space is reserved for the most an array can grow to, but memory is committed only
as rows are first written, so that growing never copies. On a device, where that is not
possible, growing copies. A buffer that does not fit where it is to lie is refused before
anything is allocated, with the arithmetic.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.devices import exact_device, kind_of
from redline.errors import ConfigError, DeviceError
from redline.free_memory import available_memory
from redline.replay.config import ReplayConfig
from redline.replay.device_queue import DeviceQueue
from redline.usable_cores import ranks_here

ROWS_PER_END = 64  # rows of the ring for which there is one slot for the end of an episode at first
# Not in Python's mmap module; the value is that of every Linux that PyTorch runs on.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPlan:
    """An array to allocate.

    Attributes:
        name: unique in the buffer; the part before the first "/" groups it in messages.
        rows: length of the first axis.
        shape: the other axes.
        dtype: element type.
        max_rows: what it may grow to; 0 means `rows`.
        short_rows: what it grows to if every row ends an episode; 0 means `rows`.
        volatile: written all over between two checkpoints, so changes are not recorded.
    """

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    max_rows: int = 0
    short_rows: int = 0
    volatile: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first axis."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes committed from the start."""
        return self.rows * self.row_bytes


@dataclass(slots=True)
class StoredArray:
    """An allocated array and which of its chunks are new since the last checkpoint.

    Attributes:
        plan: what was asked for.
        tensor: [max_rows, ...] on the CPU, [rows, ...] on a device; zero where never written.
        rows: committed length of the first axis.
        chunk_bytes: size of a chunk of the flattened array.
        file_descriptor: of the file that it lies in; None: it lies in none.
        capacity: of the whole buffer, for messages.
        written: [chunks] bool, ever written.
        changed: [chunks] bool, written since `digest` was taken.
        digest: chunk -> SHA-256 of the content it was last saved with.
        row_bytes: bytes of one entry of the first axis.
    """

    plan: ArrayPlan
    tensor: Tensor
    rows: int
    chunk_bytes: int
    file_descriptor: int | None = None
    capacity: int = 0
    written: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    changed: Array = field(default_factory=lambda: np.zeros(0, dtype=bool))
    digest: dict[int, str] = field(default_factory=dict)

    row_bytes: int = 0

    def __post_init__(self) -> None:
        self.row_bytes = self.plan.row_bytes
        self._fit_chunks()

    def _fit_chunks(self) -> None:
        total = self.tensor.shape[0] * self.row_bytes
        more = -(-total // self.chunk_bytes) - len(self.written)
        self.written = np.concatenate([self.written, np.zeros(more, dtype=bool)])
        self.changed = np.concatenate([self.changed, np.zeros(more, dtype=bool)])

    def touch(self, start: int, stop: int) -> None:
        """Record that rows start .. stop - 1 are being written."""
        if stop > start:
            first = start * self.row_bytes // self.chunk_bytes
            last = (stop * self.row_bytes - 1) // self.chunk_bytes
            if first == last:  # as for most writes of few rows; setting one is quicker
                self.written[first] = self.changed[first] = True
                return
            self.written[first : last + 1] = True
            self.changed[first : last + 1] = True

    def touch_rows(self, rows: Array) -> None:
        """Record that these rows are being written; a row may span several chunks."""
        if len(rows) == 1:
            self.touch(int(rows[0]), int(rows[0]) + 1)
            return
        first = rows.astype(np.int64) * self.row_bytes // self.chunk_bytes
        last = ((rows.astype(np.int64) + 1) * self.row_bytes - 1) // self.chunk_bytes
        for offset in range(int((last - first).max(initial=0)) + 1):
            chunk = np.minimum(first + offset, last)
            self.written[chunk] = True
            self.changed[chunk] = True

    def grow(self, rows: int) -> None:
        """Make at least `rows` rows usable.

        Raises:
            ConfigError: if the additional rows do not fit.
        """
        if rows <= self.rows:
            return
        added = (rows - self.rows) * self.row_bytes
        if self.file_descriptor is None:
            self._require_memory(rows, added)
        device = self.tensor.device
        if device.type != "cpu":
            larger = torch.zeros((rows, *self.plan.shape), dtype=self.plan.dtype, device=device)
            larger[: self.rows] = self.tensor
            self.tensor = larger
            self._fit_chunks()
        elif self.file_descriptor is not None:
            _reserve_disk(self.file_descriptor, self.rows * self.row_bytes, added, self.plan.name)
        self.rows = rows

    def _require_memory(self, rows: int, added: int) -> None:
        device, copied = self.tensor.device, ""
        available, size, other = available_memory(), added, "memmap"
        if device.type != "cpu":  # old and new lie there side by side while it is copied
            available, size, other = (
                available_device_memory(device),
                rows * self.row_bytes,
                "memory",
            )
            copied = f", and is copied as it grows, which takes {size / 1e9:,.2f} GB"
        if available is None or size <= available[0]:
            return
        frames = f"{rows - self.rows:,} x {self.row_bytes:,} bytes ({self.plan.name})"
        raise ConfigError(
            f"replay of capacity={self.capacity:,} transitions must grow by {added / 1e9:,.2f} GB "
            f"= {frames}{copied}: it holds more ends of episodes than it was made for. But "
            f"{available[0] / 1e9:,.2f} GB is available ({available[1]}). Use a smaller capacity, "
            f"or storage={other!r}."
        )

    def clear(self) -> None:
        """Zero what was ever written."""
        flat = self.flat_bytes()
        for chunk in np.flatnonzero(self.written):
            first, stop = self.chunk_range(int(chunk))
            flat[first:stop] = 0
        self.written[:] = False
        self.changed[:] = False
        self.digest.clear()

    def chunk_range(self, chunk: int) -> tuple[int, int]:
        """First byte and the byte after the last of a chunk; the same wherever the array lies."""
        total = self.rows * self.row_bytes
        return chunk * self.chunk_bytes, min((chunk + 1) * self.chunk_bytes, total)

    def flat_bytes(self) -> Tensor:
        """[max_rows * row_bytes] uint8, the same memory."""
        return self.tensor.view(-1).view(torch.uint8)


class Arena:
    """All arrays of one buffer.

    Args:
        plans: what to allocate.
        config: says where.

    Attributes:
        device: where they lie.
        arrays: by their names.
        queue: gathers writes to a device; None in main memory.
        caution: what to say at the start if they may outgrow the place where they lie; None:
            nothing.

    Raises:
        ConfigError: if they do not fit where they are to lie; with the arithmetic.
        DeviceError: if the device is not there.
    """

    def __init__(self, plans: Iterable[ArrayPlan], config: ReplayConfig) -> None:
        self.device = _storage_device(config)
        self.queue = None if self.device.type == "cpu" else DeviceQueue(self.device)
        self.arrays: dict[str, StoredArray] = {}
        self._host: dict[str, Array] = {}
        plans = list(plans)
        self.caution = _require_fits(plans, config, self.device)
        for plan in plans:
            tensor, descriptor = self._allocate(plan, config)
            self.arrays[plan.name] = StoredArray(
                plan, tensor, plan.rows, config.chunk_bytes, descriptor, config.capacity
            )

    def __getitem__(self, name: str) -> Tensor:
        """The array called `name`; ask again after growing."""
        return self.arrays[name].tensor

    def host(self, name: str) -> Array:
        """The array called `name` for numpy, in the same memory; only where that is main memory."""
        view = self._host.get(name)
        if view is None:
            view = self._host[name] = self.arrays[name].tensor.numpy()
        return view

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def nbytes(self) -> int:
        """Bytes committed, when every row has been written."""
        return sum(array.rows * array.plan.row_bytes for array in self.arrays.values())

    @property
    def is_known_to_numpy(self) -> bool:
        """Whether numpy has all types of its arrays; bfloat16 it does not have."""
        try:
            for array in self.arrays.values():
                torch.empty(0, dtype=array.plan.dtype).numpy()
        except TypeError:
            return False
        return True

    @property
    def version(self) -> int:
        """Rows of all arrays: it rises when one grows, which on a device moves it."""
        return sum(array.rows for array in self.arrays.values())

    @property
    def gathers(self) -> bool:
        """Whether work on the device waits for other work."""
        return self.queue is not None and self.queue.is_open

    def write_ring(
        self, name: str, row: int, value: Tensor, width: int, ring: int | None = None
    ) -> None:
        """Write R consecutive rows into a ring, around its end if need be.

        Args:
            name: an array whose first axis is [ring * width].
            row: absolute number of the first row.
            value: [R, width, ...], R at most `ring`.
            width: entries of the first axis per row.
            ring: rows of the ring, where it is only the first part of the array.
        """
        array = self.arrays[name]
        ring = ring or array.plan.rows // width
        if self.gathers:
            self._queue_ring(array, row % ring, value, width, ring)
            return
        view = array.tensor[: ring * width].view(ring, width, *array.plan.shape)
        start, count = row % ring, value.shape[0]
        head = min(count, ring - start)
        view[start : start + head] = value[:head].to(self.device)
        array.touch(start * width, (start + head) * width)
        if count > head:
            view[: count - head] = value[head:].to(self.device)
            array.touch(0, (count - head) * width)

    def _queue_ring(
        self, array: StoredArray, start: int, value: Tensor, width: int, ring: int
    ) -> None:
        """`write_ring` with others, row `start` of the ring being the first."""
        rows = (start + np.arange(len(value))) % ring
        over = max(start + len(value) - ring, 0)
        array.touch(start * width, (start + len(value) - over) * width)
        array.touch(0, over * width)
        index = torch.from_numpy((rows[:, None] * width + np.arange(width)).reshape(-1))
        value = value.to(array.plan.dtype).reshape(len(index), *array.plan.shape)
        self.run(
            ("ring", array.plan.name), lambda at, new: array.tensor.index_copy_(0, at, new),
            index, value,
        )  # fmt: skip

    def run(self, name: Hashable, function: Callable[..., Any], *inputs: Tensor) -> None:
        """Do something in place on the device: with other work where that is gathered, else now.

        Args:
            name: the same for work that does the same to the same memory.
            function: called with `inputs` on the device; doing it twice does no harm.
            inputs: wherever they lie.
        """
        if self.queue is not None and self.queue.is_open:
            self.queue.put(name, function, *inputs)
        else:
            function(*(each.to(self.device) for each in inputs))

    def clear(self) -> None:
        """Zero everything that was ever written."""
        for array in self.arrays.values():
            array.clear()

    def _allocate(self, plan: ArrayPlan, config: ReplayConfig) -> tuple[Tensor, int | None]:
        if self.device.type != "cpu":
            shape = (plan.rows, *plan.shape)
            return torch.zeros(shape, dtype=plan.dtype, device=self.device), None
        rows = max(plan.max_rows, plan.rows)
        size = rows * plan.row_bytes
        if config.storage == "memmap":
            buffer, descriptor = _map_file(_storage_directory(config), size, plan)
        else:
            buffer, descriptor = _map_memory(size, plan), None
        flat = torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8, count=size))
        return flat.view(plan.dtype).view(rows, *plan.shape), descriptor


def available_device_memory(device: torch.device) -> tuple[int, str] | None:
    """Free bytes of a device; None for a kind of device that does not say."""
    if device.type == "cpu":
        return available_memory()
    free = kind_of(device).free_bytes(device)
    return None if free is None else (free, f"free on {device}")


def _memory_of_a_rank() -> tuple[int, str]:
    """Free bytes for this process: ranks on one machine look before any of them fills its part."""
    (free, source), ranks = available_memory(), ranks_here()
    return (free, source) if ranks == 1 else (free // ranks, f"{source}, for each of {ranks} ranks")


def available_disk(directory: Path) -> tuple[int, str]:
    """Free bytes on the disk that holds `directory`."""
    return shutil.disk_usage(directory).free, f"free on the disk of {directory}"


def require_fit(
    parts: dict[str, int], capacity: int, available: tuple[int, str] | None, advice: str
) -> None:
    """Refuse a buffer that cannot fit, with the arithmetic.

    Args:
        parts: array group -> bytes.
        capacity: transitions that these bytes are for.
        available: bytes there are, and where; None skips the check.
        advice: further ways out, to end the message.

    Raises:
        ConfigError: if the parts sum to more than is available.
    """
    needed = sum(parts.values())
    if available is None or needed <= available[0]:
        return
    free, source = available
    largest = sorted(parts.items(), key=lambda item: -item[1])[:4]
    terms = " + ".join(f"{name} {size / capacity:,.0f}" for name, size in largest)
    raise ConfigError(
        f"replay of capacity={capacity:,} transitions needs {needed / 1e9:,.2f} GB = {capacity:,} "
        f"x {needed / capacity:,.0f} bytes ({terms}{' + ...' if len(parts) > 4 else ''}), but "
        f"{free / 1e9:,.2f} GB is available ({source}). Use a capacity of at most "
        f"{int(capacity * free / needed):,}{advice}."
    )


def _storage_device(config: ReplayConfig) -> torch.device:
    device = torch.device(config.device) if config.storage == "device" else torch.device("cpu")
    reason = None if device.type == "cpu" else kind_of(device).why_unusable(device)
    if reason is not None:
        raise DeviceError(
            f"device={config.device!r} for replay: no {device.type.upper()} device can be used "
            f"({reason}). "
            "Use storage='memory' or 'memmap'."
        )
    if not kind_of(device).has_float64:
        raise DeviceError(
            f"device={config.device!r} for replay: draws and priorities are float64, in which it "
            f"does not compute. Use storage='memory' or 'memmap' (--replay-storage)."
        )
    return exact_device(device)


def _storage_directory(config: ReplayConfig) -> Path:
    directory = config.storage_dir or Path()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"storage_dir={str(directory)!r} cannot be made ({error}). "
            "Use a directory that is writable."
        ) from error
    return directory


def _require_fits(plans: list[ArrayPlan], config: ReplayConfig, device: torch.device) -> str | None:
    """Refuse arrays that do not fit; a sentence if they do not once episodes are very short."""
    parts: dict[str, int] = {}
    for plan in plans:
        group = plan.name.split("/", 1)[0]
        parts[group] = parts.get(group, 0) + plan.nbytes
    if config.storage == "memmap":
        directory = (config.storage_dir or Path()).absolute()
        while not directory.exists():  # it is made once it is known that everything fits
            directory = directory.parent
        available, advice = available_disk(directory), ", or a storage_dir on a larger disk"
    elif config.storage == "device":
        available = _memory_of_a_rank() if device.type == "cpu" else available_device_memory(device)
        advice = ", or storage='memory'"
    else:
        available, advice = _memory_of_a_rank(), ", or storage='memmap'"
    if config.frame_stack == 1:
        advice += ", or frame_stack=k if observations are stacks of k frames"
    require_fit(parts, config.capacity, available, advice)
    needed = sum(parts.values())
    short = sum(max(plan.short_rows, plan.rows) * plan.row_bytes for plan in plans)
    if config.storage == "device":  # the old array lies beside the new one while it is copied
        short += max((p.rows * p.row_bytes for p in plans if p.short_rows > p.rows), default=0)
    if available is None or short <= available[0]:
        return None
    return (
        f"replay of capacity={config.capacity:,} transitions takes {needed / 1e9:,.2f} GB, with "
        f"room for an end of an episode in every {ROWS_PER_END} transitions. If episodes are "
        f"shorter, it grows, up to {short / 1e9:,.2f} GB, and {available[0] / 1e9:,.2f} GB is "
        f"available ({available[1]}): the run would fail then. A capacity of at most "
        f"{int(config.capacity * available[0] / short):,} fits{advice}."
    )


def _map_memory(size: int, plan: ArrayPlan) -> mmap.mmap:
    """Private zero pages; NORESERVE, because rows that are never used cost nothing."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        return mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, MemoryError) as error:
        raise ConfigError(
            f"the system refuses {size / 1e9:,.2f} GB of address space for the replay array "
            f"{plan.name!r} ({error}). Use a smaller capacity, or storage='memmap'."
        ) from error


def _map_file(directory: Path, size: int, plan: ArrayPlan) -> tuple[mmap.mmap, int]:
    """A file that has no name any more: it goes when the process does, however that ends."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="replay-", dir=directory)
    except OSError as error:
        raise ConfigError(
            f"storage_dir={str(directory)!r}: no file can be made there ({error}). "
            "Use a directory that is writable."
        ) from error
    os.unlink(name)
    try:
        with _on_disk(plan.nbytes, plan.name):
            os.ftruncate(descriptor, size)
        _reserve_disk(descriptor, 0, plan.nbytes, plan.name)
        with _on_disk(plan.nbytes, plan.name):
            buffer = mmap.mmap(descriptor, size)
    except ConfigError:
        os.close(descriptor)
        raise
    weakref.finalize(buffer, os.close, descriptor)
    return buffer, descriptor


def _reserve_disk(descriptor: int, start: int, size: int, name: str) -> None:
    """Take the blocks now: a disk that fills up later would kill the process with SIGBUS."""
    if not hasattr(os, "posix_fallocate"):  # macOS: the check of free space has to do
        return
    with _on_disk(size, name):
        os.posix_fallocate(descriptor, start, size)


@contextlib.contextmanager
def _on_disk(size: int, name: str) -> Iterator[None]:
    """Turn what the system says of a disk into a sentence about the array `name`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the disk cannot hold {size / 1e9:,.2f} GB for the replay array {name!r} ({error}). "
            "Use a smaller capacity, or a storage_dir on a larger disk."
        ) from error
