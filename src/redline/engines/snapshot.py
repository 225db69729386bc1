"""All that an update may depend on, copied and put back: for comparing, and for trying.

The state of an algorithm is what its `state_dict` says. What a user's own algorithm holds besides,
and every global generator, is kept and put back as well.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redline.devices import global_rng_states, set_global_rng_states
from redline.user_code import is_a_users

_DEEPEST = 8
_PLAIN = (Tensor, bool, int, float, str, type(None))


class Snapshot(NamedTuple):
    """All that an update may depend on.

    Attributes:
        state: of the algorithm, in memory of its own.
        attributes: what the algorithm, and those inside it, hold and `state` may leave out, as a
            user's own do: (number of the algorithm, name) -> the object, and a copy of what it
            holds.
        generators: of torch, numpy and Python, which networks and users' code may draw from.
        names: of all attributes of each, so that those that came later can be taken away.
    """

    state: dict[str, Any]
    attributes: dict[tuple[int, str], tuple[Any, Any]]
    generators: tuple[Any, ...]
    names: tuple[frozenset[str], ...]


def snapshot(algorithm: Any) -> Snapshot:
    """A copy of an algorithm's state and of the global generators."""
    attributes = {
        (number, name): (value, _held(value))
        for number, owner in enumerate(owners_of(algorithm))
        for name, value in vars(owner).items()
        if isinstance(value, _PLAIN) or (is_a_users(owner) and _can_be_put_back(value))
    }
    return Snapshot(
        _copied(algorithm.state_dict()),
        attributes,
        generator_states(algorithm),
        tuple(frozenset(vars(owner)) for owner in owners_of(algorithm)),
    )


@torch.no_grad()
def restore(algorithm: Any, past: Snapshot) -> None:
    """Put everything back as it was."""
    owners = owners_of(algorithm)
    for owner, names in zip(owners, past.names, strict=True):
        for name in vars(owner).keys() - names if is_a_users(owner) else ():
            del vars(owner)[name]  # such as a count that the first update begins
    for (number, name), (value, held) in past.attributes.items():
        vars(owners[number])[name] = value
        _put_back(value, held)
    algorithm.load_state_dict(_copied(past.state))
    torch_state, numpy_state, python_state, devices = past.generators
    torch.set_rng_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
    name, key, *rest = numpy_state
    np.random.set_state((name, np.frombuffer(key, np.uint32), *rest))
    random.setstate(python_state)
    set_global_rng_states(devices)


def owners_of(algorithm: Any) -> list[Any]:
    """The algorithm, the one inside it, and so on."""
    owners = [algorithm]
    while inside := getattr(owners[-1], "inner", ""):
        owners.append(getattr(owners[-1], inside))
    return owners


def _can_be_put_back(value: Any) -> bool:
    kinds = (list, dict, set, deque, np.ndarray)
    return isinstance(value, kinds) or hasattr(value, "load_state_dict")


def _held(value: Any, depth: int = 0) -> Any:
    """A copy of what an attribute holds; what is nested deeper than `_DEEPEST` is no data."""
    if depth > _DEEPEST:
        return None
    if hasattr(value, "load_state_dict"):
        return _copied(value.state_dict())
    if isinstance(value, (list, deque)):
        return [(part, _held(part, depth + 1)) for part in value]
    if isinstance(value, dict):
        return {name: (part, _held(part, depth + 1)) for name, part in value.items()}
    return copy.copy(value) if isinstance(value, set) else _copied(value)


def _put_back(value: Any, held: Any) -> None:
    """Let an attribute hold what it held, each tensor and array in its own memory."""
    if held is None:
        return
    if isinstance(value, Tensor):
        value.copy_(held)
    elif isinstance(value, np.ndarray):
        value[...] = held
    elif hasattr(value, "load_state_dict"):
        value.load_state_dict(_copied(held))
    elif isinstance(value, set):
        value.clear()
        value.update(held)
    elif isinstance(value, (list, deque, dict)):
        _refill(value, held)


def _refill(container: Any, held: Any) -> None:
    """The parts that it had, in their order, each with what it held."""
    container.clear()
    if isinstance(container, dict):
        container.update((name, part) for name, (part, _) in held.items())
        held = held.values()
    else:
        container.extend(part for part, _ in held)
    for part, inside in held:
        _put_back(part, inside)


def generator_states(algorithm: Any) -> tuple[Any, ...]:
    """States of the global generators: three that can be compared, and the devices'."""
    name, key, *rest = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        (name, np.asarray(key).tobytes(), *rest),
        random.getstate(),
        global_rng_states() if algorithm.device.type != "cpu" else {},
    )


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
