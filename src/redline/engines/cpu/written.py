"""Whether the written update is still the one that the kernels were written for.

The kernels compute what functions and classes elsewhere say (`MIRRORED`). Whoever changes one of
those, in its file or at run time, means the change to run. So each has a fingerprint here: of its
source, without docstrings, comments and layout. Where one differs, the kernels serve nothing that
depends on it.

After a change that the kernels follow, write the table anew:

    python -m redline.engines.cpu.written
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from redline.engines.cpu.fingerprints import FINGERPRINTS

_OPTIMIZERS = (
    "redline.algos.optimizers:Adam",
    "redline.algos.optimizers:RMSprop",
)
_ON_POLICY = (
    *_OPTIMIZERS,
    "redline.algos.algorithm:clip_gradients",
    "redline.algos.algorithm:normalized",
    "redline.data.rollout:masked_mean",
    "redline.data.rollout:masked_mean_std",
)
_INPUTS = (
    "redline.models.observation_encoder:FlatLeaf",
    "redline.models.observation_encoder:ObservationEncoder",
    "redline.policies.normalizer:ObservationNormalizer",
    "redline.policies.normalizer:RunningMoments",
)
_ACTOR_CRITIC = (
    *_INPUTS,
    "redline.policies.actor_critic:ActorCritic",
    "redline.policies.action_heads:CategoricalHead",
    "redline.policies.action_heads:GaussianHead",
    "redline.policies.distributions:Categorical",
    "redline.policies.distributions:Gaussian",
)
_CRITICS = (
    *_INPUTS,
    *_OPTIMIZERS,
    "redline.algos.optimizers:move_towards",
    "redline.algos.critics:Critic",
    "redline.algos.critics:bootstrapped",
    "redline.algos.critics:critic_loss",
    "redline.models.ensemble:EnsembleMLP",
)
_BOX_ACTOR = (
    *_INPUTS,
    "redline.policies.actors:Actor",
    "redline.policies.actors:BoxActor",
    "redline.policies.actors:BoxBounds",
)
_SQUASHED = (
    *_BOX_ACTOR,
    "redline.policies.actors:SquashedGaussianActor",
    "redline.policies.actors:squashed_log_prob",
    "redline.policies.distributions:Gaussian",
    "redline.policies.distributions:log_tanh_slope",
)
_DETERMINISTIC = (*_BOX_ACTOR, "redline.policies.actors:DeterministicActor")
_VALUES = (
    *_INPUTS,
    "redline.policies.q_policy:ActionValues",
    "redline.policies.q_policy:QPolicy",
    "redline.policies.q_policy:at_action",
    "redline.models.q_heads:QHead",
    "redline.models.q_heads:ScalarHead",
    "redline.models.q_heads:Stream",
)
_PPO = (
    *_ON_POLICY,
    *_ACTOR_CRITIC,
    "redline.algos.ppo:PPO",
    "redline.algos.ppo:approximate_kl",
    "redline.algos.ppo:clipped_policy_loss",
    "redline.algos.ppo:value_loss",
    "redline.data.rollout:Rollout",
)
_A2C = (
    *_ON_POLICY,
    *_ACTOR_CRITIC,
    "redline.algos.a2c:A2C",
    "redline.algos.a2c:policy_gradient_loss",
)
_TD3 = (*_CRITICS, *_DETERMINISTIC, "redline.algos.ddpg:actor_loss")

MIRRORED: dict[str, tuple[str, ...]] = {
    "PPO": _PPO,
    "APPO": (*_PPO, "redline.algos.appo:APPO"),
    "A2C": _A2C,
    "Impala": (*_A2C, "redline.algos.impala:Impala"),
    "Reinforce": (*_A2C, "redline.algos.reinforce:Reinforce"),
    "SAC": (
        *_CRITICS,
        *_SQUASHED,
        "redline.algos.sac:SAC",
        "redline.algos.sac:actor_loss",
        "redline.algos.sac:temperature_loss",
    ),
    "TD3": (*_TD3, "redline.algos.td3:TD3", "redline.algos.td3:smoothed"),
    "DDPG": (*_TD3, "redline.algos.ddpg:DDPG"),
    "DQN": (
        *_VALUES,
        *_OPTIMIZERS,
        "redline.algos.algorithm:clip_gradients",
        "redline.algos.optimizers:move_towards",
        "redline.algos.dqn:DQN",
        "redline.algos.q_learning:TargetNetwork",
        "redline.algos.q_learning:huber_loss",
    ),
    "ActorCritic": _ACTOR_CRITIC,
    "QPolicy": _VALUES,
    "SquashedGaussianActor": _SQUASHED,
    "DeterministicActor": _DETERMINISTIC,
    "images": (
        *_INPUTS,
        "redline.models.convolution:NatureCNN",
        "redline.models.convolution:ScaledConv2d",
        "redline.models.convolution:Pixels",
    ),
}
"""Class of an algorithm or policy -> module:Name of what its kernels stand for."""

# Methods that no kernel stands for: they are called as they are written.
_CALLED = frozenset(
    (
        "__init__", "make", "make_policy", "conditioning", "state_dict", "load_state_dict",
        "initial_priorities", "set_hyperparameters", "optimizer_steps", "export_module",
        "initial_state", "draw_noise", "noise_from_uniform", "update_normalizer", "env_action",
        "value", "_critic_settings", "_modules", "_optimizers",
    )
)  # fmt: skip
# What a class says of itself (`algos.algorithm.Algorithm`).
_DECLARED = frozenset(
    ("name", "defaults", "presets", "variants", "variant_presets", "metric_names")
)


def change_in(kind: str) -> str | None:
    """The first thing that is not as the kernels of `kind` know it; None: all is.

    Args:
        kind: a key of `MIRRORED`.
    """
    places = MIRRORED[kind]
    for place in places:
        module, name = _split(place)
        path = f"{module.__name__.replace('.', '/')}.py:{name}"
        try:
            if _fingerprint(place) != FINGERPRINTS.get(place):
                return f"{path} is not what the kernels were written for"
            if _is_replaced(module, name):
                return f"{path} was replaced while the program runs"
        except (OSError, SyntaxError, StopIteration):
            return f"{path} cannot be read, to be compared with what the kernels were written for"
    return _shadowed(places)


def _split(place: str) -> tuple[ModuleType, str]:
    module, _, name = place.partition(":")
    return import_module(module), name


@functools.cache
def _definitions(module: str) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """Name -> the definition of each class and function of a module."""
    tree = ast.parse(Path(inspect.getfile(import_module(module))).read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name: node for node in tree.body if isinstance(node, kinds)}


def _definition(place: str) -> ast.ClassDef | ast.FunctionDef:
    module, _, name = place.partition(":")
    return next(node for known, node in _definitions(module).items() if known == name)


@functools.cache
def _fingerprint(place: str) -> str:
    return hashlib.sha256(repr(_structure(_definition(place))).encode()).hexdigest()[:16]


def _structure(node: Any) -> Any:
    """What a piece of code says, as plain lists that are the same in every version of Python."""
    if isinstance(node, list):
        return [_structure(part) for part in node if not _is_left_out(part)]
    if not isinstance(node, ast.AST):
        return repr(node)
    # Later versions have more fields, which are empty where an earlier one can say the same.
    fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
    return [type(node).__name__, *([name, _structure(value)] for name, value in fields)]


def _is_left_out(node: Any) -> bool:
    """Whether it is a text that stands by itself, or something that no kernel stands for."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) in _DECLARED
    return isinstance(node, ast.FunctionDef) and node.name in _CALLED


