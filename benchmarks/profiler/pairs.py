"""What full mode costs whole programs, and how true the corrected total is: alternating pairs.

Each pair is an unprofiled and a recorded run, in an order that changes from pair to pair. A program
runs once before, so that files and compiled code are in the caches. Cost is that of the whole run,
start and end of the profiler included. Bias is the report's corrected total against the unprofiled
run: what was recorded of the program minus what the report takes out. A recording begins and ends
inside of the interpreter, so the unprofiled run is clocked there, too. Wall time is the first
process's, CPU time that of all of them: a process whose parent ends before it (as those of a fork
server do) becomes this one's child, so that its time is known, too.

Some machines' speed changes by a third from one run to the next, and five pairs do not even that
out. So both runs of a pair can share one core (`--at-once`): the scheduler lets them take turns
every few milliseconds, and whatever slows the one slows the other. Their times are then those in
which they had the core, or waited for anything else.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.third_party import command, environment
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session

IDLE = ("waiting", "ready")
KINDS = (("wall_s", "wall"), ("cpu_s", "CPU"))
MEAN, WORST = 0.03, 0.06  # targets of the bias' size
PROFILER = [sys.executable, "-m", "redline.profile", "profile", "--out", "session", "--"]
PR_SET_CHILD_SUBREAPER = 36  # of <linux/prctl.h>

# Clocks a program from its first line to its exit handlers, as a recording does.
CLOCK = """
import atexit, json, os, resource, time
def ready_s():
    try:
        return int(open("/proc/self/schedstat").read().split()[1]) / 1e9
    except OSError:
        return 0.0
path = os.environ.pop("SPAN_TO", None)
began = time.monotonic(), time.process_time(), ready_s()
def end():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = used.ru_utime + used.ru_stime
    now = time.monotonic(), time.process_time() + children_s, ready_s()
    names = "inside_wall_s", "inside_cpu_s", "inside_ready_s"
    json.dump({name: b - a for name, a, b in zip(names, began, now)}, open(path, "w"))
if path:
    atexit.register(end)
"""

Pair = dict[str, Any]  # {"unprofiled" and "full": {"wall_s", "cpu_s"}, and of "full" what it says}

__all__ = ["bias", "cost", "measure_pairs", "pair_at_once", "pairs_table"]


def run(
    words: list[str], directory: Path, cleanrl: Path | None, *, clocked: bool = False
) -> dict[str, float]:
    """One run: its wall time, and the CPU time of it and all its children, in seconds.

    Args:
        words: the command.
        directory: to run in.
        cleanrl: the clone's folder.
        clocked: also inside of the interpreter.
    """
    env, span = environment(cleanrl), directory / "span.json"
    if clocked:
        (directory / "sitecustomize.py").write_text(CLOCK)
        env["PYTHONPATH"] = os.pathsep.join([str(directory), env["PYTHONPATH"]])
        env["SPAN_TO"] = str(span)
    _adopt_orphans()
    own_children = _children()
    before, began = _cpu_s(), time.perf_counter()
    done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True)
    wall_s, waited_for = time.perf_counter() - began, _cpu_s()
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    inside = json.loads(span.read_text()) if clocked else {}
    _wait_for_orphans(own_children)
    after = _cpu_s()
    if clocked:
        inside["inside_cpu_s"] += after - waited_for
    return {"wall_s": wall_s, "cpu_s": after - before, **inside}


def _adopt_orphans() -> None:
    """Processes whose parent has ended become children of this one."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        reason = os.strerror(ctypes.get_errno())
        raise SystemExit(f"prctl: {reason}. Run this on Linux 3.4 or later")


