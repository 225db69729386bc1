"""The Python stacks that were seen, and what they say: functions and lines by operation.

Of the main thread of each process. A sample stands for the time since the one before, so times sum
to that of the recording. It belongs to the operation that the thread was in at that moment.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.cells import operation_name
from redline.profile.analyse.timeline import OTHER, Timeline
from redline.profile.reader import LARGEST, Process, printable, regular_size

Key = TypeVar("Key")

MAX_LISTED = 200  # functions, and lines, of each process
NO_CALLER = -1

__all__ = [
    "Code",
    "FlameNode",
    "Node",
    "PythonFunction",
    "PythonLine",
    "Stacks",
    "flame",
    "python_functions",
    "python_lines",
    "read_stacks",
    "stack_of",
    "stacks_of",
]


CallPath = tuple[str, tuple[int, ...]]  # an operation, and the codes called in it


class Code(NamedTuple):
    """A Python function."""

    function: str  # qualified name
    file: str
    line: int  # where it begins


class Node(NamedTuple):
    """A line of a function, told apart by who called it."""

    caller: int  # a node, or NO_CALLER
    code: int
    line: int


@dataclass(slots=True)
class Stacks:
    """What was seen of one process.

    `add` says what the process did meanwhile, slice by slice; what a sample was in is `other`
    until then.
    """

    codes: list[Code]
    nodes: list[Node]  # a caller comes before whom it calls
    times_ns: NDArray[np.int64]  # [N] since the process's base
    leaves: NDArray[np.int64]  # [N] nodes; NO_CALLER: no Python code
    weights_ns: NDArray[np.int64]  # [N] the time each sample stands for
    names: list[str]  # of operations
    places: NDArray[np.uint16]  # [N] in `names`

    @property
    def operations(self) -> list[str]:
        """[N] what each sample was in."""
        return [self.names[place] for place in self.places.tolist()]

    def add(self, timeline: Timeline) -> None:
        """What the main thread was in, in this slice, whoever led."""
        main = timeline.process.sources[0].index if timeline.process.sources else None
        for thread in timeline.threads:
            if thread.index != main:
                continue
            edges = [timeline.begin_ns, timeline.until_ns]
            first, last = np.searchsorted(self.times_ns, edges, side="left").tolist()
            last = len(self.times_ns) if timeline.is_last else last
            at = np.searchsorted(thread.stream[0], self.times_ns[first:last], side="right")
            into = [
                self._place(OTHER if state is None else operation_name(timeline, state))
                for state in thread.states
            ]
            numbers = np.concatenate([[0], thread.stream[1]])[at]
            self.places[first:last] = np.array(into, np.uint16)[numbers]

    def _place(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """One function of Python code in one operation of a process."""

    process: str
    pid: int
    operation: str
    function: str
    file: str
    line: int  # where it begins
    self_s: float  # in its own lines and the native code they call
    total_s: float  # with the Python code that it calls; recursion counts once
    samples: int  # of `total_s`


@dataclass(frozen=True, slots=True)
class PythonLine:
    """One line of Python code in one operation of a process."""

    process: str
    pid: int
    operation: str
    file: str
    line: int
    function: str
    self_s: float
    total_s: float
    samples: int


class FlameNode(NamedTuple):
    """A box of the flame graph: an operation, or a function called by its parent's."""

    parent: int  # place in the list; -1 of operations
    name: str
    file: str  # "" of operations
    line: int
    total_s: float


def stacks_of(timeline: Timeline) -> Stacks | None:
    """The samples of a process, and what it was in; None if there are none."""
    stacks = read_stacks(timeline.process)
    if stacks is not None:
        stacks.add(timeline)
    return stacks


