"""The file that describes a sweep, as plain data.

```yaml
algorithm: ppo                      # or a list
base: {env: CartPole-v1, total_env_steps: 20000}
grid: {learning_rate: [0.001, 0.0003]}      # every combination
zip: {num_envs: [8, 16], rollout_length: [128, 64]}   # first with first, second with second
by_algorithm: {dqn: {learning_starts: 500}} # for one algorithm of several
seeds: [1, 2]                       # or a number: 1 to that
launch: {slots: 2, retries: 1}      # defaults of the command line's options
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redline.errors import ConfigError
from redline.plain_text import shortened, shown

KEYS = ("algorithm", "base", "grid", "zip", "by_algorithm", "seeds", "launch")
LAUNCH_KEYS = (
    "slots",
    "cores_per_run",
    "gpus",
    "memory_gb",
    "retries",
    "on",
    "address",
    "oversubscribe",
)


def overlaid(
    before: Mapping[str, Any], given: Mapping[str, Any] | None, *, is_saved: bool = False
) -> dict[str, Any]:
    """The launcher's options of a file or a folder, with those of the caller over them.

    Where the caller says where runs take place, what the file says only for the other place is left
    out. The same holds for what a folder has saved: earlier versions saved it without effect.

    Args:
        before: of the file or folder.
        given: the caller's.
        is_saved: whether `before` are a folder's.
    """
    given = given or {}
    options = {**before, **given}
    idle = "oversubscribe" if options.get("on") == "ray" else "address"
    if idle not in given and (is_saved or "on" in given):
        options.pop(idle, None)
    return options


MOST_RUNS = 100_000
_LIMIT = f"{MOST_RUNS:,} at most: each is a process, a folder and checkpoints. Give fewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep consists of; `variants.expand` makes runs of it.

    Attributes:
        algorithms: names, or module:Name.
        base: settings of every run.
        grid: setting -> values; every combination is run.
        zipped: setting -> values, all of one length; the n-th go together.
        by_algorithm: algorithm -> settings of its runs.
        seeds: each variant is run with every one.
        launch: defaults of the launcher's options.
    """

    algorithms: tuple[str, ...]
    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    zipped: Mapping[str, list[Any]] = field(default_factory=dict)
    by_algorithm: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (1,)
    launch: Mapping[str, Any] = field(default_factory=dict)


def plan_from(data: Mapping[str, Any], source: str = "the sweep") -> SweepPlan:
    """The plan that plain data describe.

    Args:
        data: as in the module's example.
        source: what messages call it.

    Raises:
        ConfigError: listing everything that is wrong with its form.
    """
    mistakes = unknown_keys(data, KEYS, "")
    launch = data.get("launch") or {}
    if not isinstance(launch, Mapping):
        mistakes.append(
            f"launch={shown(launch)} must be a mapping of options, such as {{slots: 2}}"
        )
    else:
        mistakes += unknown_keys(launch, LAUNCH_KEYS, "launch: ")
    parts = {name: _mapping(data, name, mistakes) for name in ("base", "grid", "by_algorithm")}
    zipped = _mapping(data, "zip", mistakes)
    for name, values in (*parts["grid"].items(), *zipped.items()):
        if not isinstance(values, list) or not values:
            mistakes.append(
                f"{shortened(name)}={shown(values)} must be a list of values, such as [0.001, "
                "0.0003]"
            )
    lengths = {name: len(v) for name, v in zipped.items() if isinstance(v, list)}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        mistakes.append(f"zip needs lists of one length: {said}")
    mistakes += _given_twice(parts["base"], parts["grid"], zipped)
    for name, own in parts["by_algorithm"].items():
        mistakes += _misplaced(name, own, {*parts["grid"], *zipped})
    algorithms, seeds = _algorithms(data, mistakes), _seeds(data, mistakes)
    for name in sorted(set(parts["by_algorithm"]) - set(algorithms)):
        mistakes.append(f"by_algorithm names {shown(name)}, which is not among the algorithms")
    mistakes += _too_many(len(algorithms), parts["grid"], zipped, len(seeds))
    refuse(mistakes, source)
    return SweepPlan(
        algorithms=algorithms,
        base=parts["base"],
        grid=parts["grid"],
        zipped=zipped,
        by_algorithm=parts["by_algorithm"],
        seeds=seeds,
        launch=launch,
    )


