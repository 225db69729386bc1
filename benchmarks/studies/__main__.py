"""Run a case study: record its programs in full mode, draw them, and set them beside the paper.

    python -m benchmarks.studies {frameworks,algorithms,simulators,workers} [--scale 1]
        [--cleanrl CLEANRL] [--only CASE ...] [--out DIR]

| study | compares |
|---|---|
| frameworks | PPO in Stable-Baselines3, CleanRL and TorchRL (where they are), one file, Redline |
| algorithms | on- and off-policy algorithms on one simulator |
| simulators | simulators under one algorithm |
| workers | 1 to 16 processes that simulate, or act by themselves, for one learner |

Each writes NAME.json, NAME.md and NAME.png. Times are per env step of the process that learns, once
it has started up, with 95% intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import as_markdown, describe
from benchmarks.studies.cases import STUDIES, Case
from benchmarks.studies.findings import Row, findings
from benchmarks.third_party import environment
from redline.errors import ProfileError
from redline.profile.advise.iteration import read_iteration
from redline.profile.analyse.samples import read_machine_samples
from redline.profile.analyse.summary import summarize
from redline.profile.reader import Session, open_session
from redline.profile.record.options import Options
from redline.profile.runner import run_profiled

RESULTS = Path(__file__).parents[1] / "results" / "studies"
IDLE = ("waiting", "ready")
SMALL = 0.02  # of an env step: parts below it are drawn together
OFTEN = (
    *("simulation", "inference", "collection", "replay", "forward", "backpropagation"),
    *("learning", "zero_grad", "checkpoint", "other"),
)


def measure(case: Case, cleanrl: Path | None) -> Row:
    """Record one case.

    Args:
        case: what to run.
        cleanrl: folder of a clone of CleanRL, whose scripts import from there.

    Raises:
        ProfileError: if the program fails, or steps no env.
    """
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        command = [word.replace("{out}", directory) for word in case.command]
        before = os.getcwd()
        given = environment(cleanrl)
        os.environ.update({name: given[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")})
        os.chdir(out)  # CleanRL writes into the working directory
        try:
            status = run_profiled(command, out / "session", Options())
        finally:
            os.chdir(before)
        if status != 0:
            raise ProfileError(f"{' '.join(command)} ended with status {status}")
        return row_of(case, open_session(out / "session"))


def row_of(case: Case, session: Session) -> Row:
    """What the study shows of a session."""
    found = read_iteration(session)
    cells = summarize(session).cells
    busy = sum(cell.corrected_s for cell in cells if cell.level not in IDLE)
    return {
        "label": case.label,
        "on_policy": case.on_policy,
        "simulators": case.simulators,
        "env_steps": found.env_steps,
        "us": found.total.us,
        "half_us": found.total.half_us,
        "parts_us": {part.operation: part.time.us for part in found.parts.values()},
        "waiting_us": sum(part.level("waiting") for part in found.parts.values()),
        "gpu_busy": found.gpu_busy,
        "busy": busy / sum(cell.corrected_s for cell in cells),
        "monitor": _monitor(session),
        "problems": found.problems,
    }


def _monitor(session: Session) -> float:
    """Mean utilization of all cores, as a system monitor would show it."""
    samples = read_machine_samples(session)
    if samples is None or samples.cpu.size == 0:
        return float("nan")
    return float(np.nanmean(samples.cpu))


def table(name: str, rows: list[Row]) -> str:
    """The study as text for a page."""
    head = f"# {name.capitalize()}\n\n```bash\npython -m benchmarks.studies {name}\n```\n\n"
    lines = ["| case | env steps | us per env step | largest parts |", "|---|---|---|---|"]
    for row in rows:
        parts = sorted(row["parts_us"].items(), key=lambda item: -item[1])[:5]
        shown = ", ".join(f"{key} {100 * us / row['us']:.0f}%" for key, us in parts)
        lines.append(
            f"| {row['label']} | {row['env_steps']:,} | {row['us']:.0f} +- {row['half_us']:.0f} | "
            f"{shown} |"
        )
    lines += ["", f"![{name}]({name}.png)", "", "| published (RL-Scope, 2021) | here | |"]
    lines += ["|---|---|---|"]
    lines += [f"| {one.published} | {one.here} | {one.verdict} |" for one in findings(name, rows)]
    return head + "\n".join(lines) + "\n"


def draw(name: str, rows: list[Row], path: Path) -> None:
    """Parts of an env step, in us and as shares."""
    from matplotlib.figure import Figure

    parts = dict.fromkeys(key for row in rows for key in row["parts_us"])
    large = [k for k in parts if any(r["parts_us"].get(k, 0) > SMALL * r["us"] for r in rows)]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(rows)), layout="constrained")
    for place, (axes, title) in enumerate(
        zip(figure.subplots(1, 2, sharey=True), ("us per env step", "%"), strict=True)
    ):
        left = np.zeros(len(rows))
        for key in [*large, "rest"]:
            us = np.array([_part(row, key, large) for row in rows])
            scale = np.array([100 / row["us"] if place else 1.0 for row in rows])
            labels = [row["label"] for row in rows]
            axes.barh(labels, us * scale, left=left, label=key, color=_color(key))
            left += us * scale
        axes.set_xlabel(title)
        axes.invert_yaxis() if place == 0 else None
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(f"Where an env step's time goes: {name}")
    figure.savefig(path, dpi=110)


def _color(operation: str) -> str | None:
    """The same in every figure; None, which takes the next of the cycle, for a rare one."""
    if operation == "rest":
        return "0.8"
    return f"C{OFTEN.index(operation)}" if operation in OFTEN else None


def _part(row: dict[str, Any], key: str, large: list[str]) -> float:
    if key != "rest":
        return row["parts_us"].get(key, 0.0)
    return sum(us for name, us in row["parts_us"].items() if name not in large)


def recorded(path: Path, scale: float) -> dict[str, Row]:
    """Cases measured before at the same scale, by label."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    return {row["label"]: row for row in content["cases"]} if content["scale"] == scale else {}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(STUDIES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of env steps")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--cleanrl", type=Path, help="folder of a clone of CleanRL")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="measure these (default: all)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.name}.json"
    cleanrl = options.cleanrl.resolve() if options.cleanrl else None
    cases = STUDIES[options.name](options.scale, cleanrl)
    known = recorded(path, options.scale)
    for case in cases:
        if options.only is None or case.label in options.only:
            known[case.label] = row = measure(case, cleanrl)
            print(f"{case.label}: {row['us']:.1f} us per env step", flush=True)
        rows = [known[each.label] for each in cases if each.label in known]
        content = {"machine": describe(), "scale": options.scale, "cases": rows}
        path.write_text(json.dumps(content, indent=1) + "\n")
    page = f"{table(options.name, rows)}\nOne thread for each program.\n\n{as_markdown()}"
    path.with_suffix(".md").write_text(page)
    draw(options.name, rows, path.with_suffix(".png"))
    print(table(options.name, rows))


if __name__ == "__main__":
    main()
