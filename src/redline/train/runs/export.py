"""Policies for use without Redline: ONNX files and `torch.export` programs."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from redline.errors import ConfigError, MissingExtraError, UnknownNameError
from redline.train.checkpoint.atomic_files import atomic_file

FORMATS = ("onnx", "torch")


def export_policy(
    module: nn.Module,
    example_inputs: tuple[Any, ...],
    out: Path | str,
    *,
    format: str = "onnx",
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Path:
    """Write a module as a file that runs without its source, for any batch size.

    The module is exported as a copy on the CPU in evaluation mode, and is left as it is. A
    `torch` file is opened by `torch.export.load(path).module()`, an `onnx` file by any ONNX
    runtime; both hold data and operators, no Python.

    Args:
        module: maps tensors [N, ...], or nested dicts of them, to tensors [N, ...].
        example_inputs: its positional arguments; their values do not matter.
        out: file to write.
        format: "onnx" or "torch".
        input_names: of the flat inputs in an ONNX file; None takes `module.input_names` if
            there is one, else the exporter's own.
        output_names: of the flat outputs, likewise.

    Returns:
        Where the file lies.

    Raises:
        UnknownNameError: if there is no such format.
        MissingExtraError: if ONNX is not installed.
        ConfigError: if the module cannot be traced, or not for every batch size.
        RunDirectoryError: if the file cannot be written.
    """
    if format not in FORMATS:
        raise UnknownNameError(
            f"there is no export format {format!r}. Choose one of: {', '.join(FORMATS)}."
        )
    if format == "onnx":
        for package in ("onnx", "onnxscript"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "onnx", "exporting to ONNX")
    out = Path(out)
    try:
        program, free = _traced(module, example_inputs)
        if format == "torch":
            with atomic_file(out) as temporary, open(temporary, "wb") as file:
                torch.export.save(program, file)
        else:
            names = (
                input_names or getattr(module, "input_names", None),
                output_names or getattr(module, "output_names", None),
            )
            _write_onnx(program, free, names, out)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"the policy cannot be exported as {format}: {reason}. A network of one's own must be "
            f"traceable by torch.export for any batch size: no Python branch on tensor values or "
            f"on the batch size."
        ) from error
    return out


def _traced(
    module: nn.Module, example_inputs: tuple[Any, ...]
) -> tuple[torch.export.ExportedProgram, Any]:
    """The module as a graph whose leading dimension is free, and the name of that dimension."""
    batch = torch.export.Dim("batch", min=1)
    inputs = pytree.tree_map(lambda leaf: leaf.detach().cpu(), example_inputs)
    for leaf in pytree.tree_leaves(inputs):
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            raise TypeError("every example input must be a tensor [N, ...]")
        if leaf.shape[0] < 2:
            # torch.export takes a size of 0 or 1 for a constant.
            raise ValueError("the example inputs must have a batch size of 2 or more")
    free = pytree.tree_map(lambda _: {0: batch}, inputs)
    on_cpu = copy.deepcopy(module).cpu().eval()
    with torch.no_grad():
        return torch.export.export(on_cpu, inputs, dynamic_shapes=free), free


def _write_onnx(
    program: torch.export.ExportedProgram,
    free: Any,
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    out: Path,
) -> None:
    input_names, output_names = (None if given is None else list(given) for given in names)
    with warnings.catch_warnings(), _without_exporter_notes():
        # The exporter uses what torch itself deprecates; nothing here could be changed for it.
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        # All inputs have the same free dimension; it tells that "batch" is used once.
        warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
        exported = torch.onnx.export(
            program,
            dynamic_shapes=free,
            input_names=input_names,
            output_names=output_names,
            dynamo=True,
            verbose=False,
        )
        if exported is None:
            raise RuntimeError("torch.onnx.export gave no program")
        with atomic_file(out) as temporary:
            exported.save(temporary, external_data=False)


@contextlib.contextmanager
def _without_exporter_notes() -> Iterator[None]:
    """Silence notes on packages, such as torchvision, that the exporter looks for in vain."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
