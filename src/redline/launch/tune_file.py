"""The file that describes a search, as plain data, and what its folder keeps of it.

```yaml
algorithm: ppo
base: {env: CartPole-v1, total_env_steps: 20000}
search:
  learning_rate: {low: 0.00001, high: 0.01, log: true}   # a range
  gamma: [0.95, 0.99]                                     # choices
trials: 10
```

`tune.json` in the folder holds what the search goes on with: the file's content, with the number of
trials and the launcher's options that were in force, and the study's name if it lies in another
database, which may hold many. Its address is not kept, since it may hold a password.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redline.errors import SweepStateError
from redline.launch.checking import (
    checked_settings,
    search_mistakes,
    seed_mistakes,
    starting_config,
    value_of,
)
from redline.launch.search_spaces import SearchSpace, default_space, space_from, updates_kept
from redline.launch.sweep_file import refuse, unknown_keys
from redline.launch.variants import Variant
from redline.plain_text import shown
from redline.train.checkpoint.atomic_files import atomic_file
from redline.train.config_files import given_settings, read_mapping

KEYS = ("algorithm", "base", "search", "trials", "pruner", "sampler", "seed", "score", "launch")
PRUNERS = ("median", "hyperband", "none")
SAMPLERS = ("tpe", "random")
PLAN = "tune.json"

STUDY = "redline"
"""Name of a study in its folder, and of those that earlier versions began in another database."""

_STUDY_IS = "study"  # in tune.json: its name, where it is not in the folder
_OF_EARLIER = "elsewhere"  # in place of it, from versions that called each STUDY
_FIXED = {"algorithm": None, "base": {}, "search": {}, "seed": 1, "score": "area"}
"""What all trials of a search share, and what it is where the file says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """What is searched.

    Attributes:
        algorithm: its name, or module:Name.
        base: settings of every trial.
        space: what is drawn for each.
        scaled: setting -> its multiple of the batch size that is drawn.
        trials: how many in all.
        pruner: median, hyperband or none.
        sampler: tpe or random.
        seed: of every trial's run, and of the sampler.
        score: of a run: area, final or best; the larger, the better.
        launch: defaults of the launcher's options.
    """

    algorithm: str
    base: Mapping[str, Any]
    space: SearchSpace
    scaled: Mapping[str, float] = dataclasses.field(default_factory=dict)
    trials: int = 30
    pruner: str = "median"
    sampler: str = "tpe"
    seed: int = 1
    score: str = "area"
    launch: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def settings(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a trial, by what was drawn for it."""
        scaled = {n: times * drawn["batch_size"] for n, times in self.scaled.items()}
        return {**self.base, **drawn, **scaled}


def plan_from(data: Mapping[str, Any], source: str, *, is_new: bool = True) -> TunePlan:
    """The plan that plain data describe, every setting checked.

    Args:
        data: as a file says it.
        source: what messages call it.
        is_new: whether what is searched is checked too; modules that it names are imported.

    Raises:
        ConfigError: listing all mistakes.
    """
    mistakes = unknown_keys(data, KEYS, "")
    for name, known in (("pruner", PRUNERS), ("sampler", SAMPLERS), ("score", _SCORES)):
        if name in data and data[name] not in known:
            mistakes.append(
                f"{name}={shown(data[name])} is unknown. Choose from {', '.join(known)}"
            )
    mistakes += _number_mistakes(data)
    parts = {name: _mapping(data, name, mistakes) for name in _EXAMPLES}
    algorithm, base = data.get("algorithm"), parts["base"]
    space = space_from(parts["search"], mistakes)
    mistakes += _misplaced(base, space)
    if is_new and "retries" in parts["launch"]:
        mistakes.append(f"launch: {NO_RETRIES}")
    if not isinstance(algorithm, str):
        mistakes.append(f"algorithm={shown(algorithm)} must be a name, such as ppo")
    else:
        base, found = _checked_base(algorithm, base, space, is_new=is_new)
        mistakes += found or _misplaced(base, space)
        if is_new and not mistakes:
            mistakes += search_mistakes(algorithm, base, space)
    refuse(mistakes, source)
    name = str(algorithm)
    scaled: dict[str, float] = {}
    if not space:
        algo = starting_config(name, base).algo
        space = {key: span for key, span in default_space(algo).items() if key not in base}
        scaled = updates_kept(algo, space, base)
    plain = ("trials", "pruner", "sampler", "seed", "score")
    given = {key: data[key] for key in plain if key in data}
    said = {"base": base, "space": space, "scaled": scaled, "launch": parts["launch"]}
    return TunePlan(**given, **said, algorithm=name)


NO_RETRIES = (
    "retries belongs to sweeps: a trial that fails counts as failed, and the search goes on. Leave "
    "it out"
)
_SCORES = ("area", "final", "best")
_EXAMPLES = {
    "base": "{env: CartPole-v1}",
    "search": "{gamma: [0.9, 0.99]}",
    "launch": "{slots: 2}",
}
_INSTEAD = {
    "seed": "Give it beside them: every trial has the same",
    "out": "Runs lie in the search's folder, in runs/",
    "algorithm": "Give one beside them",
}


def _number_mistakes(data: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, least in (("trials", 1), ("seed", 0)):
        number = data.get(name, 1)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            found.append(f"{name}={shown(number)} must be a whole number of at least {least}")
    return found or seed_mistakes(data.get("seed", 1))


def _mapping(data: Mapping[str, Any], name: str, mistakes: list[str]) -> dict[str, Any]:
    given = data.get(name) or {}
    if not isinstance(given, Mapping):
        mistakes.append(f"{name}={shown(given)} must be a mapping, such as {_EXAMPLES[name]}")
        return {}
    return {str(key): value for key, value in given.items()}


def _misplaced(base: Mapping[str, Any], space: SearchSpace) -> list[str]:
    found = [
        f"{name!r} is no setting in base or search. {_INSTEAD[name]}"
        for name in _INSTEAD
        if name in space or name in base
    ]
    return found + [
        f"{name!r} is given in base and in search. Leave it in one of them"
        for name in sorted(set(space) & set(base))
    ]


def _checked_base(
    algorithm: str, base: dict[str, Any], space: SearchSpace, *, is_new: bool
) -> tuple[dict[str, Any], list[str]]:
    """The settings of every trial by their flat names and of their types, and what is wrong."""
    variant = Variant(algorithm=algorithm, settings=base, varies={})
    settings, mistakes = checked_settings(variant, are_new=is_new)
    if mistakes:
        return base, mistakes
    config = starting_config(algorithm, settings)
    for name in space:
        try:
            value_of(config, name)
        except KeyError:
            mistakes.append(f"search: {algorithm} has no setting {shown(name)}")
    if "total_env_steps" not in given_settings({"algorithm": algorithm, **base}).settings:
        settings.pop("total_env_steps")  # nobody gave it: the search may
    return settings, mistakes


def described(file: Any, folder: Path, *, from_folder: bool) -> tuple[dict[str, Any], str]:
    """What a search is, and what messages call that.

    Args:
        file: .yaml, .toml or .json file, or what it holds.
        folder: of the search.
        from_folder: whether the folder says it, in place of the file.

    Raises:
        SweepStateError: if the folder holds none.
    """
    if from_folder:
        path = folder / PLAN
        if not path.is_file():
            raise SweepStateError(
                f"{folder} holds no search: it has no {PLAN}. Give the folder that `redline tune "
                f"FILE --out DIR` was given."
            )
        data = read_mapping(path)
        data.pop(_STUDY_IS, None)
        return data, str(path)
    if isinstance(file, Mapping):
        return dict(file), "the search"
    return read_mapping(file), str(file)


def require_same_search(folder: Path, data: Mapping[str, Any]) -> None:
    """Refuse a folder whose trials were of another search: the best of both says nothing.

    Raises:
        SweepStateError: naming what differs.
    """
    if not (folder / PLAN).is_file():
        return
    before, now = read_mapping(folder / PLAN), json.loads(_as_json(data))
    other = [n for n, usual in _FIXED.items() if _said(before, n, usual) != _said(now, n, usual)]
    if other:
        raise SweepStateError(
            f"{folder} holds a search of another {', '.join(other)}, and trials of the two could "
            f"not be compared. Give another --out, or go on with the one that is there: redline "
            f"tune --resume {folder}"
        )


def _said(data: Mapping[str, Any], name: str, usual: Any) -> Any:
    value = data.get(name)
    return usual if value is None else value


def study_elsewhere(folder: Path) -> str | None:
    """Name of a search's study in another database; None: the folder knows of none."""
    path = folder / PLAN
    name = read_mapping(path).get(_STUDY_IS) if path.is_file() else None
    if not isinstance(name, str):
        return None
    return STUDY if name == _OF_EARLIER else name


def study_name(folder: Path, storage: str | None) -> str:
    """What the study of a search is called, or is to be called where it has none yet.

    Args:
        folder: of the search.
        storage: URL of another database, in which each folder has a study of its own.
    """
    if storage is None:
        return STUDY
    return study_elsewhere(folder) or f"{STUDY}-{uuid.uuid4().hex}"


def require_storage(folder: Path, storage: str | None, *, has_study: bool) -> None:
    """Refuse a second study beside the one that a search has.

    Args:
        folder: of the search.
        storage: URL of the database that the caller gives; None: the folder's own.
        has_study: whether the folder's own database is there.

    Raises:
        SweepStateError: naming what to give.
    """
    if not (folder / PLAN).is_file():
        return
    if study_elsewhere(folder) and storage is None:
        raise SweepStateError(
            f"the study of {folder} lies in another database, as it was begun with --storage. Give "
            f"its URL again: --storage URL"
        )
    if storage is not None and has_study and not study_elsewhere(folder):
        raise SweepStateError(
            f"the study of {folder} lies in the folder itself. Leave --storage out, or begin "
            f"another search in another folder."
        )


def keep_plan(
    folder: Path,
    data: Mapping[str, Any],
    *,
    trials: int,
    launch: Mapping[str, Any],
    study: str | None,
) -> None:
    """Write down what `--resume` goes on with.

    Args:
        folder: of the search.
        data: as the file says it.
        trials: how many in all.
        launch: the launcher's options.
        study: name of the study in another database; None: it lies in the folder.
    """
    kept = {**data, "trials": trials, "launch": dict(launch)}
    if study is not None:
        kept[_STUDY_IS] = study
    with atomic_file(folder / PLAN) as temporary:
        temporary.write_text(_as_json(kept) + "\n", encoding="utf-8")


def _as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, default=lambda number: number.item())  # numpy's
