"""Which algorithms there are; how one is found, `redline.registry` says.

Help for an algorithm must not wait for torch. A config stands in the file of its algorithm, which
needs torch, so help reads the file's outline: the parts of its source that make up the config are
executed, and nothing else (`outline`). Everything but help imports the file itself.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.errors import UnknownNameError
from redline.registry import Registry

if TYPE_CHECKING:
    from redline.algos.algorithm import Algorithm

BUILT_IN: dict[str, str] = {
    "ppo": "redline.algos.ppo:PPO",
    "a2c": "redline.algos.a2c:A2C",
    "reinforce": "redline.algos.reinforce:Reinforce",
    "impala": "redline.algos.impala:Impala",
    "appo": "redline.algos.appo:APPO",
    "dqn": "redline.algos.dqn:DQN",
    "r2d1": "redline.algos.r2d1:R2D1",
    "ddpg": "redline.algos.ddpg:DDPG",
    "td3": "redline.algos.td3:TD3",
    "sac": "redline.algos.sac:SAC",
    "tqc": "redline.algos.tqc:TQC",
    "crossq": "redline.algos.crossq:CrossQ",
    "diayn": "redline.algos.diayn:DIAYN",
    "bc": "redline.algos.bc:BC",
}
"""Name -> where the class stands. What an algorithm is stands in its own file alone."""

_LIGHT = ("redline.errors", "redline.algos.config", "redline.algos.presets")


@dataclass(frozen=True)
class Declaration:
    """What an algorithm's class says of itself, as `algos.algorithm.Algorithm` explains.

    Attributes:
        label: what `config.json` calls it: its name, or where it stands.
    """

    label: str
    name: str
    Config: type
    defaults: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]
    variant_presets: Mapping[tuple[str, str], Mapping[str, Any]]


def declaration(algorithm: str | type[Algorithm], *, for_help: bool = False) -> Declaration:
    """What an algorithm says of itself.

    Args:
        algorithm: as for `find_algorithm`.
        for_help: whether the outline of a built-in algorithm will do, which needs no torch. Its
            config looks like the real one and is another class.

    Raises:
        UnknownNameError: if there is no such algorithm.
    """
    if for_help and isinstance(algorithm, str) and algorithm in BUILT_IN:
        return _outlined(algorithm)
    cls = find_algorithm(algorithm)
    return Declaration(
        algorithm_label(algorithm),
        cls.name,
        cls.Config,
        cls.defaults,
        cls.presets,
        cls.variants,
        cls.variant_presets,
    )


def _checked(found: Any, given: str) -> type[Algorithm]:
    from redline.algos.algorithm import OffPolicyAlgorithm, OnPolicyAlgorithm

    kinds = (OnPolicyAlgorithm, OffPolicyAlgorithm)
    if not (isinstance(found, type) and issubclass(found, kinds)):
        raise UnknownNameError(
            f"{given} is no algorithm: it derives from neither OnPolicyAlgorithm nor "
            f"OffPolicyAlgorithm of redline.algos.algorithm. Derive it from one of them, or from "
            f"an algorithm such as redline.algos.ppo.PPO."
        )
    missing = [name for name in ("name", "Config") if not hasattr(found, name)]
    if missing:
        raise UnknownNameError(
            f"{given} has no {' and no '.join(missing)}. Set it in the class, such as "
            f"name = 'mine' and Config = MyConfig."
        )
    if inspect.isabstract(found):
        methods = ", ".join(sorted(found.__abstractmethods__))
        raise UnknownNameError(f"{given} is not complete: it lacks {methods}. Define these.")
    return found


_REGISTRY: Registry[Algorithm] = Registry("algorithm", BUILT_IN, "redline.algorithms", _checked)
algorithm_names, find_algorithm, algorithm_label = _REGISTRY.names, _REGISTRY.find, _REGISTRY.label


# -- outlines ---------------------------------------------------------------------------------


def _outlined(name: str) -> Declaration:
    module, _, class_name = BUILT_IN[name].partition(":")
    space, tree = outline(module)
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    said: dict[str, Any] = {
        "defaults": {},
        "presets": {},
        "variants": {},
        "variant_presets": {},
    }
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if target in Declaration.__dataclass_fields__:
                said[target] = eval(_expression(node.value), vars(space))
    return Declaration(label=name, **said)


def outline(module: str) -> tuple[types.ModuleType, ast.Module]:
    """The light part of a module of this package: constants and configs, without torch.

    Executed are its imports of light modules, its constants in capitals, and its dataclasses; a
    config that it imports from another algorithm's file comes from that one's outline.

    Args:
        module: its dotted name.

    Returns:
        A module of its own, and the syntax tree of the whole file.
    """
    name = f"{module}(outline)"
    spec = importlib.util.find_spec(module)
    path = Path(spec.origin)  # type: ignore[union-attr, arg-type]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if name in sys.modules:
        return sys.modules[name], tree
    space = types.ModuleType(name)
    # What dataclasses and tyro look up: names by the module, help in the source.
    space.__file__ = str(path)
    sys.modules[name] = space
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and not _is_light(node):
            _borrow(node, space)
        elif _is_light(node):
            kept.append(node)
    exec(compile(ast.Module(kept, []), str(path), "exec"), vars(space))
    return space, tree


def _is_light(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        root = (node.module or "").partition(".")[0]
        places = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        return root in sys.stdlib_module_names or any(place in _LIGHT for place in places)
    if isinstance(node, ast.Import):
        return all(alias.name in sys.stdlib_module_names for alias in node.names)
    if isinstance(node, ast.ClassDef):
        return any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    return False


def _borrow(node: ast.ImportFrom, space: types.ModuleType) -> None:
    """Configs that stand in another algorithm's file."""
    wanted = [a.name for a in node.names if a.name.endswith("Config")]
    if wanted and (node.module or "").startswith("redline.algos."):
        other, _ = outline(node.module)  # type: ignore[arg-type]
        vars(space).update({name: getattr(other, name) for name in wanted})


def _expression(node: ast.expr) -> types.CodeType:
    return compile(ast.Expression(node), "<declaration>", "eval")
