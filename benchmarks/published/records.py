"""What finished runs reached, as kept in the repository: one file per experiment.

A record holds the settings that its seeds share, and per seed the returns, the command, the
machine and a thinned training curve. Seeds of other settings are never put beside them: once
the settings change, an experiment's record begins anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.experiments import Experiment
from benchmarks.published.one_run import (
    PLACES,
    plain_defaults,
    settings_of,
    settings_that_differ,
)
from benchmarks.published.running import Seed

POINTS = 60  # of a training curve


def thinned(x: np.ndarray, y: np.ndarray, points: int = POINTS) -> list[list[float]]:
    """A curve as means of equal parts of its rows, each at the part's last x.

    Args:
        x: [n] rising.
        y: [n]; rows that are not finite are left out.
        points: at most so many.
    """
    kept = np.isfinite(y)
    x, y = x[kept], y[kept]
    parts = np.array_split(np.arange(len(x)), min(points, len(x))) if len(x) else []
    return [[int(x[part[-1]]), float(f"{y[part].mean():.5g}")] for part in parts]


def row_of(seed: Seed) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and row of a finished run."""
    from redline.train.progress.curves import load_progress

    row = seed.result()
    # Each row has its own place: what they share has none.
    settings = row.pop("settings")
    for part in ("run", "algo"):
        settings[part] = {n: value for n, value in settings[part].items() if n not in PLACES}
    row.pop("lengths", None)
    progress = load_progress(seed.out)
    row["curve"] = thinned(progress["env_steps"], progress["return_mean"])
    return settings, row


def merged(
    record: dict[str, Any] | None,
    settings: dict[str, Any],
    row: dict[str, Any],
    plain: dict[str, Any],
) -> dict[str, Any]:
    """A record with one more seed; one of the same seed is replaced, other settings are dropped.

    Args:
        record: so far; None if there is none.
        settings: of the seed.
        row: what it reached.
        plain: setting -> default. A setting that one of both lacks has its default.
    """
    kept = []
    if record is not None:
        then = record["settings"]
        one, other = (
            settings_that_differ(*two, plain) for two in ((then, settings), (settings, then))
        )
        if not one or not other:
            kept = record["rows"]
            settings = then if one else settings  # those of the version that knows more of them
    rows = [old for old in kept if old["seed"] != row["seed"]] + [row]
    return {"settings": settings, "rows": sorted(rows, key=lambda r: r["seed"])}


def holds(folder: Path, seed: Seed) -> bool:
    """Whether a record has this seed, with the settings that it would have today."""
    record = read(folder, seed.experiment.name)
    if record is None or all(row["seed"] != seed.seed for row in record["rows"]):
        return False
    return not outdated(seed.experiment, record)


def outdated(experiment: Experiment, record: dict[str, Any]) -> list[str]:
    """Names of the settings that the experiment has today unlike when its record was made."""
    now, plain = settings_of(experiment), plain_defaults(experiment)
    return settings_that_differ(record["settings"], now, plain)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """The record of an experiment; None if there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Keep a record: a line per seed, so that a change of one shows as that."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(f"  {json.dumps(row)}" for row in record["rows"])
    settings = json.dumps(record["settings"])
    path = folder / f"{name}.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_text(f'{{"settings": {settings},\n "rows": [\n{rows}\n]}}\n')
    unfinished.replace(path)  # as a whole or not at all


def collect(seeds: list[Seed], folder: Path) -> dict[str, list[str]]:
    """Take all finished runs into the records.

    Returns:
        Name of a seed -> settings that it has unlike today's; it is left out.
    """
    left: dict[str, list[str]] = {}
    for seed in seeds:
        if seed.state() != "finished":
            continue
        experiment, (settings, row) = seed.experiment, row_of(seed)
        plain = plain_defaults(experiment)
        if differing := settings_that_differ(settings, settings_of(experiment), plain):
            left[seed.name] = differing
            continue
        record = merged(read(folder, experiment.name), settings, row, plain)
        write(folder, experiment.name, record)
    return left
