"""A stand-in accelerator: tensors on a device of their own, whose numbers lie in main memory.

It is what a machine without a GPU can know of one. Mixing its tensors with the CPU's is refused as
CUDA refuses it, every read-back by the host is noted with the line of the code that made it, and
operators, copies and their bytes are counted. It is registered through PyTorch's own PrivateUse1
key, so the code under test runs as it is.

| refused, as by CUDA | noted in `device.read_backs` |
|---|---|
| a CPU tensor with dimensions beside one of the device | a number read: `item`, `bool`, `tolist` |
| a generator of another device | a copy to the host: `cpu`, `numpy`, `to`, `copy_` |
| what no graph may do, while one is captured | shapes that depend on data: `nonzero`, masks |

`install()` once per process; `own_generators()` while it is used; `device` holds the counts. What
it cannot show: streams, races, and kernels that CUDA lacks.
"""

from __future__ import annotations

import copy
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils import _foreach_utils, backend_registration
from torch.utils._mode_utils import no_dispatch

NAME = "standin"
aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_TORCH = str(Path(torch.__file__).parent)
_OWN = (__file__, _TORCH, "tensordict", "<frozen")
# Their results' shapes depend on what the tensors hold: CUDA copies a count to the host.
_SHAPED_BY_DATA = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2",
    "aten::unique_consecutive", "aten::unique_dim", "aten::repeat_interleave.Tensor",
    "aten::equal", "aten::bincount",
}  # fmt: skip
_INDEXING = ("aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
# They give the same memory in another shape: no kernel is launched.
_NO_LAUNCH = {
    "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "lift_fresh", "movedim",
    "narrow", "permute", "reshape", "select", "set_", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as_real",
    "_reshape_alias", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "resize_", "squeeze_", "t_", "transpose_", "unsqueeze_",
    "_local_scalar_dense", "is_same_size",
}  # fmt: skip


@dataclass
class ReadBack:
    """Something the host waited for.

    Attributes:
        what: in a few words.
        where: file and line of the innermost frame outside of torch.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}"


@dataclass
class StandInDevice:
    """What happens on the device.

    Attributes:
        read_backs: what the host waited for.
        launches: operator -> kernels launched by the host, one for each operator.
        copied_bytes: to the device and back.
        capture: while a graph is captured, what may not be done; None: no graph is.
        replaying: whether a graph runs: then the host launches nothing.
    """

    read_backs: list[ReadBack] = field(default_factory=list)
    launches: Counter[str] = field(default_factory=Counter)
    copied_bytes: int = 0
    capture: Any = None
    replaying: bool = False

    def reset(self) -> None:
        """Forget all counts."""
        self.read_backs, self.launches, self.copied_bytes = [], Counter(), 0

    def num_launches(self) -> int:
        """Kernels and graphs launched by the host, copies included."""
        return self.launches.total()

    def note(self, what: str) -> None:
        """A read-back, refused while a graph is captured."""
        if self.capture is not None:
            raise RuntimeError(f"{what} at {_where()}: not permitted while a graph is captured")
        if not self.replaying:
            self.read_backs.append(ReadBack(what, _where()))

    def launch(self, name: str) -> None:
        """A kernel, unless a graph launches it."""
        if not self.replaying and self.capture is None:
            self.launches[name] += 1


device = StandInDevice()


def _where() -> str:
    """The innermost line that is not torch's."""
    for frame in reversed(traceback.extract_stack()):
        if not any(part in frame.filename for part in _OWN):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "?"


class StandInGenerator(torch.Generator):
    """A generator of either device; torch's own hooks for new devices know none in Python."""

    _by_address: ClassVar[Any] = weakref.WeakValueDictionary()
    _own: torch.device

    def __new__(cls, device: Any = "cpu") -> StandInGenerator:
        made = super().__new__(cls, device="cpu")
        made._own = torch.device(device)
        cls._by_address[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it draws."""
        return torch.device(NAME, 0) if self._own.type == NAME else self._own


class StandInTensor(torch.Tensor):
    """A tensor on the stand-in; `raw` is where its numbers are."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls: type[StandInTensor], raw: torch.Tensor) -> StandInTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, device=f"{NAME}:0", requires_grad=False,
        )  # fmt: skip

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    def __repr__(self) -> str:
        return f"standin({self.raw})"

    def tolist(self) -> Any:
        """As CUDA's: copied to the host first."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused, as for CUDA's."""
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
            f"tensor to host memory first."
        )

    __array__ = numpy

    def data_ptr(self) -> int:
        """Where its numbers are."""
        return self.raw.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> StandInTensor:
        """Torch's own would look for numbers behind the wrapper's empty storage."""
        if id(self) in memo:
            return memo[id(self)]
        with torch.inference_mode(False), torch.no_grad():
            made = StandInTensor(self.raw.clone())
        vars(made).update({name: value for name, value in vars(self).items() if name != "raw"})
        made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        if self.is_leaf and self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_whole = torch.is_inference_mode_enabled() and func.has_kernel_for_dispatch_key(
            _COMPOSITE
        )
        # A wrapper made in inference mode could not share its version with a view's base; leaving
        # that mode would begin to record gradients.
        with torch.inference_mode(False), torch.no_grad():
            if is_whole:  # outside of that mode, autograd takes such operators apart
                return func.decompose(*args, **(kwargs or {}))
            return _run(func, args, dict(kwargs or {}))


