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
which they had the core, or waited for anything else. Where they share several cores, processes of
the one wait for cores that those of the other have: then only the CPU times are compared.
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
import time
import traceback
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

# Clocks a program from its first line to its exit handlers, as a recording does. What no recording
# holds is written down to be left out: the CPU time of processes that are not Python's, such as a
# compiler, and what the interpreters of its children take before and after these.
CLOCK = """
import os, time
path, is_first = os.environ.get("SPAN_TO"), "SPAN_OF" not in os.environ
if path:
    os.environ["SPAN_OF"] = str(os.getpid())
    import atexit, json, resource
    def note(word, what):
        with open(f"{path}.{word}", "a") as file:
            file.write(f"{what!r}\\n")
    def inside_s(pid, took_s):
        try:
            lines = open(f"{path}.pythons").read().splitlines()
        except OSError:
            return 0.0
        known = dict(eval(line) for line in lines)
        inside_s = known.get(pid, 0.0)
        return took_s if inside_s is None else inside_s
    def children_s():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    wait = os.waitpid
    def waitpid(pid, options):
        before = children_s()
        found = wait(pid, options)
        if found[0] > 0:
            took_s = children_s() - before
            note("left_out", took_s - inside_s(found[0], took_s))
        return found
    os.waitpid = waitpid
    os.register_at_fork(after_in_child=lambda: note("pythons", (os.getpid(), None)))
    if not is_first:
        note("pythons", (os.getpid(), None))
        before_s = time.process_time()
        def ended():
            note("pythons", (os.getpid(), time.process_time() - before_s + children_s()))
        atexit.register(ended)
if path and is_first:
    def ready_s():
        try:
            return int(open("/proc/self/schedstat").read().split()[1]) / 1e9
        except OSError:
            return 0.0
    began = time.monotonic(), time.process_time(), ready_s()
    def end():
        now = time.monotonic(), time.process_time(), ready_s()
        names = "inside_wall_s", "inside_first_cpu_s", "inside_ready_s"
        found = {name: b - a for name, a, b in zip(names, began, now)}
        json.dump({**found, "inside_children_cpu_s": children_s()}, open(path, "w"))
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
        left_out = Path(f"{span}.left_out")
        seconds = map(float, left_out.read_text().split()) if left_out.exists() else ()
        inside["inside_children_cpu_s"] += after - waited_for - sum(seconds)
        inside["inside_cpu_s"] = inside["inside_first_cpu_s"] + inside["inside_children_cpu_s"]
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
        "cost_s": overhead.cost_s,
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
    """Both at the same time on this process's cores, which they share.

    Raises:
        SystemExit: if one of them fails.
    """
    found: Pair = {"at_once": True}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        modes = ("unprofiled", "full") if number % 2 == 0 else ("full", "unprofiled")
        begun = {mode: _begin(mode, words, directory, cleanrl) for mode in modes}
        for mode, pid in begun.items():
            if os.waitpid(pid, 0)[1]:
                raise SystemExit(f"{mode}: see above")
            found[mode] = json.loads((directory / f"{mode}.json").read_text())
        found["full"] |= taken_out(directory / "full" / "session")
    return found


def _begin(mode: str, words: list[str], directory: Path, cleanrl: Path | None) -> int:
    """One of both runs, in a process of its own: the children that are left to it are this run's.

    Returns:
        The process' id; its result is the file MODE.json of the directory.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        place = directory / mode
        place.mkdir()
        clocked = mode == "unprofiled"
        prefix = [] if clocked else PROFILER
        found = run([*prefix, *words], place, cleanrl, clocked=clocked)
        (directory / f"{mode}.json").write_text(json.dumps(found))
        status = 0
    except BaseException:  # noqa: BLE001 - said here, where it is known; nobody else would
        traceback.print_exc()
    finally:
        os._exit(status)


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


def _compares(pair: Pair, kind: str) -> bool:
    """Whether a kind of time says anything in it."""
    return kind == "cpu_s" or not pair.get("at_once") or int(pair["cores"]) == 1


def pairs_table(programs: dict[str, list[Pair]]) -> str:
    """Medians over the pairs, with their range."""
    head = "| program | cores | pairs | unprofiled s | cost, wall | cost, CPU | bias, wall |"
    lines = [f"{head} bias, CPU | corrected |", "|---" * 9 + "|"]
    found: dict[str, list[float]] = {kind: [] for kind, _ in KINDS}
    for name, pairs in programs.items():
        plain = statistics.median(pair["unprofiled"]["inside_wall_s"] for pair in pairs)
        at_once = ", shared" if pairs[0].get("at_once") else ""
        known = [kind for kind, _ in KINDS if _compares(pairs[0], kind)]
        costs = {kind: _spread([cost(pair, kind) for pair in pairs]) for kind in known}
        biases = {kind: [bias(pair, kind) for pair in pairs] for kind in known}
        cells = [costs.get(kind, "-") for kind, _ in KINDS]
        cells += [_spread(biases[kind]) if kind in known else "-" for kind, _ in KINDS]
        for kind in known:
            found[kind].append(abs(statistics.median(biases[kind])))
        corrected = sum(pair["full"]["corrected"] for pair in pairs)
        middle = " | ".join(cells)
        lines.append(
            f"| {name} | {pairs[0]['cores']}{at_once} | {len(pairs)} | {plain:.2f} | {middle} | "
            f"{corrected} of {len(pairs)} |"
        )
    lines.append("")
    for kind, label in KINDS:
        sizes = found[kind]
        if not sizes:
            continue
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
            for kind, label in KINDS:
                if _compares(pairs[-1], kind):
                    shown = f"{cost(pairs[-1], kind):+.1%}, bias {bias(pairs[-1], kind):+.1%}"
                    print(f"{name}, pair {len(pairs)}: {label} {shown}", flush=True)
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
