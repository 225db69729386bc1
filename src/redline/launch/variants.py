"""The runs that a plan stands for, and names that say what varies."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redline.launch.sweep_file import SweepPlan

_LONGEST_NAME = 150  # file systems allow 255 bytes; checkpoints add theirs below


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Settings that several seeds share.

    Attributes:
        algorithm: its name, or module:Name.
        settings: every setting that the plan gives, by its name, without the seed.
        varies: what grid and zip give, in their order.
    """

    algorithm: str
    settings: Mapping[str, Any]
    varies: Mapping[str, Any]

    def name(self, seed: int) -> str:
        """Of the run with this seed: algorithm, environment, what varies, seed."""
        env = str(self.settings.get("env", ""))
        parts = [self.algorithm.rpartition(":")[2], env]
        parts += [f"{key}={_short(value)}" for key, value in self.varies.items() if key != "env"]
        parts.append(f"seed={seed}")
        name = "-".join(_as_path(part) for part in parts if part)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{self.key(seed)[:8]}"
        return name

    def key(self, seed: int) -> str:
        """What tells one run from another: equal settings have equal keys."""
        text = json.dumps(
            [self.algorithm, dict(self.settings), seed], sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def expand(plan: SweepPlan) -> Iterator[Variant]:
    """Every combination of a plan, algorithms first, then the grid in its order, then zip."""
    grid = [[(name, value) for value in values] for name, values in plan.grid.items()]
    columns = [[(name, value) for value in values] for name, values in plan.zipped.items()]
    rows = list(zip(*columns, strict=True)) or [()]
    for algorithm in plan.algorithms:
        own = {**plan.base, **plan.by_algorithm.get(algorithm, {})}
        for cell in itertools.product(*grid):
            for row in rows:
                varies = dict((*cell, *row))
                yield Variant(algorithm=algorithm, settings={**own, **varies}, varies=varies)


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(_short(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def _as_path(part: str) -> str:
    return re.sub(r"[^\w.=+,]+", "-", part).strip("-.")