def read_stacks(process: Process) -> Stacks | None:
    """The samples of a process; None if there are none.

    Rows that make no sense are left out, and counted among the process's problems.
    """
    path = process.directory / layout.STACKS
    if not path.exists():
        return None
    codes: dict[int, Code] = {}
    nodes: dict[int, Node] = {}
    seen = array("q")  # time, leaf, weight of each sample
    odd = 0
    for row in _rows(process):
        try:
            _take(row, codes, nodes, seen)
        except (TypeError, ValueError, LookupError):
            odd += 1
    if odd:
        process.note(f"{path.name}: {odd} lines that make no sense, ignored")
    table = np.array(seen, np.int64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Stacks(
        codes=list(codes.values()),
        nodes=list(nodes.values()),
        times_ns=table[:, 0],
        leaves=table[:, 1],
        weights_ns=table[:, 2],
        names=[OTHER],
        places=np.zeros(len(table), np.uint16),
    )


def _rows(process: Process) -> Iterator[Any]:
    """One by one: an hour's file has some 10 MB."""
    path = process.directory / layout.STACKS
    try:
        regular_size(path)
        with path.open(errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    yield None
    except OSError as error:
        process.note(str(error))


def _take(row: Any, codes: dict[int, Code], nodes: dict[int, Node], seen: array[int]) -> None:
    kind, *values = row
    if kind == "code":
        number, function, file, line = values
        if number != len(codes):
            raise ValueError("out of turn")
        codes[number] = Code(printable(function), printable(file), _whole(line))
    elif kind == "node":
        number, caller, code, line = values
        if number != len(nodes) or code not in codes or not NO_CALLER <= caller < len(nodes):
            raise ValueError("out of turn")
        nodes[number] = Node(_whole(caller), _whole(code), -1 if line is None else _whole(line))
    elif kind == "at":
        time_ns, leaf, weight_ns = map(_whole, values)
        if not NO_CALLER <= leaf < len(nodes) or min(time_ns, weight_ns) < 0:
            raise ValueError("of no node")
        seen.extend((time_ns, leaf, weight_ns))
    else:
        raise ValueError("unknown")


def _whole(value: Any) -> int:
    if type(value) is not int or not -LARGEST < value < LARGEST:
        raise TypeError("not a number that can be")
    return value


def stack_of(stacks: Stacks, leaf: int) -> list[Node]:
    """The nodes of a stack, the outermost first."""
    found: list[Node] = []
    while leaf != NO_CALLER:
        node = stacks.nodes[leaf]
        found.append(node)
        leaf = node.caller
    return found[::-1]


def _by_leaf(stacks: Stacks) -> dict[tuple[str, int], tuple[int, int]]:
    """{(operation, leaf): (ns, samples)}."""
    nodes = len(stacks.nodes) + 1
    keys = stacks.places.astype(np.int64) * nodes + stacks.leaves + 1
    every, which = np.unique(keys, return_inverse=True)
    spent = np.zeros(len(every), np.int64)
    np.add.at(spent, which, stacks.weights_ns)
    rows = zip(
        every.tolist(), spent.tolist(), np.bincount(which, minlength=0).tolist(), strict=True
    )
    return {(stacks.names[key // nodes], key % nodes - 1): (ns, n) for key, ns, n in rows}


def _spent(
    stacks: Stacks, key: Callable[[Node], Key]
) -> list[tuple[str, Key, tuple[int, int, int]]]:
    """(operation, key, (own ns, ns with calls, samples)) of what `key` makes of nodes."""
    found: dict[tuple[str, Key], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (operation, leaf), (ns, samples) in _by_leaf(stacks).items():
        keys = [key(node) for node in stack_of(stacks, leaf)]
        for each in set(keys):
            row = found[operation, each]
            row[1] += ns
            row[2] += samples
        if keys:
            found[operation, keys[-1]][0] += ns
    hottest = sorted(found.items(), key=lambda item: (-item[1][0], -item[1][1]))[:MAX_LISTED]
    return [(*name, (row[0], row[1], row[2])) for name, row in hottest]


def _code_of(node: Node) -> int:
    return node.code


def _line_of(node: Node) -> tuple[int, int]:
    return node.code, node.line


def python_functions(process: Process, stacks: Stacks) -> list[PythonFunction]:
    """Functions by operation, by the time in their own lines."""
    found: list[PythonFunction] = []
    for operation, number, (own, whole, samples) in _spent(stacks, _code_of):
        found.append(
            PythonFunction(
                process.name,
                process.pid,
                operation,
                *stacks.codes[number],
                self_s=own / 1e9,
                total_s=whole / 1e9,
                samples=samples,
            )
        )
    return found


def python_lines(process: Process, stacks: Stacks) -> list[PythonLine]:
    """Lines by operation, by the time in the line itself."""
    found: list[PythonLine] = []
    for operation, (number, line), (own, whole, samples) in _spent(stacks, _line_of):
        code = stacks.codes[number]
        found.append(
            PythonLine(
                process.name,
                process.pid,
                operation,
                code.file,
                line,
                code.function,
                self_s=own / 1e9,
                total_s=whole / 1e9,
                samples=samples,
            )
        )
    return found


def flame(stacks: Stacks, smallest: float = 0.002) -> list[FlameNode]:
    """The boxes of a flame graph: each operation with the functions called in it.

    Args:
        stacks: of a process.
        smallest: boxes of a smaller share of the whole are left out.
    """
    times: dict[CallPath, int] = defaultdict(int)
    for (operation, leaf), (ns, _) in _by_leaf(stacks).items():
        path: CallPath = (operation, ())
        times[path] += ns
        for node in stack_of(stacks, leaf):
            path = (operation, (*path[1], node.code))
            times[path] += ns
    whole = sum(ns for (_, codes), ns in times.items() if not codes)
    shown = [path for path, ns in times.items() if ns >= smallest * whole and ns > 0]
    shown.sort(key=lambda path: (len(path[1]), path))
    places = {path: place for place, path in enumerate(shown)}
    boxes: list[FlameNode] = []
    for path in shown:
        operation, codes = path
        if codes:
            parent, code = places[operation, codes[:-1]], stacks.codes[codes[-1]]
        else:
            parent, code = -1, Code(operation, "", 0)
        boxes.append(FlameNode(parent, *code, total_s=times[path] / 1e9))
    return boxes
