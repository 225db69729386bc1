"""The Python stacks that were seen, and what they say: functions and lines by operation.

Of the main thread of each process. A sample stands for the time since the one before, so times sum
to that of the recording. It belongs to the operation that the thread was in at that moment.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any, NamedTuple, TextIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.cells import operation_name
from redline.profile.analyse.decoded import states_at
from redline.profile.analyse.timeline import OTHER, Timeline
from redline.profile.reader import LARGEST, Process, printable, regular_size

Key = TypeVar("Key")

MAX_LISTED = 200  # functions, and lines, of each process
LINES_AT_ONCE = 4096
LONGEST_LINE = 1 << 16  # characters; the longest path that Linux opens has 4096
NO_CALLER = -1
IMPORTER = "<frozen importlib"  # in the name of the file of what imports
OF_PROFILER = "/redline/profile/record/"  # what stands around functions that are observed
INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
INSIDE = "/(?:lib/python[^/]*/)?(?:site|dist)-packages/|/lib/python[^/]*/"
MODULE_BODY = "<module>"

__all__ = [
    "Code",
    "FlameNode",
    "ImportRow",
    "Node",
    "PythonFunction",
    "PythonLine",
    "Stacks",
    "flame",
    "hottest_line",
    "import_rows",
    "is_of_program",
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
        main = timeline.process.main_shard
        for thread in timeline.threads:
            if thread.index != main:
                continue
            edges = [timeline.begin_ns, timeline.until_ns]
            first, last = np.searchsorted(self.times_ns, edges, side="left").tolist()
            last = len(self.times_ns) if timeline.is_last else last
            into = [
                self._place(OTHER if state is None else operation_name(timeline, state))
                for state in thread.states
            ]
            numbers = states_at(thread.stream, self.times_ns[first:last])
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


@dataclass(frozen=True, slots=True)
class ImportRow:
    """One import of the program, with all that it imports in turn."""

    process: str
    pid: int
    module: str  # "" where none of the module's own code was seen
    file: str  # of the line that imports
    line: int
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
    for are_samples, rows in _runs(process):
        if are_samples and _take_samples(rows, len(nodes), seen):
            continue
        for row in rows:
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


def _runs(process: Process) -> Iterator[tuple[bool, list[Any]]]:
    """Some rows after another, and whether they are samples: an hour's file has some 10 MB."""
    path = process.directory / layout.STACKS
    try:
        regular_size(path)
        with path.open(errors="replace") as file:
            every = _lines(file, process)
            while lines := list(islice(every, LINES_AT_ONCE)):
                for are_samples, rows in groupby(_parsed(lines), _is_sample):
                    yield are_samples, list(rows)
    except OSError as error:
        process.note(str(error))


def _lines(file: TextIO, process: Process) -> Iterator[str]:
    """Its lines, up to one that is longer than a recording makes any: a hole is one without end."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE and not line.endswith("\n"):
            process.note(
                f"{layout.STACKS}: a line has more than {LONGEST_LINE:,} characters, and is "
                "ignored with all behind it"
            )
            return
        yield line


def _parsed(lines: list[str]) -> list[Any]:
    """What they say; None for those that are no JSON."""
    try:
        found: list[Any] = json.loads(f"[{','.join(lines)}]")
        if len(found) == len(lines):
            return found
    except (ValueError, RecursionError):
        pass  # one by one, then
    return [_parsed_alone(line) for line in lines]


def _parsed_alone(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_sample(row: Any) -> bool:
    # Of every row: an hour has some 360,000. What json reads is a list, not a kind of one.
    if type(row) is not list:
        return False
    values = cast(list[Any], row)
    return len(values) == 4 and values[0] == "at"


def _take_samples(rows: list[Any], nodes: int, seen: array[int]) -> bool:
    """Take them all at once, if they all make sense."""
    values = [row[1:] for row in rows]
    if set(map(type, chain.from_iterable(values))) != {int}:
        return False
    try:
        table = np.array(values, np.int64)
    except OverflowError:
        return False
    leaves = table[:, 1]
    if table[:, ::2].min() < 0 or table.max() >= LARGEST:
        return False
    if leaves.min() < NO_CALLER or leaves.max() >= nodes:
        return False
    seen.frombytes(table.tobytes())
    return True


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


def is_of_program(file: str) -> bool:
    """Whether a file is the program's own: neither installed nor Python's."""
    return not file.startswith("<") and not any(part in file for part in INSTALLED)


def _shown_stack(stacks: Stacks, leaf: int) -> list[Node]:
    """A stack without the import system and what observes: their time is their caller's."""
    return [node for node in stack_of(stacks, leaf) if _is_shown(stacks.codes[node.code].file)]


