"""What Python 3.12 and later lose for good once `sys.monitoring` has told of a function.

    python3.12 -m benchmarks.profiler.lasting [--seconds 3] [--rounds 3]

Python 3.12 joins two instructions into one where it can, and parts them again in every function
that it is asked to tell of. They stay parted when nobody asks any more. So the profiler's blocks
without the probe are as slow as those with it, and no session can measure the loss.

Most workloads are code of the standard library; a second table has short loops, which lose most. A
process is forked, so that all lies where it lay. One of the two is told of every function and call
once, as in full mode, and of nothing after that. Both then do the same work, in turn on one core
every few milliseconds, and their CPU times are compared. Needs the standard library alone. Pin it
to a core.
"""

from __future__ import annotations

import argparse
import ast
import calendar
import copy
import difflib
import fractions
import graphlib
import heapq
import html.parser
import io
import ipaddress
import json.encoder
import os
import pickle
import pprint
import random
import re
import shlex
import statistics
import sys
import textwrap
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "profiler"
STRETCH_S = 0.05

_chance = random.Random(1)
_WORDS = ["".join(_chance.choices("abcdefgh ", k=9)) for _ in range(400)]
_ROWS = [{"a": i, "b": [i, i + 1, _WORDS[i]]} for i in range(300)]
_TREE = ast.parse(Path(textwrap.__file__).read_text())
_PAGE = "<a>" + "".join(f'<b x="{i}">{word}</b>' for i, word in enumerate(_WORDS[:200])) + "</a>"


def _json() -> object:
    private: Any = json.encoder
    encode = private._make_iterencode(
        {}, str, private.py_encode_basestring, None, repr, ":", ",", False, False, False
    )
    return "".join(encode(_ROWS, 0))


def _heap() -> object:
    private: Any = heapq
    heap: list[int] = []
    for i in range(3000):
        heap.append(i * 7919 % 3001)
        private._siftdown(heap, 0, len(heap) - 1)
    return heap


def _regular_expressions() -> object:
    re.purge()
    return [re.compile(rf"(a|b)*c{{{i}}}[x-z]+(?P<n>\d+)") for i in range(10)]


def _pickle() -> object:
    private: Any = pickle
    file = io.BytesIO()
    private._Pickler(file).dump(_ROWS)
    file.seek(0)
    return private._Unpickler(file).load()


def _graph() -> object:
    before = {i: {i * 7 % i} if i else set[int]() for i in range(1, 400)}
    return list(graphlib.TopologicalSorter(before).static_order())


def _statistics() -> object:
    values = [float(i * 37 % 101) for i in range(400)]
    return statistics.variance(values), statistics.median_grouped(values)


def _flat(n: int) -> int:
    total = i = 0
    while i < n:
        total += i & 3
        i += 1
    return total


def _divisors() -> int:
    total = 0
    for a in range(300, 420):
        b = 252
        while b:
            a, b = b, a % b
        total += a
    return total


def _collatz() -> int:
    longest = 0
    for n in range(1, 300):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        longest = max(longest, steps)
    return longest


def _bubbles() -> list[int]:
    values = list(range(60, 0, -1))
    for i in range(len(values)):
        for j in range(len(values) - 1 - i):
            if values[j] > values[j + 1]:
                values[j], values[j + 1] = values[j + 1], values[j]
    return values


def _dot() -> float:
    total = 0.0
    for _ in range(60):
        for x, y in zip([1.5] * 30, [2.5] * 30, strict=True):
            total += x * y
    return total


def _advantages() -> list[float]:
    rewards, values, found = [0.5] * 128, [0.1] * 129, [0.0] * 128
    last = 0.0
    for t in range(127, -1, -1):
        delta = rewards[t] + 0.99 * values[t + 1] - values[t]
        found[t] = last = delta + 0.99 * 0.95 * last
    return found


LOOPS: dict[str, Callable[[], object]] = {
    "a sum of 40 terms": lambda: [_flat(40) for _ in range(1000)],
    "a sum of 40,000 terms": lambda: _flat(40_000),
    "greatest common divisors": _divisors,
    "Collatz sequences": _collatz,
    "bubble sort": _bubbles,
    "products of vectors": _dot,
    "generalized advantages": lambda: [_advantages() for _ in range(20)],
}

