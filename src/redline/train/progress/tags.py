"""What the columns of `progress.csv` are called in TensorBoard and Weights & Biases.

Both tools make a section of what stands before the slash, and sort sections and their charts by
name. So the returns of training come first, then those of evaluations, then what the updates say,
then speed and counters. A column that has a slash of its own keeps its name.

| section | holds |
|---|---|
| `episode/` | returns and lengths of the episodes that ended since the last row, success rate |
| `eval/` | the same of evaluations |
| `loss/` | what updates report, and the present values of scheduled hyperparameters |
| `time/` | SPS, wall time, and counters other than env_steps, which is the horizontal axis |
"""

from __future__ import annotations

from collections.abc import Iterable

AXIS = "env_steps"

_TAGS = {
    "return_mean": "episode/return_mean",
    "return_std": "episode/return_std",
    "return_min": "episode/return_min",
    "return_max": "episode/return_max",
    "episode_length_mean": "episode/steps_mean",
    "success_rate": "episode/success_rate",
    "eval_episode_length_mean": "eval/steps_mean",
    "sps": "time/sps",
    "wall_time_s": "time/wall_time_s",
    "iteration": "time/iteration",
    "frames": "time/frames",
    "optimizer_steps": "time/optimizer_steps",
    "episodes": "time/episodes",
    "replay_ratio": "time/replay_ratio",
    "staleness_mean": "time/staleness_mean",
    "staleness_max": "time/staleness_max",
    "workers_replaced": "time/workers_replaced",
    "worker_restarts": "time/worker_restarts",
}
_ORDER = ("return_mean", "episode/", "eval/", "loss/", "time/")


def tag(column: str) -> str:
    """What a column is called, such as episode/return_mean for return_mean."""
    if column in _TAGS:
        return _TAGS[column]
    if "/" in column:
        return column
    if column.startswith("eval_"):
        return f"eval/{column.removeprefix('eval_')}"
    return f"loss/{column}"


def tags_in_order(columns: Iterable[str]) -> dict[str, str]:
    """Column -> tag of all but the axis: return first, then by section, else as given."""
    tags = {column: tag(column) for column in columns if column != AXIS}

    def place(column: str) -> int:
        if column == "return_mean":
            return 0
        section = tags[column].partition("/")[0] + "/"
        return _ORDER.index(section) if section in _ORDER else len(_ORDER)

    return {column: tags[column] for column in sorted(tags, key=place)}
