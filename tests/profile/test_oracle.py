"""Programs that know where their own time went, compared with what the profile says.

Each stretch of a program tells how long it took by its own clock, so that a busy machine lengthens
both alike. Only what hits between a stretch and its probe can differ: then a program may run again.
Where a program has more processes than cores, its operations are `ready` for some time, and no cell
is known better than that.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

PRELUDE = """
import json, sys, time, threading, multiprocessing
import torch, mujoco
from redline import profile
from redline.profile.record.recorder import current

truth = {}
MS = 1_000_000

def stretch(operation, level, work, *args):
    key = f"{operation}/{level}"
    truth[key] = truth.get(key, 0) + work(*args)

def python(ns):
    begin = time.monotonic_ns()
    while (spent := time.monotonic_ns() - begin) < ns:
        pass
    return spent

def wait(ns):
    begin = time.monotonic_ns()
    time.sleep(ns / 1e9)
    return time.monotonic_ns() - begin

def report():
    print(json.dumps({"name": multiprocessing.current_process().name, "truth": truth}), flush=True)

# A name is written to a file when it is first met: not within a stretch, where files are slow.
for name in ("training", "inference", "simulation", "inner", "after", "learner", "join", "idle"):
    profile.operation(name)
for native in (torch, mujoco):
    native.spin(0)
    native.call(int)
wait(0)
"""


def close(measured_ns: int, true_ns: int, ready_ns: int = 0) -> bool:
    return abs(measured_ns - true_ns) <= max(0.02 * true_ns, 1_000_000) + ready_ns


def by_operation_and_level(cells: dict[Any, int]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (_, operation, level, _), ns in cells.items():
        totals[f"{operation}/{level}"] = totals.get(f"{operation}/{level}", 0) + ns
    return totals


def differences(profiled: Any, output: str) -> list[tuple[str, str, int, int]]:
    """(process, operation/level, measured, true) of all cells that are not as told."""
    cells = profiled.cells()
    found = []
    for line in output.splitlines():
        told = json.loads(line)
        name = "program.py" if told["name"] == "MainProcess" else told["name"]
        measured = by_operation_and_level(cells[name])
        for key, true_ns in told["truth"].items():
            ready_ns = measured.get(f"{key.partition('/')[0]}/ready", 0)
            if not close(measured.get(key, 0), true_ns, ready_ns):
                found.append((name, key, measured.get(key, 0), true_ns))
    return found


def check(profiled: Any, program: str, processes: int = 1) -> None:
    for _ in range(4):
        done = profiled.run(PRELUDE + program, calibrate=False)
        assert len(done.stdout.splitlines()) == processes
        found = differences(profiled, done.stdout)
        if not found:
            return
    raise AssertionError(found)


@pytest.mark.usefixtures("with_scheduler")
def test_every_cell_of_three_processes(profiled: Any) -> None:
    """Nested operations, all four levels, a spawned and a forked child."""
    check(
        profiled,
        """
def work(scale):
    for _ in range(3):
        with profile.operation("training"):
            stretch("training", "python", python, 4 * scale * MS)
            with profile.operation("inference"):
                stretch("inference", "backend", torch.spin, 3 * scale * MS)
                stretch("inference", "python", python, 2 * scale * MS)
                with profile.operation("simulation"):
                    stretch("simulation", "simulator", mujoco.spin, 5 * scale * MS)
                stretch("inference", "waiting", wait, 4 * scale * MS)
            stretch("training", "backend", torch.spin, 6 * scale * MS)
        stretch("other", "simulator", mujoco.spin, 2 * scale * MS)
    report()

if __name__ == "__main__":
    children = [
        multiprocessing.get_context(method).Process(target=work, args=(2,), name=method)
        for method in ("spawn", "fork")
    ]
    for child in children:
        child.start()
    work(1)
    for child in children:
        child.join()
""",
        processes=3,
    )


def test_python_below_a_native_call_is_python_again(profiled: Any) -> None:
    """Python -> back end -> Python -> simulator, and back end -> Python -> back end."""
    check(
        profiled,
        """
def inner():
    with profile.operation("inner"):
        stretch("inner", "python", python, 20 * MS)
    stretch("other", "simulator", mujoco.spin, 10 * MS)
    torch.call(innermost)

def innermost():
    with profile.operation("inner"):
        stretch("inner", "python", python, 5 * MS)

torch.call(inner)
stretch("other", "backend", torch.spin, 15 * MS)
report()
""",
    )


def test_exceptions_leave_every_level(profiled: Any) -> None:
    check(
        profiled,
        """
def fail():
    raise KeyError("boom")

def fails_deep():
    torch.call(fail)

for _ in range(20):
    try:
        with profile.operation("inference"):
            mujoco.call(fails_deep)
    except KeyError:
        pass
    try:
        torch.spin("no number")
    except TypeError:
        pass
with profile.operation("after"):
    stretch("after", "python", python, 20 * MS)
    stretch("after", "simulator", mujoco.spin, 30 * MS)
report()
""",
    )


def test_a_process_waits_only_while_all_its_threads_wait(profiled: Any) -> None:
    """The learner spins, GIL held, when the first thread has long reached `join`.

    If it had not, it would wait for the GIL in Python, which nothing tells from running.
    """
    check(
        profiled,
        """
def run():
    wait(50 * MS)
    with profile.operation("learner"):
        stretch("learner", "simulator", mujoco.spin, 30 * MS)

def both():
    thread = threading.Thread(target=run)
    thread.start()
    with profile.operation("join"):
        thread.join()

both()
with profile.operation("idle"):
    stretch("idle", "waiting", wait, 20 * MS)
report()
""",
    )


def test_levels_of_a_deeply_recursive_program(profiled: Any) -> None:
    """Native and Python code in turns, deeper than the observed stack holds."""
    check(
        profiled,
        """
def descend(depth):
    if depth:
        torch.call(lambda: descend(depth - 1))

sys.setrecursionlimit(10_000)
for _ in range(3):
    descend(220)
with profile.operation("after"):
    stretch("after", "python", python, 20 * MS)
    stretch("after", "simulator", mujoco.spin, 20 * MS)
report()
""",
    )


def test_phases_split_the_time_of_the_process(profiled: Any) -> None:
    program = """
with profile.phase("warm-up"):
    stretch("warm-up", "simulator", mujoco.spin, 10 * MS)
with profile.phase("training"):
    stretch("training", "simulator", mujoco.spin, 30 * MS)
report()
"""
    for _ in range(4):  # a busy machine may stop the program between a probe and the clock
        done = profiled.run(PRELUDE + program, calibrate=False)
        truth = json.loads(done.stdout)["truth"]
        cells = profiled.cells()["program.py"]
        pairs = [
            (cells[phase, "other", "simulator", False], truth[f"{phase}/simulator"])
            for phase in ("warm-up", "training")
        ]
        if all(close(*pair) for pair in pairs):
            return
    raise AssertionError(pairs)
