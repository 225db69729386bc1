"""Matrix products by whichever of torch's libraries is the quicker one on this processor.

`torch.mm` goes to MKL, which leaves the 512-bit units of processors that are not Intel's unused:
on an AMD EPYC (Zen 5, one thread, 256 x 256 x 256, float32) it reaches 105 GFLOP/s, oneDNN, which
torch carries too, 217. A call of oneDNN costs 10 us more, so that small products stay with MKL.
Both round as float32 arithmetic does, in different orders: which one is used depends on the
processor and the shapes alone, so that the same run gives the same numbers.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

_LEAST_MULTIPLICATIONS = 700_000  # where both took equally long, on the machine above


def prefers_onednn() -> bool:
    """Whether large float32 products are quicker by oneDNN here: AVX-512, and not Intel's."""
    return _prefers_onednn()


# The compiler is not to look into files. `torch.compiler.assume_constant_result` says just this,
# but imports the whole compiler to say it.
prefers_onednn._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@functools.cache
def _prefers_onednn() -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: nothing was measured there
        return False


def is_large(rows: int, inner: int, columns: int) -> bool:
    """Whether a product [rows, inner] x [inner, columns] goes to oneDNN on this processor."""
    return rows * inner * columns >= _LEAST_MULTIPLICATIONS and prefers_onednn()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, what: str) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, what, [], "")


@torch.library.custom_op("redline::onednn_linear", mutates_args=())
def _closed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, what: str) -> Tensor:
    """The same, closed to the compiler, which wants this operator's weights packed beforehand."""
    return _linear(x, weight, bias, what)


@_closed_linear.register_fake
def _shape_of_linear(x: Tensor, weight: Tensor, bias: Tensor | None, what: str) -> Tensor:
    del bias, what
    return x.new_empty(x.shape[0], weight.shape[0])


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, what: str = "none") -> Tensor:
    """X weight^T + bias; a call of the closed form costs some microseconds more."""
    if torch.compiler.is_compiling():
        return _closed_linear(x, weight, bias, what)
    return _linear(x, weight, bias, what)


def matrix_product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """The product a b, without gradient.

    Args:
        a: [n, k] float32, of any strides.
        b: [k, m] float32, of any strides.
        out: [n, m] to write to; None makes new memory.
    """
    if a.is_cpu and is_large(a.shape[0], a.shape[1], b.shape[1]):
        result = _onednn(a, b.t())
        return result if out is None else out.copy_(result)
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """The layer x weight + bias, rectified if asked for, without gradient.

    Args:
        x: [n, k] float32.
        weight: [k, m] float32, of any strides.
        bias: [m].
        relu: whether negative results become 0.
    """
    if x.is_cpu and is_large(x.shape[0], x.shape[1], weight.shape[1]):
        return _onednn(x, weight.t(), bias, "relu" if relu else "none")
    result = torch.addmm(bias, x, weight)
    return result.relu_() if relu else result