def _is_replaced(module: ModuleType, name: str) -> bool:
    """Whether what the name stands for now is not what the file says."""
    node, live = _definition(f"{module.__name__}:{name}"), vars(module)[name]
    if isinstance(node, ast.FunctionDef):
        return not _is_from(live, node, module)
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    if not isinstance(live, type):
        return True
    for name, value in vars(live).items():
        # One that the class only inherits may have been set on it.
        if name not in methods and not _is_of_python(_file_of(value)):
            return True
    return any(
        not _is_from(vars(live).get(name), part, module)
        for name, part in methods.items()
        if name not in _CALLED
    )


def _is_from(live: Any, node: ast.FunctionDef, module: ModuleType) -> bool:
    """Whether a function was made by this definition, with the decorators that it has."""
    found = _function(live)
    while node.decorator_list and hasattr(found, "__wrapped__") and _is_of_torch(found):
        found = found.__wrapped__
    if not isinstance(found, FunctionType) or hasattr(found, "__wrapped__"):
        return False
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return found.__code__.co_filename == module.__file__ and found.__code__.co_firstlineno == first


def _function(live: Any) -> Any:
    """The function in a static method, class method or property."""
    if isinstance(live, (staticmethod, classmethod)):
        return live.__func__
    return live.fget if isinstance(live, property) else live


def _file_of(live: Any) -> str:
    """Where a function's code stands; "" if it is none."""
    found = _function(live)
    return found.__code__.co_filename if isinstance(found, FunctionType) else ""


def _is_of_python(file: str) -> bool:
    """Whether it is no function's file, or one that dataclasses and named tuples add to a class."""
    path, library = Path(file), Path(ast.__file__).parent
    return file in ("", "<string>") or (
        path.is_relative_to(library) and "site-packages" not in path.parts
    )


def _is_of_torch(wrapper: Any) -> bool:
    return Path(_file_of(wrapper)).is_relative_to(Path(torch.__file__).parent)


def _shadowed(places: Iterable[str]) -> str | None:
    """A module that has something else under the name of what it should have imported."""
    known = {name: vars(module)[name] for module, name in map(_split, places)}
    for module in {_split(place)[0] for place in places}:
        for name, wanted in known.items():
            if vars(module).get(name, wanted) is not wanted:
                return f"{name} was replaced in {module.__name__} while the program runs"
    return None


def main() -> None:
    """Write the table for the code as it is now."""
    places = sorted({place for each in MIRRORED.values() for place in each})
    rows = "".join(f'    "{place}": "{_fingerprint(place)}",\n' for place in places)
    text = (
        '"""Fingerprints of what the kernels stand for; written by `written.py`."""\n\n'
        f"FINGERPRINTS: dict[str, str] = {{\n{rows}}}\n"
    )
    Path(__file__).with_name("fingerprints.py").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
