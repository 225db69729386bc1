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

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from redline.envs.spaces.layout import offset_of
from redline.errors import ConfigError, MissingExtraError, UnknownNameError
from redline.nested import leaves
from redline.plain_text import shown
from redline.policies.export import GreedyPolicy
from redline.policies.skills import PLAIN as PLAIN_WITH_SKILL
from redline.policies.skills import SKILL
from redline.previous_inputs import PLAIN, has_previous, without_previous
from redline.serving import mask_in_info
from redline.train.checkpoint.atomic_files import atomic_file

FORMATS = ("onnx", "torch")


class InOwnNumbers(nn.Module):
    """A greedy policy that takes and gives what the environment's spaces hold.

    Policies count from zero; a Discrete or MultiDiscrete space may begin at another `start`.

    Args:
        inner: counts from zero; kept, not copied.
        observation: dotted name of a leaf -> its `start`.
        action: likewise.

    Attributes:
        input_names: as of `inner`.
        output_names: likewise.
    """

    def __init__(
        self, inner: GreedyPolicy, observation: dict[str, Any], action: dict[str, Any]
    ) -> None:
        super().__init__()
        self.inner = inner
        self.input_names, self.output_names = inner.input_names, inner.output_names
        self._observation = self._kept("observation", observation)
        self._action = self._kept("action", action)

    def _kept(self, kind: str, starts: dict[str, Any]) -> dict[str, str]:
        """Keep starts as buffers, which the exporter takes along; leaf -> name of its buffer."""
        names = {leaf: f"{kind}_start_{n}" for n, leaf in enumerate(starts)}
        for leaf, name in names.items():
            start = torch.from_numpy(np.asarray(starts[leaf], np.int64))
            self.register_buffer(name, start, persistent=False)
        return names

    def example_inputs(self, batch_size: int = 2) -> tuple[Any, ...]:
        """As `GreedyPolicy.example_inputs`."""
        obs, *state = self.inner.example_inputs(batch_size)
        return (self._moved(obs, self._observation, 1), *state)

    def forward(
        self,
        obs: Any,
        first: Tensor | None = None,
        second: Tensor | None = None,
        third: Tensor | None = None,
    ) -> Any:
        """As `GreedyPolicy.forward`, in the environment's own numbers."""
        out = self.inner(self._moved(obs, self._observation, -1), first, second, third)
        if not isinstance(out, tuple):
            return self._moved(out, self._action, 1)
        return (self._moved(out[0], self._action, 1), *out[1:])

    def _moved(self, tree: Any, names: dict[str, str], sign: int, at: str = "") -> Any:
        if hasattr(tree, "keys"):
            return {
                key: self._moved(sub, names, sign, f"{at}.{key}" if at else str(key))
                for key, sub in tree.items()
            }
        return tree + sign * getattr(self, names[at]) if at in names else tree


def in_own_numbers(
    module: GreedyPolicy, observation_space: Space[Any], action_space: Space[Any]
) -> GreedyPolicy | InOwnNumbers:
    """The module with the `start` of the environment's spaces, where there is one.

    Args:
        module: counts from zero.
        observation_space: of one environment, as that one has it.
        action_space: likewise.

    Raises:
        ConfigError: if a part of the observation that has a start is no input.
    """
    seen = module.policy.observation_space
    observation: Any = _starts(observation_space)
    if mask_in_info(seen, observation_space):
        observation = {"obs": observation}
    elif _has_skill(seen) and not hasattr(observation, "keys"):
        observation = {PLAIN_WITH_SKILL: observation}
    if has_previous(seen) and not isinstance(without_previous(seen), spaces.Dict):
        observation = {PLAIN: observation}
    found = [
        {name: start for name, start in leaves(tree) if np.any(start)}
        for tree in (observation, _starts(action_space))
    ]
    given = {name for name, _ in leaves(module.example_inputs()[0])}
    if lost := sorted(found[0].keys() - given):
        raise ConfigError(
            f"this policy cannot be exported in its environment's own numbers: it has no input "
            f"{shown(lost[0])}, which counts from another start than 0. Give the space no start, "
            "or export policy.export_module(), which counts from 0."
        )
    return InOwnNumbers(module, *found) if any(found) else module


def _has_skill(seen: Any) -> bool:
    space = without_previous(seen)
    return isinstance(space, spaces.Dict) and SKILL in space.spaces


def _starts(space: Space[Any]) -> Any:
    """The `start` of each leaf, in the structure in which values are carried."""
    if isinstance(space, spaces.Dict):
        return {str(key): _starts(sub) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(n): _starts(sub) for n, sub in enumerate(space.spaces)}
    return offset_of(space)


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