def _children() -> set[int]:
    """Process ids of this process's children."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == os.getpid():
            found.add(int(path.parent.name))
    return found


def _wait_for_orphans(own: set[int]) -> None:
    """They end soon, as what they were for has; so do those that they leave in turn.

    Args:
        own: children that were there before.
    """
    while orphans := _children() - own:
        for pid in orphans:
            os.waitpid(pid, 0)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def taken_out(directory: Path) -> dict[str, Any]:
    """What the report takes out of the first process' wall time, and of the CPU time of all."""
    session = open_session(directory)
    summary = summarize(session)
    first = summary.processes[0].pid
    costs = [(cell.pid, cell.level, cell.raw_s - cell.corrected_s) for cell in summary.cells]
    ready = [c for c in summary.cells if c.pid == first and c.level == "ready"]
    (overhead,) = summary.overhead
    # On one core the cells are without the time of the profiler's threads already, each in
    # proportion: what of it was laid on waits is left.
    own_s = sum(process.profiler_cpu_s for process in summary.processes)
    idle_s = sum(cell.raw_s for cell in summary.cells if cell.level in IDLE)
    all_s = sum(cell.raw_s for cell in summary.cells)
    threads_s = own_s * (idle_s / all_s if session.manifest["cpus"] == 1 else 1.0)
    return {
        "recorded_wall_s": summary.processes[0].wall_s,
        "recorded_cpu_s": sum(process.cpu_s for process in summary.processes),
        "recorded_ready_s": sum(cell.raw_s for cell in ready),
        "taken_wall_s": sum(cost for pid, _, cost in costs if pid == first),
        "taken_ready_s": sum(cell.raw_s - cell.corrected_s for cell in ready),
        "taken_cpu_s": threads_s + sum(cost for _, level, cost in costs if level not in IDLE),
        "corrected": overhead.corrected,
        "reason": overhead.reason,
        "cost_low_s": overhead.cost_low_s,
        "cost_high_s": overhead.cost_high_s,
        "callbacks": overhead.count,
        "interpreted_s": sum(cell.raw_s for cell in summary.cells if cell.level == "python"),
        "profiler_s": own_s,
        "dropped_events": summary.dropped_events,
    }


def one_pair(words: list[str], number: int, cleanrl: Path | None) -> Pair:
    """Unprofiled and recorded, or the other way round."""
    found: Pair = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for mode in ("unprofiled", "full") if number % 2 == 0 else ("full", "unprofiled"):
            prefix = PROFILER if mode == "full" else []
            place = directory / mode
            place.mkdir()
            clocked = mode == "unprofiled"
            found[mode] = run([*prefix, *words], place, cleanrl, clocked=clocked)
        found["full"] |= taken_out(directory / "full" / "session")
    return found


def pair_at_once(words: list[str], number: int, cleanrl: Path | None) -> Pair:
    """Both at the same time on this process's core, which they share.

    Raises:
        SystemExit: if they have several cores, or one of them fails.
    """
    if len(os.sched_getaffinity(0)) > 1:
        raise SystemExit("--at-once needs a single core: begin with `taskset -c 0`")
    found: Pair = {"at_once": True}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        begun: dict[str, subprocess.Popen[str]] = {}
        for mode in ("unprofiled", "full") if number % 2 == 0 else ("full", "unprofiled"):
            place = directory / mode
            place.mkdir()
            begun[mode] = _begin(mode, words, place, cleanrl)
        errors: dict[str, str] = {}
        readers = [
            threading.Thread(target=lambda m=m, p=p: errors.update({m: p.communicate()[1]}))
            for m, p in begun.items()
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        for mode, process in begun.items():
            if process.returncode:
                raise SystemExit(f"{mode} ended with {process.returncode}:\n{errors[mode][-2000:]}")
        found["unprofiled"] = json.loads((directory / "unprofiled" / "span.json").read_text())
        found["full"] = taken_out(directory / "full" / "session")
    return found


def _begin(mode: str, words: list[str], place: Path, cleanrl: Path | None) -> subprocess.Popen[str]:
    env = environment(cleanrl)
    if mode == "full":
        words = [*PROFILER, *words]
    else:
        (place / "sitecustomize.py").write_text(CLOCK)
        env["PYTHONPATH"] = os.pathsep.join([str(place), env["PYTHONPATH"]])
        env["SPAN_TO"] = str(place / "span.json")
    return subprocess.Popen(
        words, cwd=place, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def cost(pair: Pair, kind: str) -> float:
    """Of recording, relative to the unprofiled run; at once, of what was recorded."""
    full, plain = pair["full"], pair["unprofiled"]
    if not pair.get("at_once"):
        return full[kind] / plain[kind] - 1
    idle = "ready_s" if kind == "wall_s" else ""
    spent = full[f"recorded_{kind}"] - full.get(f"recorded_{idle}", 0.0)
    return spent / (plain[f"inside_{kind}"] - plain.get(f"inside_{idle}", 0.0)) - 1


def bias(pair: Pair, kind: str) -> float:
    """Of the report's corrected total, relative to the unprofiled run."""
    full, plain = pair["full"], pair["unprofiled"]
    corrected = full[f"recorded_{kind}"] - full[f"taken_{kind}"]
    true = plain[f"inside_{kind}"]
    if pair.get("at_once") and kind == "wall_s":
        corrected -= full["recorded_ready_s"] - full["taken_ready_s"]
        true -= plain["inside_ready_s"]
    return corrected / true - 1


def pairs_table(programs: dict[str, list[Pair]]) -> str:
    """Medians over the pairs, with their range."""
    head = "| program | cores | pairs | unprofiled s | cost, wall | cost, CPU | bias, wall |"
    lines = [f"{head} bias, CPU | corrected |", "|---" * 9 + "|"]
    found: dict[str, list[float]] = {kind: [] for kind, _ in KINDS}
    for name, pairs in programs.items():
        plain = statistics.median(pair["unprofiled"]["inside_wall_s"] for pair in pairs)
        at_once = ", shared" if pairs[0].get("at_once") else ""
        cells = [_spread([cost(pair, kind) for pair in pairs]) for kind, _ in KINDS]
        for kind, sizes in found.items():
            biases = [bias(pair, kind) for pair in pairs]
            cells.append(_spread(biases))
            sizes.append(abs(statistics.median(biases)))
        corrected = sum(pair["full"]["corrected"] for pair in pairs)
        middle = " | ".join(cells)
        lines.append(
            f"| {name} | {pairs[0]['cores']}{at_once} | {len(pairs)} | {plain:.2f} | {middle} | "
            f"{corrected} of {len(pairs)} |"
        )
    lines.append("")
    for kind, label in KINDS:
        sizes = found[kind]
        lines.append(
            f"Bias, {label}: mean {statistics.mean(sizes):.1%} (target {MEAN:.0%}), worst "
            f"{max(sizes):.1%} (target {WORST:.0%})."
        )
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):+.1%} ({min(values):+.1%} to {max(values):+.1%})"