WORKLOADS: dict[str, Callable[[], object]] = {
    "json": _json,
    "heapq": _heap,
    "difflib": lambda: list(difflib.ndiff(_WORDS[:60], _WORDS[20:80])),
    "ast": lambda: ast.unparse(_TREE),
    "textwrap": lambda: textwrap.wrap(" ".join(_WORDS), 70),
    "statistics": _statistics,
    "pprint": lambda: pprint.pformat(_ROWS[:60]),
    "fractions": lambda: sum(fractions.Fraction(1, i) for i in range(1, 200)),
    "copy": lambda: copy.deepcopy(_ROWS),
    "calendar": lambda: calendar.TextCalendar().formatyear(2024),
    "ipaddress": lambda: [str(ipaddress.ip_address(i * 7919) + 1) for i in range(500)],
    "shlex": lambda: [shlex.split(" ".join(_WORDS[i : i + 10])) for i in range(0, 60, 10)],
    "html": lambda: html.parser.HTMLParser().feed(_PAGE),
    "graphlib": _graph,
    "re": _regular_expressions,
    "pickle": _pickle,
    "urllib": lambda: [urllib.parse.urlsplit(f"http://h{i}.example/p?q={i}#f") for i in range(300)],
}


def told_of_all(work: Callable[[], object]) -> None:
    """Ask for what full mode asks for, of every function once; then for nothing."""
    monitoring: Any = vars(sys)["monitoring"]
    events, tool = monitoring.events, monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "lasting")
    asked = (events.CALL, events.PY_START, events.PY_RETURN)
    for event in asked:
        monitoring.register_callback(tool, event, lambda *_: monitoring.DISABLE)
    monitoring.set_events(tool, sum(asked) | events.PY_UNWIND)
    for _ in range(3):
        work()
    monitoring.set_events(tool, 0)
    monitoring.free_tool_id(tool)
    for _ in range(3):
        work()


def took(work: Callable[[], object], times: int) -> float:
    """CPU seconds."""
    began = time.thread_time()
    for _ in range(times):
        work()
    return time.thread_time() - began


def beside_a_twin(work: Callable[[], object], seconds: float) -> float:
    """What a process that was told of everything takes beyond its twin, of 1."""
    work()
    times, began = 0, time.perf_counter()
    while time.perf_counter() - began < 8 * STRETCH_S:
        work()
        times += 1
    times, stretches = max(times // 8, 1), max(int(seconds / 2 / STRETCH_S), 1)
    go, told = os.pipe(), os.pipe()
    twin = os.fork()
    if twin == 0:
        os.close(go[1])
        found = 0.0
        for _ in range(stretches):
            os.read(go[0], 1)  # so that it is never ahead
            found += took(work, times)
        os.write(told[1], f"{found!r}\n".encode())
        os._exit(0)
    told_of_all(work)
    mine = 0.0
    for _ in range(stretches):
        os.write(go[1], b".")
        mine += took(work, times)
    plain = float(os.read(told[0], 100))
    os.waitpid(twin, 0)
    return mine / plain - 1


def loss(name: str, seconds: float) -> float:
    """The same in a process of its own: what was told of stays slower."""
    answer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(answer[1], f"{beside_a_twin({**WORKLOADS, **LOOPS}[name], seconds)!r}".encode())
        os._exit(0)
    os.close(answer[1])
    with os.fdopen(answer[0]) as file:
        text = file.read()
    os.waitpid(child, 0)
    return float(text)


def _rows(found: dict[str, list[float]]) -> str:
    return "\n".join(
        f"| {name} | {statistics.median(each):+.1%} | "
        f"{', '.join(f'{one:+.1%}' for one in sorted(each))} |"
        for name, each in found.items()
    )


def main() -> None:
    """All workloads, and their table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiler.lasting")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of all workloads")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    options = parser.parse_args()
    if not hasattr(sys, "monitoring"):
        sys.exit("Python 3.11 has no sys.monitoring. Call it with Python 3.12 or later.")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found: dict[str, list[float]] = {name: [] for name in (*WORKLOADS, *LOOPS)}
    for _ in range(options.rounds):
        for name, each in found.items():
            each.append(loss(name, options.seconds))
    middle = {name: statistics.median(found[name]) for name in WORKLOADS}
    short = ".".join(map(str, sys.version_info[:2]))
    text = f"""# What lasts of having been told of everything, Python {sys.version.split()[0]}

```bash
python{short} -m benchmarks.profiler.lasting --seconds {options.seconds:g} --rounds {options.rounds}
```

CPU time beyond that of a twin which was never told of, on the same core at the same time.

| code of the standard library | median | each round |
|---|---|---|
{_rows({name: found[name] for name in WORKLOADS})}

Mean {statistics.mean(middle.values()):+.1%}, standard deviation \
{statistics.stdev(middle.values()):.1%}, from {min(middle.values()):+.1%} to \
{max(middle.values()):+.1%}.

| short loops | median | each round |
|---|---|---|
{_rows({name: found[name] for name in LOOPS})}
""".replace("\\\n", "")
    print(text)
    (options.out / f"lasting-{short}.md").write_text(text)


if __name__ == "__main__":
    main()
