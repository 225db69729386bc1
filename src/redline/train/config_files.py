"""Settings from files: YAML, TOML or JSON becomes a checked `RunConfig`.

Two forms are read:

| form | example | what it says |
|---|---|---|
| sparse | `algorithm: ppo`, `env: CartPole-v1`, `learning_rate: 0.001` | changes of a preset |
| complete | `config.json` of a run, or what `--print-config` prints | every setting |

A sparse file's settings have the flat names of the command line, with `_`; they may also stand in
sections `run`, `policy` and `algo`, as in `config.json`. `redline train`, `redline.train` and
sweeps all read files here.

A complete file says what a run was, so it does not decide what Python code is imported, as a run
directory never does: who runs it names such parts again. Settings that reach outside the run
directory (`runs.outside_settings`) are to be given again as well. Nor does it say where the new run
lies: `out`, `name`, `group` and `tags` are left to the caller, who repeats a run elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from redline.algos.registry import algorithm_label, declaration
from redline.errors import ConfigError
from redline.plain_files import CONFIG_LIMIT, read_plain
from redline.plain_text import shortened, shown
from redline.registry import PYTHON_ONLY, is_named
from redline.train.presets import preset_config
from redline.train.runs.outside_settings import (
    OUTSIDE,
    require_confirmed,
    require_confirmed_source,
)
from redline.train.setting_names import unknown_setting
from redline.train.setting_values import kinds_in, types_of
from redline.train.settings import RunConfig

if TYPE_CHECKING:
    from redline.algos.algorithm import Algorithm

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
SECTIONS = ("run", "policy", "algo")
BESIDE = ("format_version", "algorithm", "engine", "build", "changed", "sha256")
"""What a complete file holds beside its sections."""
OF_ONE_RUN = ("out", "name", "group", "tags")
"""Settings that a complete file does not hand on."""
CODE = ("env", "env_backend", "collector", "network", "callbacks")
"""Settings that may be `module:Name`."""

_MOST_DOTS = 64  # in one key; settings have a section and a name
_TOML_WORD = re.compile(r"""[\w-]+|"[^"\n]*"|'[^'\n]*'|\.|[ \t]+|[^\w]""")
_EXPONENT = re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$")
_NONE = re.compile(r"^None$")  # as help and the command line write it


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSettings:
    """What a file, a mapping or a config says of a run, not yet a config.

    Attributes:
        source: what messages call it; "": nothing, the caller's own words.
        algorithm: its name or module:Name; None where it is left to the caller.
        preset: the name that it begins with; None where it is left to the caller.
        settings: flat name -> value.
        complete: every setting, by a run's `config.json`; None for a sparse one.
    """

    source: str = ""
    algorithm: str | None = None
    preset: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    complete: Mapping[str, Any] | None = None