def _is(tensor: Any) -> bool:
    return isinstance(tensor, StandInTensor)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, StandInTensor) else value


def leaves(value: Any) -> list[Any]:
    """What lists, tuples and dicts hold, as operators take and give them.

    torch's own pytree knows more containers, and took half of the time of these tests.
    """
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in leaves(each)]
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    return [value]


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(change, each) for each in value])
    if isinstance(value, dict):
        return {name: _mapped(change, each) for name, each in value.items()}
    return change(value)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is aten._to_copy.default:
        return _moved(args[0], kwargs)
    if func is aten.copy_.default:
        return _copied(args[0], args[1])
    if func in _CELLS:
        return _CELLS[func](*args)
    if func is aten._local_scalar_dense.default:
        device.note("a number read")
        return args[0].raw.item()
    _look_at(func.name(), args, kwargs)
    return _computed(func, args, kwargs)


def _look_at(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Count and refuse what CUDA would wait for, launch and refuse."""
    if name in _SHAPED_BY_DATA:
        device.note(f"{name}: a result whose shape or value depends on data")
    looked_at = (args, kwargs)
    if name in _INDEXING:  # where indices may lie on the host: CUDA copies them
        _note_indices(args[1])
        looked_at = (args[0], args[2:], kwargs)
    _refuse_mixing(name, [a for a in leaves(looked_at) if isinstance(a, torch.Tensor)])
    _check_generator(name, kwargs)
    kind = name.split("::")[1].split(".")[0]
    if kind not in _NO_LAUNCH:
        device.launch(kind)


def raw_call(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """What an operator is called with in main memory; None if it is more than that call."""
    if func in _CELLS or func in (aten._to_copy.default, aten.copy_.default):
        return None
    return None if func.has_kernel_for_dispatch_key(_COMPOSITE) else _in_memory(args, kwargs)


def _in_memory(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    raw_args, raw_kwargs = _mapped(_raw, (args, kwargs))
    if "device" in raw_kwargs:
        raw_kwargs["device"] = "cpu"
    raw_kwargs.pop("pin_memory", None)
    return raw_args, raw_kwargs


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operator's result from the numbers in main memory, on the device again."""
    own = {id(leaf.raw): leaf for leaf in leaves((args, kwargs)) if _is(leaf)}
    raw_args, raw_kwargs = _in_memory(args, kwargs)

    def wrapped(made: Any) -> Any:
        if not isinstance(made, torch.Tensor):
            return made
        # In-place operators and `out=` give the tensor that they were given.
        return own[id(made)] if id(made) in own else StandInTensor(made)

    result = func(*raw_args, **raw_kwargs)
    if torch.Tag.inplace_view in func.tags and _layout(args[0]) != _layout(args[0].raw):
        with no_dispatch():  # `t_` and the like: the wrapper takes the layout of its numbers
            func(*args, **kwargs)
    return _mapped(wrapped, result)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _note_indices(indices: Any) -> None:
    """Masks are turned into indices, whose number only the device knows."""
    for index in indices:
        if isinstance(index, torch.Tensor):
            if index.dtype in (torch.bool, torch.uint8):
                device.note("indexing with a mask")
            if not _is(index):
                _note_copy(index, to_device=True)


def _refuse_mixing(name: str, tensors: list[torch.Tensor]) -> None:
    if not any(map(_is, tensors)):
        return
    for tensor in tensors:
        if not _is(tensor) and tensor.dim() > 0:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} was given a tensor "
                f"{tuple(tensor.shape)} on {tensor.device} beside one on {NAME}:0"
            )


def _check_generator(name: str, kwargs: dict[str, Any]) -> None:
    generator = kwargs.get("generator")
    if generator is None:
        return
    known = StandInGenerator._by_address.get(generator._cdata)
    if known is None or known.device.type != NAME:
        raise RuntimeError(f"Expected a {NAME!r} device type for generator but found 'cpu': {name}")
    if device.capture is not None:
        device.capture.require_registered(known, name)


