"""How far raw and corrected times are from those of unprofiled runs: the input and its figure."""

# matplotlib's stubs leave many arguments unknown, which strict checking would report.
# pyright: basic

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.errors import ConfigError
from redline.plain_text import shown
from redline.profile.report.colors import SERIES_COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Bias", "draw_bias", "read_biases"]


@dataclass(frozen=True, slots=True)
class Bias:
    """One workload measured without the profiler and with it."""

    workload: str
    unprofiled_s: float
    raw_s: float
    corrected_s: float

    def percent(self, kind: str) -> float:
        """Error of the `raw` or `corrected` time, in % of the unprofiled time."""
        measured = self.raw_s if kind == "raw" else self.corrected_s
        return 100 * (measured / self.unprofiled_s - 1)


def read_biases(path: Path) -> list[Bias]:
    """Read `[{"workload": ..., "unprofiled_s": ..., "raw_s": ..., "corrected_s": ...}, ...]`.

    Raises:
        ConfigError: if the file is not of this form.
    """
    form = "a list of objects with workload, unprofiled_s, raw_s and corrected_s"
    try:
        rows = json.loads(path.read_text())
        found = [
            Bias(
                str(row["workload"]),
                *(float(row[key]) for key in ("unprofiled_s", "raw_s", "corrected_s")),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--bias {path} cannot be read ({shown(error, 200)}). Give {form}"
        ) from error
    for bias in found:
        if not bias.unprofiled_s > 0:
            raise ConfigError(
                f"--bias {path}: unprofiled_s of {shown(bias.workload)} is {bias.unprofiled_s}. "
                "Give the seconds that the run took without the profiler"
            )
    return found


def draw_bias(figure: Figure, biases: list[Bias]) -> None:
    """Bars of both errors per workload."""
    figure.set_size_inches(max(4.5, 1.5 + 0.6 * len(biases)), 3.2)
    axes = figure.subplots()
    for place, (kind, color) in enumerate((("raw", "#BBBBBB"), ("corrected", SERIES_COLORS[0]))):
        values = [bias.percent(kind) for bias in biases]
        sizes = [abs(value) for value in values]
        bars: Any = axes.bar(
            [x - 0.2 + 0.4 * place for x in range(len(biases))],
            values,
            0.37,
            color=color,
            label=f"{kind}: mean {sum(sizes) / len(sizes):.1f} %, worst {max(sizes):.1f} %",
        )
        axes.bar_label(bars, fmt="%+.1f", fontsize=7, padding=1)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(biases)), [bias.workload for bias in biases])
    axes.set_ylabel("error of the time, % of unprofiled")
    axes.margins(y=0.15)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside upper center", ncols=1, handlelength=1)
