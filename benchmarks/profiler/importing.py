"""What full mode adds to imports, beside what the correction takes them to cost.

Imports lie before the first calibration block, so nothing in a session measures their cost. It is
computed from the two terms that are usual for the Python that runs, and here is how well that fits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.profiler.pairs import run
from redline.profile.analyse.correction import prior_of
from redline.profile.analyse.summary import summarize

MODULES = (
    "numpy",
    "torch, gymnasium",
    "torch, gymnasium, torch._dynamo",
    "torch, gymnasium, stable_baselines3",
    "asyncio, email.message, http.client, hypothesis, pytest, sqlite3, unittest, xml.dom.minidom",
)

__all__ = ["measure_imports"]


def one_pair(words: list[str]) -> dict[str, float]:
    """CPU seconds without a recording, what one adds, and what the terms say it does."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        profiler = [sys.executable, "-m", "redline.profile", "profile", "--out", "session", "--"]
        for place in ("plain", "full"):
            (directory / place).mkdir()
        plain = run(words, directory / "plain", None, clocked=True)
        run([*profiler, *words], directory / "full", None)
        summary = summarize(directory / "full" / "session")
    (overhead,) = summary.overhead
    prior = prior_of([sys.version.split()[0]])
    interpreted = sum(cell.raw_s for cell in summary.cells if cell.level == "python")
    return {
        "plain_s": plain["inside_cpu_s"],
        "added_s": summary.processes[0].cpu_s - plain["inside_cpu_s"],
        "callbacks": overhead.count,
        "computed_s": prior.callback_ns * overhead.count / 1e9 + prior.slowdown * interpreted,
    }


def measure_imports(options: argparse.Namespace) -> None:
    """All sets of modules, and their table."""
    facts: dict[str, Any] = describe()
    lines = [
        "| imported | pairs | CPU s | added s | computed s | added / computed | callbacks |",
        "|---" * 7 + "|",
    ]
    for modules in MODULES:
        words = [sys.executable, "-c", f"import {modules}"]
        pairs = [one_pair(words) for _ in range(options.pairs)]
        middle = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
        ratios = sorted(pair["added_s"] / pair["computed_s"] for pair in pairs)
        lines.append(
            f"| {modules} | {len(pairs)} | {middle['plain_s']:.2f} | {middle['added_s']:.2f} | "
            f"{middle['computed_s']:.2f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to "
            f"{ratios[-1]:.2f}) | {middle['callbacks']:,.0f} |"
        )
        print(lines[-1], flush=True)
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    options.out.mkdir(parents=True, exist_ok=True)
    short = ".".join(facts["python"].split(".")[:2])
    table = "\n".join(lines)
    (options.out / f"imports-{short}.md").write_text(
        f"# Full mode and imports on Python {facts['python']}\n\n"
        "```bash\npython -m benchmarks.profiler imports\n```\n\n"
        f"Medians (lowest to highest).\n\n{table}\n\n| machine | |\n|---|---|\n{rows}\n"
    )
