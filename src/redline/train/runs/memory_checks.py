"""Refusing a run that cannot fit into memory, before any work, with the arithmetic.

Counted is what a run needs in any case, never an estimate of all: a run that is refused here would
have ended in a crash. Replay counts its own arrays (`replay/storage.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from redline.collect import Collector
from redline.envs import VecEnv
from redline.envs.backends.backend import Backend
from redline.envs.backends.processes import ProcessBackend
from redline.free_memory import available_memory, require_memory
from redline.models import leaf_spaces
from redline.train.settings import RunConfig

_ROW_BYTES = 4 + 4 + 3 + 8 + 8  # reward, bootstrap value, three flags, two numbers
_ROW_VIEWS_BYTES = 2_000  # Python objects per row of a rollout: 2,750 were measured for CartPole
_WORKER_BYTES = 16 * 2**20  # of a worker that only steps; one that acts has 200 MB more
_TRAINED = 4  # a weight, its gradient and Adam's two moments


def require_workers_fit(
    config: RunConfig, collector: type[Collector], backend: type[Backend]
) -> None:
    """Refuse more worker processes than memory holds.

    Raises:
        ConfigError: with the arithmetic.
    """
    if collector.workers == "none" and not issubclass(backend, ProcessBackend):
        return
    workers = config.run.num_workers
    require_memory(
        workers * _WORKER_BYTES,
        f"num_workers={workers}: {workers:,} processes x {_WORKER_BYTES:,} bytes, and so it",
        "Use fewer workers: one per core is usual.",
    )


def require_rollout_fits(config: RunConfig, env: VecEnv) -> None:
    """Refuse a rollout [T, B] that is larger than the memory there is.

    Args:
        config: of the run.
        env: one or more of its environments.

    Raises:
        ConfigError: with the arithmetic.
    """
    length, envs = config.algo.rollout_length, config.algo.num_envs
    row = _bytes_of(env.observation_space) + _bytes_of(env.action_space) + _ROW_BYTES
    require_memory(
        length * (envs * row + _ROW_VIEWS_BYTES),
        f"rollout_length={length} with num_envs={envs}: a rollout of {length:,} x ({envs:,} x "
        f"{row:,} + {_ROW_VIEWS_BYTES:,}) bytes, and so the run",
        "Use shorter rollouts, or fewer environments.",
    )


def _bytes_of(space: gymnasium.Space[Any]) -> int:
    """Bytes of one value of a space, as a rollout keeps it."""
    total = 0
    for _, leaf in leaf_spaces(space):
        dtype = np.dtype(leaf.dtype)
        width = 4 if dtype == np.float64 else dtype.itemsize
        total += math.prod(leaf.shape or ()) * width
    return total


@contextmanager
def limited_allocations(what: str) -> Iterator[None]:
    """Refuse, within, a tensor in main memory that cannot fit, before it is made.

    Random numbers and results are the same as without.

    Args:
        what: is being made, with the settings that its size follows from.

    Raises:
        ConfigError: naming the tensor's shape, the bytes it takes and those that there are.
    """
    with _AllocationLimit(what):
        yield


class _AllocationLimit(TorchDispatchMode):
    """Adds up the tensors that are made on the CPU."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what, self._taken = what, 0
        self._available = available_memory()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at the arguments of whatever makes tensors; everything else just runs."""
        del types
        kwargs = kwargs or {}
        made = _MADE.get(func.overloadpacket.__name__)
        if made is not None and _is_on_host(args, kwargs):
            self._look(*made(args, kwargs))
        return func(*args, **kwargs)

    def _look(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        size = math.prod(shape) * dtype.itemsize
        # Matrices are trained, or a sample from which a trained one is drawn.
        copies = _TRAINED if len(shape) > 1 and dtype.is_floating_point else 1
        shown = " x ".join(f"{each:,}" for each in shape)
        kind = str(dtype).removeprefix("torch.")
        trained = ", with its gradient and Adam's moments" if copies > 1 else ""
        before = f" beside {self._taken:,} bytes of others" if self._taken else ""
        require_memory(
            self._taken + copies * size,
            f"{self._what}: a tensor of {shown} {kind}{trained}{before}",
            "Use smaller sizes.",
            self._available,
        )
        self._taken += size


def _is_on_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what is made lies in main memory: other devices refuse by themselves."""
    device = kwargs.get("device")
    if device is None:
        first = args[0] if args else None
        return not isinstance(first, torch.Tensor) or first.is_cpu
    return torch.device(device).type == "cpu"


_Made = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Sequence[int], torch.dtype]]


def _by_size(position: int) -> _Made:
    """For operators that are given a shape."""

    def shape_and_dtype(
        args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Sequence[int], torch.dtype]:
        source = args[0] if position else None
        usual = source.dtype if isinstance(source, torch.Tensor) else torch.get_default_dtype()
        shape = args[position]
        whole = [shape] if isinstance(shape, int) else [int(each) for each in shape]
        return whole, kwargs.get("dtype") or usual

    return shape_and_dtype


def _like_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[int], torch.dtype]:
    """For operators that make a tensor like their first."""
    return tuple(args[0].shape), kwargs.get("dtype") or args[0].dtype


_SHAPED = ("empty", "empty_strided", "zeros", "ones", "full", "rand", "randn")
_MADE: dict[str, _Made] = {
    **dict.fromkeys(_SHAPED, _by_size(0)),
    **dict.fromkeys(("new_empty", "new_zeros", "new_ones", "new_full"), _by_size(1)),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "clone"), _like_first),
}


def size_settings(config: RunConfig, env: VecEnv) -> str:
    """What the networks' sizes follow from, for a message."""
    critics = "".join(
        f"{name}={getattr(config.algo, name)}, "
        for name in ("num_critics", "critic_hidden_sizes")
        if hasattr(config.algo, name)
    )
    return (
        f"hidden_sizes={config.policy.hidden_sizes}, core_size={config.policy.core_size}, {critics}"
        f"observations {_short(env.observation_space)} and actions {_short(env.action_space)}"
    )


def _short(space: gymnasium.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