def read_mapping(path: str | Path) -> dict[str, Any]:
    """The mapping in a file.

    Args:
        path: its suffix says what it is: .yaml, .yml, .toml or .json.

    Raises:
        ConfigError: if it cannot be read, or holds no mapping with words as keys.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"{path} is no file of settings: its name ends with none of {', '.join(SUFFIXES)}. "
            f"Rename it, or give another one."
        )
    try:
        # The caller names it, so it may be a link; `resolve` says where it leads.
        text = read_plain(path.resolve(), CONFIG_LIMIT).decode("utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise ConfigError(
            f"{path} cannot be read ({shortened(reason)}). Give a file of settings."
        ) from error
    try:
        data = _parsed(text, suffix)
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid {suffix[1:].upper()}: {shortened(error, 400)}"
        ) from error
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ConfigError(
            f"{path} must hold settings by their names, such as env: CartPole-v1, and holds "
            f"{'nothing' if data is None else f'a {type(data).__name__}'}."
        )
    return data


def value_of(text: str, kind: Any = None) -> Any:
    """One value as YAML has it: 1e-4 is a number, true a truth, anything else a word.

    None is written as elsewhere on the command line.

    Args:
        text: as it was given.
        kind: type of the setting; one of words takes 3 and 2024-01-01 as they stand.
    """
    if text == "None":
        return None
    try:
        value = _from_yaml(text)
    except ValueError:
        return text
    is_word = str in kinds_in(kind) and not isinstance(value, (str, list, dict, type(None)))
    return text if is_word else value


def given_settings(source: str | Path | RunConfig | Mapping[str, Any]) -> GivenSettings:
    """What a file, a mapping or a config says of a run.

    Args:
        source: path of a file; or what such a file holds; or a config, which is complete.

    Raises:
        ConfigError: if it cannot be read, or its form is neither of the two.
    """
    if isinstance(source, RunConfig):
        return GivenSettings(source="config", algorithm=source.algorithm, complete=source.to_json())
    if not isinstance(source, (str, Path, Mapping)):
        raise ConfigError(
            f"config={source!r} is of type {type(source).__name__}. Give a file, what such a file "
            f"holds, or a RunConfig."
        )
    data = read_mapping(source) if isinstance(source, (str, Path)) else dict(source)
    name = str(source) if isinstance(source, (str, Path)) else "config"
    if "format_version" in data:
        return GivenSettings(source=name, algorithm=data.get("algorithm"), complete=data)
    settings = _flat(data, name)
    algorithm, preset = settings.pop("algorithm", None), settings.pop("preset", None)
    for word, value in (("algorithm", algorithm), ("preset", preset)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name}: {word}={shown(value)} is not a name. Give one.")
    return GivenSettings(source=name, algorithm=algorithm, preset=preset, settings=settings)


def config_of(
    given: GivenSettings,
    *,
    algorithm: str | type[Algorithm] | None = None,
    preset: str | None = None,
    for_help: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
    **overrides: Any,
) -> RunConfig:
    """The config that given settings and the caller's own make; the caller's win.

    Args:
        given: see `given_settings`.
        algorithm: the caller's; None: the given one.
        preset: likewise.
        for_help: whether a built-in algorithm's outline will do, which needs no torch.
        options: what the caller lays over the config later: a preset's values that follow
            it are left out.
        **overrides: further settings of the caller's, by their flat names.

    Raises:
        ConfigError: naming every setting that is wrong.
    """
    chosen = algorithm if algorithm is not None else given.algorithm
    if chosen is None:
        raise ConfigError(
            f"{given.source} names no algorithm. Give one, such as algorithm: ppo in the file."
        )
    if given.complete is not None:
        return _complete_config(given, algorithm, preset, overrides, for_help=for_help)
    said = declaration(chosen, for_help=for_help)
    settings = {**given.settings, **overrides}
    begin = preset or given.preset or "auto"
    config = preset_config(said, str(settings.get("env") or ""), begin, {**settings, **options})
    if mistakes := config.mistakes(settings):
        raise ConfigError(_listed(given.source, mistakes))
    return config.replace(**settings)


def setting_mistakes(algorithm: str, settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with the settings of a run, one sentence each; an empty list if nothing.

    Args:
        algorithm: its name, or module:Name.
        settings: flat name -> value; `preset` may be among them.
    """
    try:
        given = given_settings({"algorithm": algorithm, **settings})
        said = declaration(algorithm)
        env, preset = str(given.settings.get("env") or ""), given.preset or "auto"
        config = preset_config(said, env, preset, given.settings)
    except ConfigError as error:
        return [str(error)]
    return config.mistakes(given.settings)


def _complete_config(
    given: GivenSettings,
    algorithm: str | type[Algorithm] | None,
    preset: str | None,
    overrides: Mapping[str, Any],
    *,
    for_help: bool,
) -> RunConfig:
    if preset is not None:
        raise ConfigError(
            f"{given.source} holds every setting of a run, so preset={preset!r} would change "
            f"none. Leave one of them out."
        )
    if algorithm is not None and algorithm_label(algorithm) != given.algorithm:
        raise ConfigError(
            f"{given.source} holds the settings of {given.algorithm}, not of "
            f"{algorithm_label(algorithm)}. Leave the algorithm out, or give another file."
        )
    config = _repeated(given, algorithm, for_help=for_help)
    for name in CODE:
        for label in labels_of(getattr(config.run, name, None)):
            if name not in overrides and not is_named(label):
                raise ConfigError(_names_code(given.source, name, label))
    if mistakes := config.mistakes(overrides):
        raise ConfigError(_listed(given.source, mistakes))
    changed = config.replace(**overrides)
    if given.source != "config":  # a file, which may be a stranger's; not the caller's own object
        said = {n: getattr(changed.run, n) for n in OUTSIDE if n in overrides}
        require_confirmed(changed, said)
        for name in ("data", "init_from"):
            require_confirmed_source(changed, name, said.get(name))
    return changed


def repeated_config(
    given: GivenSettings, algorithm: str | type[Algorithm] | None = None
) -> RunConfig | None:
    """What a complete file says, for a run in another place; None for a sparse one.

    Args:
        given: see `given_settings`.
        algorithm: its class or place, where the file names one of a user's own.
    """
    return None if given.complete is None else _repeated(given, algorithm, for_help=False)


