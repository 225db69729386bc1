"""The readings taken beside the program: CPU per core, memory per process, GPUs as a monitor sees.

A reading belongs to the time since the one before it.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.plain_text import shortened
from redline.profile import layout
from redline.profile.read.notes import has_numbers
from redline.profile.read.regular import lines_of
from redline.profile.reader import Session

GPU_READINGS = (
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "memory_total_bytes",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
)
SPARE_PLACES = 1 << 20  # in tables, that the lines so far need not tell of

__all__ = ["GPU_READINGS", "MachineSamples", "read_machine_samples"]


@dataclass(frozen=True, slots=True)
class MachineSamples:
    """Readings over time; NaN where one is not known."""

    times_ns: NDArray[np.int64]  # [N] CLOCK_MONOTONIC
    cpu: NDArray[np.float64]  # [N, cores] busy share, of 1
    cores: list[int]
    # Of each process only the readings that have it: most of many thousand live for a few.
    readings: dict[int, NDArray[np.int64]]  # {pid: [M]} which of the N
    rss_bytes: dict[int, NDArray[np.float64]]  # {pid: [M]}
    cpu_s: dict[int, NDArray[np.float64]]  # {pid: [M]} CPU time since the process began
    gpus: list[str]  # names
    gpu: dict[str, NDArray[np.float64]]  # {reading: [N, gpus]}
    problems: list[str] = field(default_factory=list)  # among them why there are no GPU readings


def read_machine_samples(session: Session) -> MachineSamples | None:
    """All readings of a session, None if none were taken."""
    path = session.directory / layout.MACHINE_SAMPLES
    if not path.exists():
        return None
    tables, problems = _Tables(), dict[str, None]()
    senseless: str | None = None
    try:
        for row, characters in _rows(path, problems):
            if senseless is not None:
                continue
            try:
                tables.add(row, characters)
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
                senseless = shortened(error)
    except OSError as error:
        return _Tables().result([str(error)])
    if tables.gpus_absent:
        problems[f"no GPU readings: {tables.gpus_absent}"] = None
    if senseless is not None:
        problems[f"{path.name}: rows that make no sense, all ignored ({senseless})"] = None
        tables = _Tables()
    return tables.result(list(problems))


def _rows(path: Path, problems: dict[str, None]) -> Iterator[tuple[dict[str, Any], int]]:
    """Each line that can be read, with its characters; of the others each kind is said once.

    Raises:
        OSError: if the file cannot be read.
    """
    for line in lines_of(path):
        try:
            row: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            problems[f"{path.name}: a torn line, ignored"] = None
            continue
        if isinstance(row, dict):
            yield cast(dict[str, Any], row), len(line)
        else:
            problems[f"{path.name}: a line that makes no sense, ignored"] = None


class _Tables:
    """The readings, row by row: those of a day are too large to be kept as they stand."""

    def __init__(self) -> None:
        self.gpus_absent = ""
        self._cores: list[int] = []
        self._gpus: list[str] = []
        self._characters = self._lost = 0
        self._times_ns = array("q")
        self._cpu = array("d")  # [N * cores]
        self._gpu = array("d")  # [N * gpus * GPU_READINGS]
        # {pid: ([M] which rows have it, [2 * M] memory and CPU time in turn)}
        self._processes: dict[int, tuple[array[int], array[float]]] = {}

    def add(self, row: dict[str, Any], characters: int) -> None:
        """The next line, which has so many characters.

        Raises:
            LookupError, TypeError, ValueError, AttributeError, OverflowError: if it makes no sense.
        """
        self._characters += characters
        if row.get("event") == "start":
            if self._times_ns:
                raise ValueError("a start behind the first reading")
            self._cores, self._gpus = list(row.get("cores", [])), list(row.get("gpus", []))
            self.gpus_absent = shortened(absent) if (absent := row.get("gpus_absent")) else ""
            return
        self._refuse_wide()
        self._add_processes(row["processes"])
        self._times_ns.append(row["time_ns"])
        shares = row["cpu"][: len(self._cores)]
        self._cpu.extend(shares)
        self._cpu.extend([np.nan] * (len(self._cores) - len(shares)))
        devices = row.get("gpu", [])[: len(self._gpus)]
        for reading in devices:
            values = map(reading.get, GPU_READINGS)
            self._gpu.extend(np.nan if value is None else value for value in values)
        self._gpu.extend([np.nan] * (len(GPU_READINGS) * (len(self._gpus) - len(devices))))
        if has_numbers(row, "lost"):
            self._lost = max(self._lost, row["lost"])

    def _refuse_wide(self) -> None:
        """Tables have a place for each core and GPU in each row, whatever stands there.

        Raises:
            ValueError: if they would have more of them than the lines have characters.
        """
        columns, rows = len(self._cores) + len(GPU_READINGS) * len(self._gpus), len(self._times_ns)
        if columns * (rows + 1) > self._characters + SPARE_PLACES:
            raise ValueError(
                f"it claims more cores and GPUs than {rows + 1:,} rows of its size tell of"
            )

    def _add_processes(self, processes: dict[str, Any]) -> None:
        for pid, reading in processes.items():
            if reading is not None:
                places, table = self._processes.setdefault(int(pid), (array("q"), array("d")))
                table.extend((reading["rss_bytes"], reading["cpu_s"]))
                places.append(len(self._times_ns))

    def result(self, problems: list[str]) -> MachineSamples:
        """After the last line."""
        if self._lost:
            problems = [*problems, f"readings of the machine that were lost: {self._lost:,}"]
        rows = len(self._times_ns)
        found = dict(sorted(self._processes.items()))
        tables = {
            pid: _known(np.frombuffer(table)).reshape(-1, 2) for pid, (_, table) in found.items()
        }
        gpu = _known(np.frombuffer(self._gpu)).reshape(rows, len(self._gpus), len(GPU_READINGS))
        return MachineSamples(
            times_ns=np.frombuffer(self._times_ns, np.int64),
            cpu=_known(np.frombuffer(self._cpu)).reshape(rows, len(self._cores)),
            cores=self._cores,
            readings={pid: np.frombuffer(places, np.int64) for pid, (places, _) in found.items()},
            rss_bytes={pid: table[:, 0] for pid, table in tables.items()},
            cpu_s={pid: table[:, 1] for pid, table in tables.items()},
            gpus=self._gpus,
            gpu={name: gpu[:, :, k] for k, name in enumerate(GPU_READINGS)},
            problems=problems,
        )


def _known(readings: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN in place of what is no number."""
    readings[~np.isfinite(readings)] = np.nan
    return readings
