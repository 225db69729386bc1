"""Memory shared with worker processes that has no name, so none can be left behind.

The parent makes a `SharedBlock` before it starts workers, who inherit its file
descriptor. Its size may be settled later, when workers have told what they need:

    block = SharedBlock()
    group = WorkerGroup(factories, ..., memory=block)
    layout = Layout.of({"obs": ((8, 4), "float32"), "done": ((8,), "bool")})
    block.resize(layout.nbytes)
    arrays = block.arrays(layout)         # in the parent
    arrays = link.memory.arrays(layout)   # in a worker that was sent `layout`
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from redline.errors import ConfigError
from redline.nested import NestedArray

ArraySpec: TypeAlias = "tuple[tuple[int, ...], str] | Mapping[str, ArraySpec]"
_ALIGNMENT = 64  # bytes, a cache line: two processes never write the same one


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each array of a nested structure lies in a block.

    Attributes:
        places: nested like the structure, leaves (offset in bytes, shape, dtype).
        nbytes: size of the block.
    """

    places: Any
    nbytes: int

    @classmethod
    def of(cls, spec: ArraySpec) -> Layout:
        """Lay out `spec`, nested dicts of (shape, dtype)."""
        places, nbytes = _place(spec, 0)
        return cls(places, max(nbytes, 1))


def spec_of(tree: NestedArray) -> ArraySpec:
    """The (shape, dtype) of each array in a nested structure."""
    if isinstance(tree, np.ndarray):
        return (tree.shape, tree.dtype.str)
    return {key: spec_of(part) for key, part in tree.items()}


class SharedBlock:
    """One anonymous piece of shared memory.

    Args:
        fd: file descriptor of a block that another process made; None makes a new one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _anonymous_file() if fd is None else fd
        self._map: mmap.mmap | None = None

    def resize(self, nbytes: int) -> None:
        """Settle the size, in bytes; to be called once, in the parent.

        Raises:
            ConfigError: if the system does not have so much.
        """
        try:
            if hasattr(os, "posix_fallocate"):
                # Unlike ftruncate, this fails here and now if the memory is not there.
                os.posix_fallocate(self.fd, 0, nbytes)
            else:
                os.ftruncate(self.fd, nbytes)
        except OSError as error:
            raise ConfigError(
                f"the system refuses {nbytes:,} bytes of memory to share with worker processes "
                f"({error.strerror}). Use fewer environments, or shorter rollouts; or let the "
                f"system share more."
            ) from error

    def arrays(self, layout: Layout) -> Any:
        """The arrays of `layout`, which every process that has this block shares."""
        if self._map is None:
            self._map = mmap.mmap(self.fd, layout.nbytes)
        return _view(layout.places, self._map)

    def close(self) -> None:
        """Give the file descriptor back; the memory goes with the last array."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("redline")
    with tempfile.TemporaryFile() as file:  # unlinked at once
        return os.dup(file.fileno())


def _place(spec: Any, offset: int) -> tuple[Any, int]:
    if isinstance(spec, Mapping):
        places = {}
        for key, part in spec.items():
            places[key], offset = _place(part, offset)
        return places, offset
    shape, dtype = spec
    end = offset + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return (offset, tuple(shape), str(np.dtype(dtype).str)), -(-end // _ALIGNMENT) * _ALIGNMENT


def _view(places: Any, memory: mmap.mmap) -> Any:
    if isinstance(places, dict):
        return {key: _view(place, memory) for key, place in places.items()}
    offset, shape, dtype = places
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(memory, dtype=dtype, count=count, offset=offset).reshape(shape)
