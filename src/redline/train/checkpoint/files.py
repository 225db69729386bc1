"""The files inside a checkpoint: written and hashed in one pass, checked before they are read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from redline.errors import CorruptCheckpointError
from redline.plain_files import open_plain
from redline.plain_text import shortened, shown
from redline.train.checkpoint.tree import COMPLEX_PARTS, Leaf, dtype_name

_CHUNK_BYTES = 1 << 20
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


class HashedFile:
    """A file being written, its SHA-256 and size kept along the way; synced when it closes."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 (closed in __exit__)
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)

    def entry(self) -> dict[str, Any]:
        """What the manifest says of this file."""
        return {"sha256": self._hash.hexdigest(), "size_bytes": self.size_bytes}

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def write_tensors(path: Path, arrays: Mapping[str, Leaf]) -> dict[str, Any]:
    """Write arrays in the safetensors format, one after the other.

    The format is an 8-byte length, a JSON header and the raw bytes. Writing it here rather
    than through the library hashes in the same pass, moves one tensor at a time off its
    device, and takes tensors that share memory, as views into one flat buffer do.

    Args:
        path: file to make.
        arrays: name -> tensor or array of a dtype in `tree.DTYPES`; complex ones
            are written as [..., 2] real and imaginary parts.

    Returns:
        The file's entry in the manifest.
    """
    # Largest items first keeps every tensor aligned to its item size.
    names = sorted(arrays, key=lambda name: (-_stored(arrays[name])[2], name))
    header: dict[str, Any] = {}
    offset = 0
    for name in names:
        dtype, shape, item_bytes = _stored(arrays[name])
        end = offset + int(np.prod(shape, dtype=np.int64)) * item_bytes
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(raw_bytes(arrays[name]))
    return file.entry()


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Callable[[str], Tensor]]:
    """Read a safetensors file: gives name -> tensor, each a copy of its own, and each once.

    A state names every tensor once; one that is named again and again would fill the memory.

    Raises:
        CorruptCheckpointError: if it is not a well-formed file, too large to map, or a tensor is
            asked for twice.
    """
    taken: set[str] = set()
    try:
        with safe_open(path, framework="pt") as file:

            def read(name: str) -> Tensor:
                if name in taken:
                    raise ValueError(f"the array {shown(name)} is named twice")
                taken.add(name)
                # A copy: what safe_open gives is backed by the file, which may be deleted or cut.
                return file.get_tensor(name).clone()

            yield read
    except SafetensorError as error:
        raise CorruptCheckpointError(
            f"{path} is not a safetensors file: {shortened(error)}."
        ) from error
    except (RuntimeError, MemoryError) as error:  # torch cannot map it, or there is no memory
        raise CorruptCheckpointError(
            f"{path} cannot be taken into memory ({shortened(error)}). Use an earlier checkpoint, "
            "or a machine with more memory."
        ) from error


def check_file(path: Path, sha256: str, size_bytes: int) -> None:
    """Check that a file is what the manifest says.

    Raises:
        CorruptCheckpointError: if it is missing, no regular file, or has another size or hash.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{path} is missing.") from error
    if not stat.S_ISREG(status.st_mode):
        raise CorruptCheckpointError(f"{path} is not a regular file.")
    if status.st_size != size_bytes:
        raise CorruptCheckpointError(
            f"{path} has {status.st_size} bytes where the manifest says {shown(size_bytes)}."
        )
    found = _sha256_of(path)
    if found != sha256:
        raise CorruptCheckpointError(
            f"{path} was altered: its SHA-256 is {found} where the manifest says "
            f"{shortened(sha256)}."
        )


def params_sha256(named_tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over sorted names, dtypes, shapes and bytes.

    Args:
        named_tensors: such as `policy.state_dict()`; any device.
    """
    digest = hashlib.sha256()
    for name in sorted(named_tensors):
        tensor = named_tensors[name]
        described = json.dumps([name, dtype_name(tensor), list(tensor.shape)])
        digest.update(described.encode() + b"\n")
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()


def raw_bytes(leaf: Leaf) -> memoryview:
    """The bytes of an array in C order, without a copy if it is contiguous and on the CPU."""
    if isinstance(leaf, Tensor):
        tensor = leaf.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        flat = tensor.reshape(-1).view(torch.uint8).numpy()
    else:
        flat = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    return flat.data


def _stored(leaf: Leaf) -> tuple[str, list[int], int]:
    """Dtype, shape and item size as the file has them."""
    dtype, shape = dtype_name(leaf), list(leaf.shape)
    item_bytes = leaf.element_size() if isinstance(leaf, Tensor) else leaf.itemsize
    if dtype in COMPLEX_PARTS:
        return COMPLEX_PARTS[dtype], [*shape, 2], item_bytes // 2
    return dtype, shape, item_bytes


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(open_plain(path), "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