def refuse(mistakes: list[str], source: str) -> None:
    """Raise one error that lists all mistakes, if there are any.

    Raises:
        ConfigError: one line per mistake.
    """
    found = list(dict.fromkeys(mistakes))
    if found:
        count = "1 mistake" if len(found) == 1 else f"{len(found)} mistakes"
        lines = "\n".join(f"  - {mistake}" for mistake in found)
        raise ConfigError(f"{source} has {count}; nothing was started:\n{lines}")


def unknown_keys(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> list[str]:
    """One sentence for each key that is not among the known ones."""
    return [
        f"{where}there is no key {shown(key)}{nearest(str(key), known)}. Keys are "
        f"{', '.join(known)}"
        for key in data
        if key not in known
    ]


def nearest(name: str, known: Any) -> str:
    """` (did you mean x?)`, or nothing where nothing is near."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _mapping(data: Mapping[str, Any], name: str, mistakes: list[str]) -> dict[str, Any]:
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        mistakes.append(f"{shortened(name)}={shown(value)} must be a mapping of settings to values")
        return {}
    return {str(key): item for key, item in value.items()}


def _given_twice(*parts: Mapping[str, Any]) -> list[str]:
    names = [name for part in parts for name in part]
    found = [
        f"{shown(name)} is given more than once among base, grid and zip. Leave it in one of them"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for name, instead in (("seed", "seeds"), ("algorithm", "algorithm, beside base and grid")):
        if name in names:
            found.append(f"{name!r} is no setting here: use {instead}")
    if "out" in names:
        found.append("'out' is no setting here: runs lie in the sweep's folder, in runs/")
    return found


def _misplaced(algorithm: str, own: Any, varied: set[str]) -> list[str]:
    """What is wrong with the settings of one algorithm's runs."""
    where = f"by_algorithm: {algorithm}"
    if not isinstance(own, Mapping):
        return [f"{where}={shown(own)} must be a mapping of settings to values"]
    found = [
        f"{where}: {shown(name)} also varies by grid or zip, which would win. Leave it in one of "
        "them"
        for name in sorted(varied & set(own))
    ]
    for name in ("seed", "algorithm", "out"):
        if name in own:
            found.append(f"{where}: {shown(name)} is no setting here")
    return found


def _algorithms(data: Mapping[str, Any], mistakes: list[str]) -> tuple[str, ...]:
    value = data.get("algorithm")
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        mistakes.append(f"algorithm={shown(value)} must be a name, or a list of names, such as ppo")
        return ()
    return tuple(dict.fromkeys(names))


def _too_many(
    algorithms: int, grid: Mapping[str, Any], zipped: Mapping[str, Any], seeds: int
) -> list[str]:
    """What is wrong with the number of runs that a sweep comes to."""
    lists = [len(values) for values in grid.values() if isinstance(values, list)]
    rows = max((len(values) for values in zipped.values() if isinstance(values, list)), default=1)
    runs = algorithms * math.prod(lists) * rows * seeds
    if runs <= MOST_RUNS:
        return []
    product = " x ".join(f"{count:,}" for count in (algorithms, *lists, rows, seeds))
    return [
        f"algorithms x grid x zip x seeds are {product} = {runs:,} runs, and a sweep has {_LIMIT}"
    ]


def _seeds(data: Mapping[str, Any], mistakes: list[str]) -> tuple[int, ...]:
    value = data.get("seeds", [1])
    if _is_whole(value) and value > MOST_RUNS:
        mistakes.append(f"seeds={value} are as many runs each, and a sweep has {_LIMIT}")
        return ()
    if _is_whole(value) and value > 0:
        return tuple(range(1, value + 1))
    if not isinstance(value, list) or not value or not all(map(_is_whole, value)):
        mistakes.append(
            f"seeds={shown(value)} must be a list of whole numbers, or how many there are"
        )
        return ()
    return tuple(dict.fromkeys(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
