"""Predict what a change gains, then make the change and measure.

    python -m benchmarks.predictions [--pairs FILE] [--cleanrl CLEANRL] [--only NAME ...]

FILE (TOML; default: pairs.toml beside this file) describes pairs of commands:

    [[pair]]
    name = "CleanRL DQN, batches"
    remedy = "batches"               # as `redline advise` names it
    cores = 1                        # that the pair needs
    script = "{cleanrl}/cleanrl/dqn.py"         # run by this interpreter; or "-m MODULE"
    arguments = "--no-cuda --total-timesteps 6000"
    change = "--batch-size 256 --train-frequency 20"         # added to the arguments
    edits = [["lr=1e-3)", "lr=1e-3, fused=True)"]]           # or made in a copy of the script

`{cleanrl}` is a clone of https://github.com/vwxyzjn/cleanrl, `{root}` this checkout; a path of your
own does as well. The unchanged program is recorded in full, which gives the prediction; it is
written down before the changed program runs for the first time. Then both are run in turn.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.records import recorded, require_one_machine
from redline.errors import RedlineError
from redline.profile.advise.check import check, render_check

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "predictions"
HERE = Path(__file__).parent
WANTED_INSIDE, WANTED_ERROR = 0.8, 0.15


@dataclass(frozen=True, slots=True)
class Pair:
    """A program, and a change of it."""

    name: str
    remedy: str
    script: str
    arguments: str
    change: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    cores: int = 1
    threads: int = 1  # of torch
    change_threads: int = 0  # 0: as many

    def commands(self, places: dict[str, str], directory: Path) -> tuple[str, str]:
        """The command before and after.

        Args:
            places: what stands for the names in braces.
            directory: for a changed copy of the script.

        Raises:
            SystemExit: if the script is missing, or holds nothing of what is to be changed.
        """
        script = self.script
        for key, value in places.items():
            script = script.replace(f"{{{key}}}", value)
        path = Path(script)
        if not path.exists():
            raise SystemExit(f"{self.name}: there is no {path}. Clone CleanRL and give --cleanrl")
        settings = shlex.split(self.arguments)
        before = [*_threads(self.threads), sys.executable, str(path), *settings]
        changed = directory / path.name
        text = path.read_text()
        for old, new in self.edits:
            if old not in text:
                raise SystemExit(f"{self.name}: {path} does not hold {old!r}. Give its words")
            text = text.replace(old, new)
        changed.write_text(text)
        place = str(changed if self.edits else path)
        after = [*_threads(self.change_threads or self.threads), sys.executable, place]
        after += [*settings, *shlex.split(self.change)]
        return shlex.join(before), shlex.join(after)


def _threads(number: int) -> list[str]:
    return ["env", f"OMP_NUM_THREADS={number}"]


def read_pairs(path: Path) -> list[Pair]:
    """Those that a file describes."""
    rows = tomllib.loads(path.read_text())["pair"]
    return [Pair(**{**row, "edits": tuple(map(tuple, row.get("edits", [])))}) for row in rows]


def measure(pair: Pair, places: dict[str, str], pairs: int) -> dict[str, Any] | None:
    """One line of the table; None where the remedy is not advised, or a program fails."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # CleanRL writes into the working directory
        before, after = pair.commands(places, Path(directory))
        predicted_at = ""
        torch.set_num_threads(pair.threads)  # for the rates, which are measured in this process

        def tell(text: str) -> None:
            nonlocal predicted_at
            if not predicted_at and text.startswith("pair"):
                predicted_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

        try:
            found = check(before, after, remedy=pair.remedy, pairs=pairs, progress=tell)
        except RedlineError as error:
            print(f"{pair.name}: {error}", flush=True)
            return None
        finally:
            os.chdir(ROOT)
    print(f"{pair.name}\n{render_check(found)}", flush=True)
    prediction = found.prediction
    if prediction is None:
        print(f"{pair.name}: redline advise does not name {pair.remedy} for it", flush=True)
        return None
    return {
        "remedy": pair.remedy,
        "predicted_at": predicted_at,
        "before_us": prediction.before_us,
        "predicted_us": prediction.predicted_us,
        "low_us": prediction.low_us,
        "high_us": prediction.high_us,
        "known": prediction.known,
        "measured_us": found.measured_us,
        "measured_low_us": found.ratio_low * prediction.before_us,
        "measured_high_us": found.ratio_high * prediction.before_us,
        "ratios": [b / a for a, b in zip(found.before_us, found.after_us, strict=True)],
        "verdict": found.verdict,
        "cores": len(os.sched_getaffinity(0)),
        "arguments": pair.arguments,
        "change": pair.change or [list(edit) for edit in pair.edits],
    }