def _repeated(
    given: GivenSettings, algorithm: str | type[Algorithm] | None, *, for_help: bool
) -> RunConfig:
    data = given.complete or {}
    config = RunConfig.from_json(data, algorithm, for_help=for_help)
    if mistakes := _in_no_section(data, config):
        raise ConfigError(_listed(given.source, mistakes))
    plain = {f.name: f.default for f in dataclasses.fields(config.run) if f.name in OF_ONE_RUN}
    return config.replace(**plain)


def _in_no_section(data: Mapping[str, Any], config: RunConfig) -> list[str]:
    """What a complete file would say to no effect, or leaves out; one sentence each."""
    leave = "Leave format_version out of a file that holds changes alone"
    found = [
        f"it has a format_version, so it holds every setting, but not the section {name}. "
        f"Add the section. {leave}."
        for name in SECTIONS
        if name not in data
    ]
    sections = {n: s for s in SECTIONS for n in types_of(type(getattr(config, s)))}
    for name in data:
        if name in sections:
            found.append(
                f"{name} stands outside the sections, where a file with a format_version has no "
                f"settings. Write it into the section {sections[name]}. {leave}."
            )
        elif name not in (*SECTIONS, *BESIDE):
            found.append(unknown_setting(name, config.algorithm, sections))
    return found


def labels_of(value: Any) -> tuple[str, ...]:
    """The words of a setting that holds one or several."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def _names_code(source: str, name: str, label: str) -> str:
    option = "callback" if name == "callbacks" else name
    again = f"name it again: --{option.replace('_', '-')} {shortened(label)}"
    if label.startswith(PYTHON_ONLY):
        again = f"call redline.train(config=..., {name}=...) with the same object"
    return (
        f"the {option.replace('_', ' ')} in {source}, {shown(label, 200)}, is Python code, and a "
        f"run's config.json alone must not decide what is imported. If you trust it, {again}."
    )


def _listed(source: str, mistakes: list[str]) -> str:
    where = f"{source}: " if source else ""
    if len(mistakes) == 1:
        return f"{where}{mistakes[0]}"
    lines = "".join(f"\n  {each}" for each in mistakes)
    return f"{where}{len(mistakes)} settings are wrong:{lines}"


def _flat(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Settings by their flat names; sections are opened."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        inside = value if name in SECTIONS else {name: value}
        if not isinstance(inside, Mapping):
            raise ConfigError(
                f"{source}: {name} must hold settings by their names, and is {shown(value)}."
            )
        for each, setting in inside.items():
            if not isinstance(each, str):
                raise ConfigError(
                    f"{source}: {shown(each)} in {name} is no name of a setting. Write a word."
                )
            if each in flat:
                raise ConfigError(
                    f"{source}: {shortened(each)} is set twice. Leave one of them out."
                )
            flat[each] = setting
    return flat


def _parsed(text: str, suffix: str) -> Any:
    """What the text says.

    Raises:
        ValueError: with the place where it goes wrong.
    """
    if suffix == ".toml":
        _refuse_deep_keys(text)
    parse = {".json": _from_json, ".toml": tomllib.loads}.get(suffix, _from_yaml)
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("it is nested too deep for a file of settings") from None


def _from_json(text: str) -> Any:
    """JSON, but a name that stands twice is refused."""
    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{shown(twice)} stands twice in one object. Leave one of them out")
    return found


def _refuse_deep_keys(text: str) -> None:
    """Refuse TOML whose keys have thousands of dots: the parser takes their square in memory.

    Raises:
        ValueError: if there is such a key.
    """
    dots, last = 0, ""
    for match in _TOML_WORD.finditer(text):
        word = match[0]
        if word.isspace() and word != "\n":
            continue
        if word == "." and last not in (".", ""):
            dots += 1
            if dots > _MOST_DOTS:
                line = text.count("\n", 0, match.start()) + 1
                raise ValueError(f"a key in line {line} has more than {_MOST_DOTS} dots")
        elif last != ".":
            dots = 0
        last = word if word == "." or word[0].isalnum() or word[0] in "_-\"'" else ""


def _from_yaml(text: str) -> Any:
    """YAML, but 1e5 is a number, as in YAML 1.2; names that stand twice and aliases are refused.

    Aliases of aliases make millions of values out of a few lines.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Loads plain data only."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                raise ValueError(
                    f"line {event.start_mark.line + 1} has the alias *{event.anchor}, and a file "
                    f"of settings may have none. Write the value itself."
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = [key for key in keys if isinstance(key, str) and keys.count(key) > 1]
            if twice:
                line = node.start_mark.line + 1
                raise ValueError(
                    f"{shown(twice[0])} stands twice in the mapping from line {line} on"
                )
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:null", _NONE, ["N"])
    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise ValueError("it is nested too deep for settings") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