def _moved(source: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """`aten._to_copy`: another dtype, layout or device."""
    asked = kwargs.pop("device", None)
    target = torch.device(asked).type if asked is not None else None
    if target is None:
        target = NAME if _is(source) else "cpu"
    kwargs.pop("pin_memory", None)
    _note_copy(source, to_device=target == NAME)
    made = aten._to_copy.default(_raw(source), **kwargs)
    return StandInTensor(made) if target == NAME else made


def _copied(to: torch.Tensor, source: torch.Tensor | float) -> torch.Tensor:
    if not isinstance(source, torch.Tensor):  # CUDA makes a host tensor of a number, and copies it
        source = torch.tensor(source, dtype=to.dtype)
    _note_copy(source, to_device=_is(to))
    with torch.inference_mode(_raw(to).is_inference()), torch.no_grad():
        _raw(to).copy_(_raw(source))
    return to


def _note_copy(source: torch.Tensor, *, to_device: bool) -> None:
    if _is(source) and not to_device:
        device.note("a copy to the host")
        device.copied_bytes += source.nbytes
    elif to_device and not _is(source):
        if device.capture is not None:
            raise RuntimeError(
                f"a copy of host memory {tuple(source.shape)} at {_where()}: not permitted while "
                f"a graph is captured"
            )
        device.copied_bytes += source.nbytes
    device.launch("copy")


class _Module:
    """What torch asks of a device's module."""

    @staticmethod
    def is_initialized() -> bool:
        return True

    is_available = is_initialized

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Numbers without a generator come from the CPU's, which torch seeds."""

    @staticmethod
    def synchronize(_device: Any = None) -> None:
        """Everything is done at once; being asked to wait is what counts."""
        device.note("a wait for the device")

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float32]


_installed = False


def install() -> None:
    """Register the device with torch, once per process."""
    global _installed
    if _installed:
        return
    _installed = True
    # CUDA's are plain tensors, for which torch takes the kernels for many at once by itself.
    _foreach_utils._foreach_supported_types.append(StandInTensor)
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    _LIBRARIES.append(library)
    library.impl("empty.memory_format", _empty)
    library.impl("empty_strided", _empty_strided)
    library.impl(
        "_to_copy", lambda tensor, **kwargs: _run(aten._to_copy.default, (tensor,), kwargs)
    )
    library.impl(
        "_copy_from",
        lambda source, to, non_blocking=False: StandInTensor.__torch_dispatch__(
            aten.copy_.default, (), (to, source)
        ),
    )
    _decompose_recurrent_cells()


_LIBRARIES: list[Any] = []


def _empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:  # fmt: skip
    with torch.inference_mode(False):
        made = torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format)
        return StandInTensor(made)


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> Any:  # fmt: skip
    with torch.inference_mode(False):
        return StandInTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _lstm_cell(
    from_input: Any, from_hidden: Any, cell: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any, Any]:
    """The fused cell in plain operators, which autograd knows; the workspace is its gates."""
    gates = from_input + from_hidden
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    enter, forget, new, leave = gates.chunk(4, 1)
    after = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * after.tanh(), after, gates


def _gru_cell(
    from_input: Any, from_hidden: Any, hidden: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any]:
    """Likewise."""
    if input_bias is not None:
        from_input, from_hidden = from_input + input_bias, from_hidden + hidden_bias
    (r, z, n), (own_r, own_z, own_n) = from_input.chunk(3, 1), from_hidden.chunk(3, 1)
    new = (n + (r + own_r).sigmoid() * own_n).tanh()
    return (hidden - new) * (z + own_z).sigmoid() + new, new


# torch calls fused kernels for these on whatever is not the CPU.
_CELLS = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_gru_cell.default: _gru_cell,
}


def _decompose_recurrent_cells() -> None:
    library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    _LIBRARIES.append(library)
    library.impl("_thnn_fused_lstm_cell", _lstm_cell)
    library.impl("_thnn_fused_gru_cell", _gru_cell)


@contextmanager
def own_generators() -> Iterator[None]:
    """Let `torch.Generator` make generators of the device for a while."""
    before = torch.Generator
    torch.Generator = StandInGenerator  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.Generator = before  # type: ignore[misc]


@contextmanager
def counted() -> Iterator[StandInDevice]:
    """The device with counts of its own for a while."""
    before = device.read_backs, device.launches, device.copied_bytes
    device.reset()
    try:
        yield device
    finally:
        device.read_backs, device.launches, device.copied_bytes = before
