"""Draws the two pictures of docs/how_it_works.md: `python scripts/docs_pictures.py`.

Plain SVG, so that they are sharp at every size, can be searched, and need no plotting library.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
INK, LINE, PAPER = "#1f2430", "#6b7280", "#ffffff"
BLUE, GREEN, RED, GRAY = "#e3edf9", "#e4f2e4", "#fbe5e3", "#f1f1ef"


class Picture:
    """Boxes and arrows.

    Args:
        width, height: in pixels of the drawing.
        title: what a screen reader says.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="15" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            f'markerHeight="8" orient="auto"><path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker>'
            "</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        ]

    def box(
        self, x: float, y: float, width: float, height: float, name: str, about: str, fill: str
    ) -> None:
        """A named box with a line or two about it, separated by `|`."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{LINE}"/>'
        )
        lines = about.split("|") if about else []
        top = y + height / 2 - 9 * len(lines) + 5
        self.text(x + width / 2, top, name, weight=600)
        for number, line in enumerate(lines, 1):
            self.text(x + width / 2, top + 18 * number, line, size=12.5)

    def text(self, x: float, y: float, words: str, *, size: float = 15, weight: int = 400) -> None:
        """A line of text around x."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="{size}" '
            f'font-weight="{weight}">{escape(words)}</text>'
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """An arrow through points."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.6"{dashes} '
            'marker-end="url(#tip)"/>'
        )

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def rooms() -> Picture:
    """The folders of src/redline, from what people call down to what knows nothing of the rest."""
    picture = Picture(820, 590, "The rooms of Redline: imports go downwards only")
    rows: list[list[tuple[str, str, str]]] = [
        [("cli, command_line, watch", "read options, call, show", GRAY)],
        [("launch", "sweeps, searches, comparisons, clusters", GRAY)],
        [("train", "the loops, runs, checkpoints, logs, evaluation", BLUE)],
        [
            ("serving", "predict", BLUE),
            ("engines", "how an update runs: eager, cpu, compiled, captured", BLUE),
        ],
        [
            ("algos", "losses, update(batch)", GREEN),
            ("replay, offline", "what was collected", GREEN),
            ("collect", "envs x policy -> rollout", GREEN),
        ],
        [
            ("policies", "observation -> action", GREEN),
            ("returns", "advantages, targets", GREEN),
            ("envs", "one contract for all", GREEN),
        ],
        [("models", "networks; they know no RL", GRAY)],
        [("data", "rollouts [T, B] and batches [N]", GRAY)],
    ]
    for index, row in enumerate(rows):
        shares = [1.0] * len(row) if len(row) != 2 else [0.6, 1.4]
        left, unit = 20.0, (580 - 10 * (len(row) - 1)) / sum(shares)
        for (name, about, fill), share in zip(row, shares, strict=True):
            picture.box(left, 20 + 70 * index, unit * share, 56, name, about, fill)
            left += unit * share + 10
    picture.box(
        630,
        160,
        170,
        266,
        "profile",
        "stands alone:|imports no other room,|profiles any program",
        RED,
    )
    picture.arrow((600, 188), (630, 188), dashed=True)
    picture.arrow((600, 328), (630, 328), dashed=True)
    picture.text(715, 455, "train and collect know", size=12.5)
    picture.text(715, 473, "its marks, nothing else", size=12.5)
    return picture


def way_of_data() -> Picture:
    """One iteration: collect, then update."""
    picture = Picture(
        860, 420, "The way of data: environments, collector, rollout, update, weights"
    )
    picture.box(20, 40, 170, 76, "environments", "B of them, stepped|by a back end", GREEN)
    picture.box(20, 200, 170, 76, "policy", "acts; keeps log_prob,|value, recurrent state", GREEN)
    picture.arrow((75, 116), (75, 200))
    picture.arrow((135, 200), (135, 116))
    picture.text(48, 162, "obs", size=12.5)
    picture.text(165, 162, "action", size=12.5)
    picture.box(250, 120, 150, 76, "rollout [T, B]", "one block of rows,|with the mask valid", BLUE)
    picture.arrow((190, 78), (220, 78), (220, 145), (250, 145))
    picture.arrow((190, 238), (220, 238), (220, 172), (250, 172))
    picture.text(325, 108, "the collector fills it", size=12.5)
    picture.box(460, 30, 160, 76, "returns", "advantages and targets|(on-policy)", GREEN)
    picture.box(460, 210, 160, 76, "replay", "past rows; draws|batches (off-policy)", GREEN)
    picture.arrow((400, 145), (430, 145), (430, 68), (460, 68))
    picture.arrow((400, 172), (430, 172), (430, 248), (460, 248))
    picture.box(680, 120, 160, 76, "update(batch)", "the algorithm,|run by an engine", BLUE)
    picture.arrow((620, 68), (650, 68), (650, 145), (680, 145))
    picture.arrow((620, 248), (650, 248), (650, 172), (680, 172))
    picture.arrow((790, 196), (790, 330), (105, 330), (105, 276))
    picture.text(450, 322, "new weights, with a number", size=12.5)
    picture.arrow((735, 196), (735, 365), dashed=True)
    picture.text(735, 385, "logs and checkpoints", size=12.5)
    return picture


PICTURES = {"rooms.svg": rooms, "way_of_data.svg": way_of_data}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(str(draw()), encoding="utf-8")
        print(IMAGES / name)