def measure_pairs(options: argparse.Namespace) -> None:
    """All pairs that are missing, and the table; each is recorded as soon as it is measured."""
    cleanrl = options.cleanrl.resolve() if options.cleanrl else None
    facts = describe()
    path = options.out / f"pairs-{'.'.join(facts['python'].split('.')[:2])}.json"
    known: dict[str, Any] = {"machine": facts, "scale": options.scale, "programs": {}}
    known["at_once"] = options.at_once
    if path.exists() and not options.fresh:
        known = json.loads(path.read_text())
        if known["scale"] != options.scale:
            raise SystemExit(f"{path} has scale {known['scale']}. Give --fresh, or another --out")
        if known.get("at_once", False) != options.at_once:
            raise SystemExit(f"{path} has pairs of the other kind. Give --fresh, or another --out")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        words = command(name, cleanrl, options.scale)
        pairs: list[Pair] = known["programs"].setdefault(name, [])
        if len(pairs) < options.pairs:
            with tempfile.TemporaryDirectory() as directory:
                run(words, Path(directory), cleanrl)
        while len(pairs) < options.pairs:
            measure = pair_at_once if options.at_once else one_pair
            pairs.append(measure(words, len(pairs), cleanrl) | {"cores": facts["cores"]})
            shown = [f"{cost(pairs[-1], k):+.1%}, bias {bias(pairs[-1], k):+.1%}" for k, _ in KINDS]
            print(f"{name}, pair {len(pairs)}: wall {shown[0]}; CPU {shown[1]}", flush=True)
            path.write_text(json.dumps(known, indent=1) + "\n")
    measured = {name: pairs for name, pairs in known["programs"].items() if pairs}
    table = pairs_table(measured)
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if key != "cores")
    path.with_suffix(".md").write_text(
        f"# Full mode: cost and bias of whole programs on Python {facts['python']}\n\n"
        "```bash\npython -m benchmarks.profiler pairs --cleanrl CLEANRL\n```\n\n"
        f"Median over the pairs (lowest to highest).\n\n{table}\n| machine | |\n|---|---|\n{rows}\n"
    )
    print(table)