def error(row: dict[str, Any]) -> float:
    """Of a prediction, relative to what was measured."""
    return row["predicted_us"] / row["measured_us"] - 1


def table(rows: dict[str, dict[str, Any]]) -> str:
    """As Markdown, us per env step."""
    lines = [
        "| program and change | remedy | before | predicted (95%) | measured (95%) | error | |",
        "|---" * 7 + "|",
    ]
    for name, row in rows.items():
        predicted, measured = (
            f"{row[key]:,.0f} ({row[low]:,.0f} to {row[high]:,.0f})"
            for key, low, high in (
                ("predicted_us", "low_us", "high_us"),
                ("measured_us", "measured_low_us", "measured_high_us"),
            )
        )
        lines.append(
            f"| {name} | {row['remedy']} | {row['before_us']:,.0f} | {predicted} | {measured} | "
            f"{100 * error(row):+.1f}% | {row['verdict']} |"
        )
    told = [row for row in rows.values() if row["verdict"] != "unknown"]
    inside = sum(row["verdict"] == "inside" for row in told)
    mean = statistics.mean(abs(error(row)) for row in told) if told else 0.0
    remedies = len({row["remedy"] for row in told})
    lines.append(
        f"\n{inside} of {len(told)} measured inside the predicted interval (wanted: "
        f"{WANTED_INSIDE:.0%}), {remedies} remedies, mean size of the error {mean:.1%} (wanted: at "
        f"most {WANTED_ERROR:.0%}). Where nothing was predicted and noise hides what was measured, "
        "the verdict is unknown and counts for nothing.\n"
    )
    return "\n".join(lines)


def write(path: Path, rows: dict[str, Any]) -> None:
    """The record, and its page beside it."""
    facts = describe()
    path.write_text(json.dumps({"machine": facts, "pairs": rows}, indent=1) + "\n")
    machine = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    path.with_suffix(".md").write_text(
        "# Predictions and what came of them\n\n```bash\n"
        "python -m benchmarks.predictions --cleanrl CLEANRL\n```\n\n"
        "Microseconds per env step. Each prediction was made from a recording of the unchanged "
        f"program, before the changed one ran.\n\n{table(rows)}\n"
        f"| machine | |\n|---|---|\n{machine}\n"
    )


def _fits(pair: Pair) -> bool:
    """Whether this process has the cores that a pair needs."""
    return len(os.sched_getaffinity(0)) >= max(pair.cores, pair.threads)


def main() -> None:
    """Measure what is chosen, and write the table of all that is recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=Path, default=HERE / "pairs.toml", help="descriptions")
    parser.add_argument("--cleanrl", type=Path, default=Path("cleanrl"), help="folder of a clone")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these (default: all)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, in turn (default: 3)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = {pair.name: pair for pair in read_pairs(options.pairs)}
    names = options.only or list(known)
    if missing := [name for name in names if name not in known]:
        raise SystemExit(f"no pair {missing[0]!r} in {options.pairs}. It has: {', '.join(known)}")
    cleanrl, out = options.cleanrl.resolve(), options.out.resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "src", cleanrl)))
    places = {"cleanrl": str(cleanrl), "root": str(ROOT)}
    out.mkdir(parents=True, exist_ok=True)
    path = out / "predictions.json"
    rows: dict[str, Any] = recorded(path).get("pairs", {})
    # Each row says how many cores it had.
    here = {**describe(), "cores": recorded(path).get("machine", describe())["cores"]}
    require_one_machine(path, {*rows} - {name for name in names if _fits(known[name])}, here)
    for name in names:
        pair = known[name]
        # Two threads of torch on one core measure nothing that anybody would run.
        if not _fits(pair):
            print(f"{name} needs {max(pair.cores, pair.threads)} cores: left out", flush=True)
            continue
        row = measure(pair, places, options.repeat)
        if row is not None:
            rows[name] = row
        rows = {key: rows[key] for key in known if key in rows}
        if rows:
            write(path, rows)
    print(table(rows) if rows else "nothing is recorded yet")


if __name__ == "__main__":
    main()
