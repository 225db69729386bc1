"""Run directories written by hand, as a run writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEADER = ("env_steps", "wall_time_s", "sps", "return_mean", "return_std", "eval_return_mean")
Row = Sequence[float | str]


def line(row: Row) -> str:
    return ",".join(map(str, row)) + "\n"


def write_run(
    path: Path,
    rows: Sequence[Row] = (),
    *,
    header: Sequence[str] = HEADER,
    end: dict[str, Any] | None = None,
    **run: Any,
) -> Path:
    """A run on CartPole of 1,000 env_steps.

    Args:
        path: of its directory.
        rows: of progress.csv; none leaves the file out.
        header: its columns.
        end: how its session ended; None leaves that open.
        **run: further settings of the run.
    """
    path.mkdir(parents=True)
    settings = {"env": "CartPole-v1", "seed": 7, "total_env_steps": 1000, **run}
    (path / "config.json").write_text(json.dumps({"algorithm": "ppo", "run": settings}))
    if rows:
        (path / "progress.csv").write_text("".join(map(line, (header, *rows))))
    events = [{"event": "started"}, *([] if end is None else [{"event": "ended", **end}])]
    (path / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    return path
