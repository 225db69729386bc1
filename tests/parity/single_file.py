"""The programs in scripts/ as modules, and networks of the library with their weights."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

SCRIPTS = Path(__file__).parents[2] / "scripts"
# What begins with "docs_" serves the documentation.
NAMES = tuple(
    sorted(path.stem for path in SCRIPTS.glob("*.py") if not path.stem.startswith("docs_"))
)


def load(name: str) -> ModuleType:
    """The program as a module, the same one at every call."""
    key = f"single_file_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


@torch.no_grad()
def copy_in_order(source: Iterable[Tensor], into: Iterable[Tensor]) -> None:
    """Parameters of one network into another of the same layers."""
    for given, taken in zip(source, into, strict=True):
        taken.copy_(given)


@torch.no_grad()
def copy_twins(source: Any, into: Any) -> None:
    """Two perceptrons of a program into the library's batched ensemble."""
    for layer, name in enumerate(("first", "second", "last")):
        for member, network in enumerate((source.first, source.second)):
            linear = getattr(network, name)
            into.ensemble.weights[layer][member].copy_(linear.weight.t())
            into.ensemble.biases[layer][member, 0].copy_(linear.bias)


def twin_gradients(ensemble: Any) -> list[Tensor]:
    """The ensemble's gradients, in the order and the layout of a program's `TwinCritic`."""
    gradients: list[Tensor] = []
    for member in range(2):
        for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
            gradients += [weight.grad[member].t(), bias.grad[member, 0]]
    return gradients


@torch.no_grad()
def copy_recurrent(source: Any, into: Any) -> None:
    """R2D1's network of the program into the library's policy."""
    encoder = next(module for module in into.torso.modules() if isinstance(module, nn.Linear))
    copy_in_order(source.encoder.parameters(), encoder.parameters())
    core = source.core
    for given, taken in (
        (core.weight_ih, into.core.input_weight),
        (core.weight_hh, into.core.hidden_weight),
        (core.bias_ih + core.bias_hh, into.core.bias),
    ):
        taken.copy_(in_library_order(given))
    copy_in_order(source.advantage.parameters(), into.head.advantage.parameters())
    copy_in_order(source.value.parameters(), into.head.state_value.parameters())


def in_library_order(gates: Tensor) -> Tensor:
    """Rows of torch's LSTM (input, forget, cell, output) as the library has them."""
    input_, forget, cell, output = gates.chunk(4)
    return torch.cat([input_, forget, output, cell])
