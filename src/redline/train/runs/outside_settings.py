"""Settings of a run directory that reach outside it: named, and done only if the caller confirms.

A run directory may be a stranger's. Most of its settings only decide how to learn. These do more:

| setting | what it does |
|---|---|
| `wandb` | sends settings, metrics and the machine's description to a server |
| `accelerate` with `compile` | runs a C++ or Triton compiler and writes its cache |
| `env_kwargs` with a path, a file or an address | makes the environment open it |
| `data`, `init_from` | open a file or folder; asked for when that is about to happen |

As with the name of an environment in a module, a run directory alone must not decide them. Whoever
resumes or loads the run says them again, with the same value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from redline.errors import ConfigError
from redline.plain_text import printable, shortened, shown
from redline.registry import PYTHON_ONLY
from redline.train.settings import RunConfig

OUTSIDE = ("wandb", "accelerate", "env_kwargs", "data", "init_from")
"""Settings that may reach outside."""
_PLACE = re.compile(r"[/\\:~]|\.[A-Za-z]\w{0,5}$")  # a separator, an address, or a file's suffix
_NAMES = re.compile(r"(^|_)(file|path|dir|directory|folder|url|uri|host|xml|module|rom)s?($|_)")
_LONGEST = 1000  # characters of a value that is to be confirmed; it has to be given whole


def require_confirmed(config: RunConfig, confirmed: Mapping[str, Any]) -> None:
    """Refuse settings that reach outside the run directory unless the caller says them, too.

    Args:
        config: from the run directory.
        confirmed: name -> value as the caller gave it; None: not given.

    Raises:
        ConfigError: naming the first setting and how to confirm it, or that differs.
    """
    for name in ("wandb", "accelerate"):
        value, what = outside_values(config)[name]
        _require(name, value, confirmed.get(name), what)
    require_confirmed_env_kwargs(config, confirmed.get("env_kwargs"))


def require_confirmed_source(config: RunConfig, name: str, confirmed: str | None) -> None:
    """Refuse to open a file or folder that a run directory names unless the caller says it, too.

    Args:
        config: from the run directory.
        name: `data` or `init_from`.
        confirmed: as the caller gave it; None: not given.

    Raises:
        ConfigError: naming the file or folder and how to confirm it, or that they differ.
    """
    value, what = outside_values(config)[name]
    _require(name, value, confirmed, what)


def outside_values(config: RunConfig) -> dict[str, tuple[Any, str]]:
    """Each setting that may reach outside: its value, and what it does there; "": nothing."""
    run = config.run
    kwargs = run.parsed_env_kwargs()
    place = next(_places(kwargs, ""), None)
    recorded = run.data is not None and not run.data.startswith(PYTHON_ONLY)
    return {
        "wandb": (run.wandb, "sends settings and metrics to a server" if run.wandb else ""),
        "accelerate": (run.accelerate, "runs a compiler" if "compile" in run.accelerate else ""),
        "env_kwargs": (kwargs, f"makes the environment open {place}" if place else ""),
        "data": (run.data, "opens a file or folder" if recorded else ""),
        "init_from": (run.init_from, "" if run.init_from is None else "opens a folder"),
    }


def require_confirmed_env_kwargs(config: RunConfig, confirmed: str | None) -> None:
    """Refuse arguments of the environment that name files unless the caller says them, too.

    Args:
        config: from the run directory.
        confirmed: JSON as the caller gave it; None: not given.

    Raises:
        ConfigError: naming the argument and how to confirm it, or that they differ.
    """
    present, what = outside_values(config)["env_kwargs"]
    given = None if confirmed is None else _parsed(confirmed)
    _require("env_kwargs", present, given, what)


def _require(name: str, present: Any, given: Any, what: str) -> None:
    if given is not None and given != present:
        raise ConfigError(
            f"{name}={_shown(given)} is not what the run was begun with, {_shown(present)}: it "
            f"would not be the same run. Leave {name} out, or give the same."
        )
    if not what or given is not None:
        return
    option = f"--{name.replace('_', '-')}"
    value = "" if present is True else f" '{_shown(present)}'"
    raise ConfigError(
        f"{name}={_shown(present)} of this run {what}, and a run directory alone must not decide "
        f"that. If you trust it, confirm it: {option}{value}"
    )


def _places(value: Any, name: str) -> Iterator[str]:
    """name=value of each argument that may name a file, a directory, a module or an address."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _places(item, name)
    elif isinstance(value, str) and value and (_PLACE.search(value) or _NAMES.search(name)):
        yield f"{shortened(name)}={shown(value, 200)}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"env_kwargs={shown(text, 200)} is not JSON ({error}). Give an object."
        ) from error


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
