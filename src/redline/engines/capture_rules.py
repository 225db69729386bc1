"""What a captured graph may not contain, found before anything is captured.

A capture that fails says of CUDA only that an operation is not permitted, not which, and leaves the
stream in a broken state. So the last warm-up call is watched operator by operator (`CaptureWatch`),
and refused by name where it

- reads a number back to the host, also inside an operator, or makes a tensor whose size depends on
  one;
- copies between the host and the device;
- draws from a generator of the device that the graph does not know.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from redline.errors import CaptureError

_READS = {
    "aten::_local_scalar_dense": "reads a number back to the host",
    "aten::item": "reads a number back to the host",  # as inference mode calls it
    "aten::equal": "reads a number back to the host",
    "aten::nonzero": "makes a tensor whose size only the device knows",
    "aten::masked_select": "makes a tensor whose size only the device knows",
    "aten::_unique": "makes a tensor whose size only the device knows",
    "aten::_unique2": "makes a tensor whose size only the device knows",
    "aten::unique_consecutive": "makes a tensor whose size only the device knows",
    "aten::unique_dim": "makes a tensor whose size only the device knows",
    "aten::repeat_interleave.Tensor": "makes a tensor whose size only the device knows",
    "aten::bincount": "makes a tensor whose size only the device knows",
    **dict.fromkeys(
        (
            *("aten::normal.Tensor_Tensor", "aten::normal.Tensor_Tensor_out"),
            *("aten::normal.float_Tensor", "aten::normal.float_Tensor_out"),
        ),
        "waits for the device inside, to see that no deviation is negative",
    ),
}
_INDEXING = ("aten::index.Tensor", "aten::index_put_", "aten::index_put")
_COPIES = ("aten::_to_copy", "aten::copy_")
_TORCH = str(Path(torch.__file__).parent)


class CaptureWatch(TorchDispatchMode):
    """Refuses operators that no graph can contain, with the line of the code that called them.

    Args:
        device: where the graph is to run.
        generators: those that the graph knows beside the global ones.
    """

    def __init__(self, device: torch.device, generators: Iterable[torch.Generator]) -> None:
        super().__init__()
        self._device, self._known = device, {_address(each) for each in generators}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.name()
        reason = _READS.get(name)
        if name in _INDEXING and any(_is_mask(index) for index in args[1]):
            reason = "indexes with a mask, whose number of elements only the device knows"
        generator = kwargs.get("generator")
        if generator is not None and _address(generator) not in self._known:
            reason = "draws from a generator that is no attribute of the algorithm"
        result = func(*args, **kwargs)
        if (name in _COPIES or name.startswith("aten::to.")) and self._crosses(name, args, result):
            reason = "copies between the host and the device"
        if reason is not None:
            raise CaptureError(f"{name} {reason}, at {_caller()}")
        return result

    def _crosses(self, name: str, args: tuple[Any, ...], result: Any) -> bool:
        source = args[1] if name == "aten::copy_" else args[0]
        return isinstance(source, Tensor) and source.device.type != result.device.type


def _address(generator: Any) -> int:
    """Of what a generator is about: every call may make another Python object for it."""
    return generator._cdata


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _caller() -> str:
    """File and line of the innermost frame that is neither torch's nor this file's."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and not frame.filename.startswith(_TORCH):
            return f"{frame.filename}:{frame.lineno} ({frame.line})"
    return "an unknown place"
