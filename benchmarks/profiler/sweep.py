"""How fast sessions are analyzed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import as_markdown, describe
from redline.profile import layout, levels
from redline.profile.analyse.overlap import overlap
from redline.profile.record.files import create_session


def measure_sweep(events: int, results: Path) -> None:
    """Intervals per second, and a synthetic session from disk to summary.

    Args:
        events: begins and ends.
        results: directory of sweep.json and sweep.md.
    """
    rng, count = np.random.default_rng(0), events // 2
    intervals = {}
    for label in ("python", "backend", "simulator", "gpu"):
        edges = np.cumsum(rng.integers(1, 2000, 2 * (count // 4))).astype(np.int64)
        intervals[label] = edges.reshape(-1, 2)
    edges_total = 2 * sum(map(len, intervals.values()))
    seconds = min(timed(lambda: overlap(intervals)) for _ in range(3))
    with tempfile.TemporaryDirectory() as directory:
        session = Path(directory) / "session"
        size = synthetic_session(session, events, rng)
        code = (
            "import json, resource, sys, time\n"
            "from redline.profile.analyse.summary import summarize\n"
            "began = time.perf_counter()\nsummary = summarize(sys.argv[1])\n"
            "took = time.perf_counter() - began, time.process_time()\n"
            "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
            "print(json.dumps([*took, peak]))\n"
        )
        command = [sys.executable, "-c", code, str(session)]
        done = [subprocess.run(command, check=True, capture_output=True) for _ in range(3)]
    end_to_end = [json.loads(each.stdout) for each in done]
    row = {
        "events": events,
        "overlap_events_per_s": edges_total / seconds,
        "analysis_s": min(each[0] for each in end_to_end),
        "process_cpu_s": min(each[1] for each in end_to_end),  # imports and all
        "peak_bytes": max(each[2] for each in end_to_end),
        "bytes_per_event": size / events,
    }
    head = (
        "| events | sweep, events per CPU s | analysis s | process CPU s | peak memory MiB | "
        "bytes per event |"
    )
    line = (
        f"| {row['events']:,} | {row['overlap_events_per_s']:,.0f} | {row['analysis_s']:.2f} | "
        f"{row['process_cpu_s']:.2f} | {row['peak_bytes'] / 2**20:.0f} | "
        f"{row['bytes_per_event']:.2f} |"
    )
    table = "\n".join([head, "|---" * (head.count("|") - 1) + "|", line])
    print(table)
    text = (
        f"# Profiler: analysis\n\n```bash\npython -m benchmarks.profiler sweep --events {events}\n"
        f"```\n\nBest of three; an event is a begin or an end. One core.\n\n{table}\n\n"
    )
    results.mkdir(parents=True, exist_ok=True)
    (results / "sweep.md").write_text(text + as_markdown())
    (results / "sweep.json").write_text(
        json.dumps({"machine": describe(), "results": [row]}, indent=1) + "\n"
    )


def timed(action: Any) -> float:
    """CPU seconds that a call takes: a machine that does other things, too, cannot inflate them."""
    began = time.process_time()
    action()
    return time.process_time() - began


def synthetic_session(directory: Path, events: int, rng: np.random.Generator) -> int:
    """Steps of simulation and inference with twenty native calls each; its size in bytes."""
    import pyarrow as pa

    lock = create_session(directory, mode="full", command=["synthetic"])
    home = directory / "processes" / "1-0"
    home.mkdir()
    names = [
        (8, "operation", "simulation", 0, None),
        (9, "operation", "inference", 0, None),
        (10, "call", "mj_step", levels.SIMULATOR, "mujoco"),
        (11, "call", "linear", levels.BACKEND, "torch._C._nn"),
    ]
    (home / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in names))
    step = [16, *[20, 21] * 20, 17, 18, *[22, 23] * 20, 19]
    codes = np.tile(np.array(step, np.uint16), events // len(step))
    codes = np.concatenate([np.array([layout.CODE_WINDOW_ON], np.uint16), codes])
    deltas = rng.integers(50, 2000, len(codes)).astype(np.uint32)
    start = {"pid": 1, "parent_pid": 0, "name": "synthetic", "base_ns": 0}
    end = {"time_ns": int(deltas.sum()), "cpu_s": 1.0, "dropped": 0}
    notes = [{"event": "start", **start}, {"event": "end", **end}]
    (home / "process.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    shard = home / "thread-00000.arrow"
    batch = pa.record_batch([pa.array(deltas), pa.array(codes)], ["delta_ns", "code"])
    with pa.ipc.new_stream(str(shard), batch.schema) as stream:
        for at in range(0, len(codes), 1 << 15):
            stream.write_batch(batch.slice(at, 1 << 15))
    lock.release()
    return shard.stat().st_size
