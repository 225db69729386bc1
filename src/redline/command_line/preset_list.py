"""`redline presets ALGORITHM`: named hyperparameters, what each sets, and where that is from."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from redline.algos.presets import SOURCES
from redline.algos.registry import algorithm_names, declaration
from redline.errors import ConfigError
from redline.train.presets import FAMILIES, KINDS, PARENTS

_USAGE = "usage: redline presets ALGORITHM [PRESET]\n"


def list_presets(arguments: list[str]) -> int:
    """Print the presets of an algorithm, or one of them.

    Raises:
        ConfigError: if there is no such algorithm or preset.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        sys.stdout.write(
            f"{_USAGE}\nWhat each preset sets. Without --preset, a run takes the one of its "
            f"environment.\nalgorithms: {', '.join(algorithm_names())}\n"
        )
        return 0 if arguments else 2
    if len(arguments) > 2:
        raise ConfigError(f"redline presets takes an algorithm and a preset, not {arguments}.")
    said = declaration(arguments[0], for_help=True)
    known = {**said.presets, **said.variants}
    wanted = list(known)
    if len(arguments) == 2:
        if arguments[1] not in known:
            raise ConfigError(
                f"{said.name} has no preset {arguments[1]!r}. Choose one of: {', '.join(known)}."
            )
        wanted = [arguments[1]]
    if not wanted:
        sys.stdout.write(f"{said.name} has no presets\n")
    # A class of one's own may have the name of a built-in algorithm, and presets of its own.
    sources = SOURCES.get(said.name, {}) if said.label == said.name else {}
    for name in wanted:
        variant = name in said.variants
        kind = "on top of the environment's preset" if variant else _where(name, said.presets)
        sys.stdout.write(f"{name}{f' ({kind})' if kind else ''}\n{_settings(known[name])}\n")
        if name in sources:
            sys.stdout.write(f"{_filled(f'from: {sources[name]}')}\n")
    return 0


def _where(name: str, known: Mapping[str, Any]) -> str:
    """Environments for which a preset is taken by itself.

    Args:
        name: of the preset.
        known: all presets of the algorithm; families without one take their parent's.
    """
    families = {name, *(each for each, parent in PARENTS.items() if parent == name)}
    families -= known.keys() - {name}
    plain = _ids(families)
    for argument, (without, with_it) in KINDS.items():
        if with_it in families and without not in families:
            plain += [f"{each} with {argument}=true" for each in _ids({without})]
    return f"taken for {', '.join(plain)}" if plain else ""


def _ids(families: set[str]) -> list[str]:
    """The patterns of families, as people write ids."""
    return [
        pattern.replace("^", "").replace("$", "").replace(r"-v\d", "").replace("(redline/)?", "")
        for pattern, family in FAMILIES
        if family in families
    ]


def _settings(settings: Mapping[str, Any]) -> str:
    words = [f"{name}={_value(value)}" for name, value in settings.items()]
    return _filled("  ".join(words) or "the plain defaults")


def _filled(text: str) -> str:
    return textwrap.fill(
        text, 96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
