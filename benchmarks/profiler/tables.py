"""What was recorded of the programs, as tables and as the list that `redline report --bias` draws.

All ratios are of runs of the same round; a program's figure is the median over its rounds.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

KINDS = (("wall_s", "wall"), ("cpu_s", "CPU"), ("loop_s", "loop"))

Round = dict[str, Any]

__all__ = ["bias", "biases", "overheads", "share_differences", "write_tables"]


def overheads(rounds: list[Round], mode: str, kind: str) -> list[float]:
    """Profiled over unprofiled time minus one, per round.

    Args:
        rounds: of a program.
        mode: "light" or "full".
        kind: "wall_s", "cpu_s" or "loop_s".
    """
    return [each[mode][kind] / each["unprofiled"][kind] - 1 for each in rounds]


def biases(rounds: list[Round], kind: str) -> list[float]:
    """Corrected minus unprofiled time, of unprofiled time, per round."""
    return [
        (each["full"][kind] - each["full"]["taken_out_s"]) / each["unprofiled"][kind] - 1
        for each in rounds
    ]


def bias(rounds: list[Round], kind: str) -> float:
    """A program's: the median over its rounds."""
    return statistics.median(biases(rounds, kind))


def share_differences(rounds: list[Round]) -> dict[str, float]:
    """{level: sampled minus measured share of the process's time}, mean over sampled rounds."""
    found: dict[str, list[float]] = {}
    sampled = [each["sample"]["levels"] for each in rounds if "sample" in each]
    for rows in sampled:
        for row in rows:
            found.setdefault(row["name"], []).append(row["sampled"] - row["measured"])
    return {name: sum(each) / len(sampled) for name, each in found.items()}


def write_tables(path: Path) -> str:
    """Write the .md beside a file of results, and the list for `redline report --bias`.

    Args:
        path: of the .json.

    Returns:
        The tables.
    """
    content = json.loads(path.read_text())
    programs = {name: rounds for name, rounds in content["programs"].items() if rounds}
    if not programs:
        return "nothing is recorded yet"
    parts = [_overhead_table(programs), _bias_table(programs), _share_table(programs)]
    tables = "\n\n".join(parts)
    rows = [_bias_row(name, rounds) for name, rounds in programs.items()]
    path.with_name(f"{path.stem}-bias.json").write_text(json.dumps(rows, indent=1) + "\n")
    facts = {**content["machine"], **content["versions"], "scale": content["scale"]}
    about = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    commands = "\n".join(content["commands"])
    path.with_suffix(".md").write_text(
        f"# Profiler: programs on Python {content['versions']['python']}\n\n"
        f"```bash\n{commands}\n```\n\n{tables}\n\n| machine | |\n|---|---|\n{about}\n"
    )
    return tables


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(values: list[float]) -> str:
    """The median, lowest and highest."""
    return f"{statistics.median(values):+.1%} ({min(values):+.1%} to {max(values):+.1%})"


def _overhead_table(programs: dict[str, list[Round]]) -> str:
    head = ["program", "rounds", "unprofiled s"]
    head += [f"{mode}, {label}" for mode in ("light", "full") for _, label in KINDS]
    rows = []
    for name, rounds in programs.items():
        plain = statistics.median(each["unprofiled"]["wall_s"] for each in rounds)
        cells = [
            _spread(overheads(rounds, mode, kind))
            for mode in ("light", "full")
            for kind, _ in KINDS
        ]
        rows.append([name, str(len(rounds)), f"{plain:.2f}", *cells])
    return (
        "## Overhead\n\nMedian over the rounds (lowest to highest). Wall and CPU are of the whole "
        "program, imports and the profiler's own start and end included; loop is the training "
        "alone, by the program's own clock.\n\n" + _table(head, rows)
    )


def _bias_table(programs: dict[str, list[Round]]) -> str:
    rows, sizes = [], {kind: [] for kind, _ in KINDS[:2]}
    for name, rounds in programs.items():
        for kind, found in sizes.items():
            found.append(abs(bias(rounds, kind)))
        estimates = [each["full"]["overhead"] for each in rounds]
        units = [e["unit_ns"] for e in estimates if e["corrected"]]
        counts = statistics.median(e["count"] for e in estimates)
        rows.append(
            [
                name,
                *(_spread(biases(rounds, kind)) for kind, _ in KINDS[:2]),
                f"{len(units)} of {len(rounds)}",
                f"{statistics.median(units):.0f}" if units else "",
                f"{counts:,.0f}",
            ]
        )
    total = ", ".join(
        f"{label}: mean absolute {statistics.mean(sizes[kind]):.1%}, worst {max(sizes[kind]):.1%}"
        for kind, label in KINDS[:2]
    )
    head = ["program", "wall", "CPU", "runs corrected", "ns per callback", "callbacks"]
    return (
        "## Error of corrected times\n\nTime of a full run minus what the report takes out of it, "
        "against the unprofiled run: median over the rounds (lowest to highest). A run whose "
        f"interval was too wide is not corrected and counts as it is.\n\n{_table(head, rows)}\n\n"
        f"{total}."
    )


def _bias_row(name: str, rounds: list[Round]) -> dict[str, Any]:
    plain = statistics.median(each["unprofiled"]["wall_s"] for each in rounds)
    raw = statistics.median(overheads(rounds, "full", "wall_s"))
    return {
        "workload": name,
        "unprofiled_s": plain,
        "raw_s": plain * (1 + raw),
        "corrected_s": plain * (1 + bias(rounds, "wall_s")),
    }


def _share_table(programs: dict[str, list[Round]]) -> str:
    rows = []
    for name, rounds in programs.items():
        differences = share_differences(rounds)
        attributed = min(each["full"]["attributed"] for each in rounds)
        dropped = max(each["full"]["dropped_events"] for each in rounds)
        worst = max(differences, key=lambda level: abs(differences[level]), default="")
        number = sum(each["sample"]["levels"][0]["samples"] for each in rounds if "sample" in each)
        rows.append(
            [
                name,
                f"{attributed:.2%}",
                str(dropped),
                f"{100 * differences[worst]:+.1f} ({worst})" if worst else "",
                f"{number:,}",
            ]
        )
    head = ["program", "attributed, least", "dropped events", "sampler's share minus ours, worst"]
    return (
        "## Time attributed, and the sampler\n\nShare of the recorded time that has a level, and "
        "points of the process's time between the level shares of full runs and of separate runs "
        "in sample mode.\n\n" + _table([*head, "samples"], rows)
    )
