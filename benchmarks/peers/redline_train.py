"""Train with Redline and time the steady part; prints one JSON object.

    PYTHON -m benchmarks.peers.redline_train --algo sac --settings JSON --warmup 500 \
        --measured 600 --threads 1

Works with any revision of Redline that lies on the import path: the clock looks in after each
iteration of the training loop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.stopwatch import Stopwatch


class _MeasuredError(Exception):
    """The clock has seen enough."""


def main() -> None:
    """Train until the clock has run, then print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", required=True)
    parser.add_argument("--settings", required=True, help="JSON object of `redline.train`'s")
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--measured", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", help="a piece of `benchmarks/pieces.py` to leave out")
    arguments = parser.parse_args()
    stopwatch = Stopwatch(arguments.warmup, arguments.measured)

    with contextlib.suppress(ImportError):  # earlier revisions do this when they are imported
        from redline.train.process import before_torch_loads

        before_torch_loads()
    import redline
    from redline.train.loops.loop import TrainLoop

    if arguments.without:
        from benchmarks.pieces import PIECES

        PIECES[arguments.without][0]()
    iterate = TrainLoop._iterate
    first_iteration_s: list[float] = []
    compiled: dict[str, float] = {}

    def timed(loop: Any) -> None:
        begin = time.perf_counter()
        iterate(loop)
        if not first_iteration_s:
            first_iteration_s.append(time.perf_counter() - begin)
        if stopwatch.reached(loop.counters.env_steps):
            # Held to the written update on the first batch, which names the engine.
            step = getattr(getattr(loop._update_algorithm, "engine", None), "compiled", None)
            names = ("compile_s", "graphs", "graph_breaks", "recompilations")
            if step is not None:
                compiled.update({name: getattr(step, name) for name in names})
            raise _MeasuredError

    TrainLoop._iterate = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        settings = {
            "out": str(Path(directory) / "run"),
            "seed": arguments.seed,
            "num_threads": arguments.threads,
            "total_env_steps": 10 * (arguments.warmup + arguments.measured),
            "checkpoints": "none",
            "tensorboard": False,
            "quiet": True,
        } | json.loads(arguments.settings)
        with contextlib.suppress(_MeasuredError):
            redline.train(arguments.algo, **settings)
        stored = json.loads((Path(directory) / "run" / "config.json").read_text())
    stopwatch.print_result(
        first_iteration_s=first_iteration_s[0],
        accelerate=stored["run"].get("accelerate", "eager"),
        compiled=compiled,
    )


if __name__ == "__main__":
    main()
