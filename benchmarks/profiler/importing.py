"""What full mode adds to imports, beside what the correction takes them to cost.

Nothing in a session measures what imports cost: they are made once. So the probe rests most of the
time while they last. What it costs in the rest is computed from the two terms that are usual for
the Python that runs, and here is how well that fits.
Both of a pair share one core at the same time, so that what slows the one slows the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.machine import describe
from benchmarks.profiler.pairs import pair_at_once

MODULES = (
    "numpy",
    "torch, gymnasium",
    "torch, gymnasium, torch._dynamo",
    "torch, gymnasium, tyro, torch.utils.tensorboard",
    "torch, envpool, torch.utils.tensorboard",
    "asyncio, email.message, http.client, hypothesis, pytest, sqlite3, unittest, xml.dom.minidom",
)

__all__ = ["measure_imports"]


def one_pair(words: list[str], number: int) -> dict[str, float]:
    """CPU seconds without a recording, what one adds, and what the terms say it does."""
    found = pair_at_once(words, number, None)
    plain_s, full = found["unprofiled"]["inside_cpu_s"], found["full"]
    return {
        "plain_s": plain_s,
        "added_s": full["recorded_cpu_s"] - full["profiler_s"] - plain_s,
        "callbacks": full["callbacks"],
        "computed_s": full["cost_s"],
    }


def measure_imports(options: argparse.Namespace) -> None:
    """All sets of modules, and their table."""
    facts: dict[str, Any] = describe()
    if facts["cores"] != "1":
        raise SystemExit(
            f"{facts['cores']} cores, but what a pair adds is told on one that both share. "
            "Run this with `taskset -c 0`"
        )
    lines = [
        "| imported | pairs | CPU s | added s | computed s | added / computed | callbacks |",
        "|---" * 7 + "|",
    ]
    for modules in MODULES:
        words = [sys.executable, "-c", f"import {modules}"]
        pairs = [one_pair(words, number) for number in range(options.pairs)]
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
        "```bash\ntaskset -c 0 python -m benchmarks.profiler imports\n```\n\n"
        f"Medians (lowest to highest).\n\n{table}\n\n| machine | |\n|---|---|\n{rows}\n"
    )