def _is_shown(file: str) -> bool:
    return not file.startswith(IMPORTER) and OF_PROFILER not in file


def hottest_line(stacks: Stacks) -> dict[str, tuple[list[Node], int, int]]:
    """{operation: (the commonest stack that ends in the hottest line, ns there, ns in all)}."""
    own: dict[str, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    longest: dict[tuple[str, tuple[int, int]], tuple[int, list[Node]]] = {}
    whole: dict[str, int] = defaultdict(int)
    for (operation, leaf), (ns, _) in _by_leaf(stacks).items():
        whole[operation] += ns
        stack = _shown_stack(stacks, leaf)
        if not stack:
            continue
        at = _line_of(stack[-1])
        own[operation][at] += ns
        if ns > longest.get((operation, at), (-1, stack))[0]:
            longest[operation, at] = ns, stack
    found: dict[str, tuple[list[Node], int, int]] = {}
    for operation, lines in own.items():
        at = max(sorted(lines), key=lines.__getitem__)
        found[operation] = longest[operation, at][1], lines[at], whole[operation]
    return found


def import_rows(process: Process, stacks: Stacks) -> list[ImportRow]:
    """The imports that the program itself makes, the costliest first.

    A module is named by the file of the first module body that an import runs; finding and reading
    it is known by the line that imports.
    """
    spent: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(lambda: [0, 0])
    )
    for (_, leaf), (ns, samples) in _by_leaf(stacks).items():
        stack = stack_of(stacks, leaf)
        files = [stacks.codes[node.code].file for node in stack]
        first = next((i for i, file in enumerate(files) if file.startswith(IMPORTER)), 0)
        if first > 0:
            by_module = spent[_line_of(_importing(stacks, stack[:first]))]
            row = by_module[_imported(stacks, stack[first:])]
            row[0] += ns
            row[1] += samples
    rows: list[ImportRow] = []
    for (code, line), by_module in spent.items():
        found = by_module.pop("", [0, 0])
        if not by_module:
            by_module[""] = [0, 0]
        costliest = by_module[max(sorted(by_module), key=lambda name: by_module[name][0])]
        costliest[0] += found[0]
        costliest[1] += found[1]
        file = stacks.codes[code].file
        rows += [
            ImportRow(process.name, process.pid, module, file, line, ns / 1e9, samples)
            for module, (ns, samples) in by_module.items()
        ]
    return sorted(rows, key=lambda row: -row.total_s)[:MAX_LISTED]


def _importing(stacks: Stacks, stack: list[Node]) -> Node:
    """The program's line that imports, else whatever line does."""
    own = [node for node in stack if is_of_program(stacks.codes[node.code].file)]
    return own[-1] if own else stack[-1]


def _imported(stacks: Stacks, stack: list[Node]) -> str:
    """The first module whose body runs; "" while it is looked for or read."""
    codes = (stacks.codes[node.code] for node in stack)
    return next((_module_of(code.file) for code in codes if code.function == MODULE_BODY), "")


def _module_of(file: str) -> str:
    """The module that a file holds, as far as its path tells."""
    *_, inside = re.split(INSIDE, file)
    if inside.startswith("/"):
        names = inside.split("/")
        inside = "/".join(names[-2:]) if names[-1] == "__init__.py" else names[-1]
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


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
        keys = [key(node) for node in _shown_stack(stacks, leaf)]
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
