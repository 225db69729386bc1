"""Everything that only a GPU can show, in one command and at most nine minutes.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --leanrl ../LeanRL --cleanrl ../cleanrl --out results
    python -m benchmarks.gpu --parts capture,workloads

It needs no network and no package beyond the project's own. Parts run one after the other, most
important first, each in a process of its own with a limit of its own, which add up to nine minutes.
Each has a number of entries, which are written down as they are measured: gpu.json and gpu.md, in
benchmarks/results or where `--out` says. An entry that fails is recorded, and the next begins. So
is a part that crashes or takes too long, with what it had measured. A second call measures what is
missing: first the parts that were not begun, then the rest of the others. `--again` forgets all
results first.

The tests rehearse all parts on the stand-in accelerator, at the smallest sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts import PARTS, Sizes
from benchmarks.machine import as_markdown, describe
from benchmarks.records import require_one_machine
from redline.devices import kind_of

RESULTS = Path(__file__).parent / "results"
LIMIT_S = 540.0
_LEAST_S = 5.0  # a part is not begun with less


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command was asked for.

    Attributes:
        device: where to measure.
        out: directory of the results.
        limit_s: seconds for all parts together.
        parts: names, in the order in which they run.
        peers: "leanrl" and "cleanrl" -> checkout of that project.
        sizes: how much each part measures.
        in_process: whether parts run in this process, where none can be stopped.
    """

    device: str
    out: Path
    limit_s: float = LIMIT_S
    parts: tuple[str, ...] = tuple(PARTS)
    peers: dict[str, str] | None = None
    sizes: Sizes = field(default_factory=Sizes)
    in_process: bool = False


Entries = dict[str, dict[str, Any]]
"""Name of an entry -> its "value", or its "error"."""


def run_all(options: Options) -> dict[str, Any]:
    """Run every part that is not complete; write the results after each."""
    file = options.out / "gpu.json"
    found = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    gpu = kind_of(options.device).describe(torch.device(options.device))
    machine = {"gpu": gpu, **describe()}
    require_one_machine(file, found["parts"], machine)
    found |= {"machine": machine, "device": options.device}
    parts: dict[str, Any] = found["parts"]
    ends_s = time.monotonic() + options.limit_s
    not_begun = [name for name in options.parts if name not in parts]
    chosen = [*options.sizes.workloads, *options.sizes.turns]
    begun = [
        name
        for name in options.parts
        if name in parts
        and (parts[name]["status"] != "ok" or not {*chosen} <= {*parts[name].get("chosen", chosen)})
    ]
    for name in [*not_begun, *begun]:
        left_s = ends_s - time.monotonic()
        if left_s < _LEAST_S:
            break
        parts[name] = _run_part(
            name, options, min(left_s, PARTS[name].limit_s), parts.get(name, {"entries": {}})
        ) | {"chosen": chosen}
        options.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "gpu.md").write_text(as_text(found))
        print(f"{name}: {parts[name]['status']} ({parts[name]['took_s']} s)", file=sys.stderr)
    return found


def _run_part(
    name: str, options: Options, limit_s: float, before: dict[str, Any]
) -> dict[str, Any]:
    """Measure what a part lacks.

    Args:
        name: of the part.
        options: of the command.
        limit_s: seconds after which it is stopped.
        before: what an earlier call recorded.
    """
    began_s = time.monotonic()
    known = {key: each for key, each in before["entries"].items() if "value" in each}
    run = _here if options.in_process else _apart
    entries, problem = run(name, options, limit_s, known)
    entries = known | entries
    complete = problem is None and all("value" in each for each in entries.values())
    part: dict[str, Any] = {"status": "ok" if complete else "failed"}
    part |= {"took_s": round(time.monotonic() - began_s, 1), "entries": entries}
    return part if problem is None else part | {"error": problem}


def _here(
    name: str, options: Options, limit_s: float, known: Entries
) -> tuple[Entries, str | None]:
    """The entries of a part, in this process, and why there are no more."""
    del limit_s
    entries: Entries = {}
    problem = measure(name, options, known, entries.update)
    return entries, problem


def measure(
    name: str, options: Options, known: Container[str], record: Callable[[Entries], Any]
) -> str | None:
    """Measure the entries of a part one by one.

    Args:
        name: of the part.
        options: of the command.
        known: entries that are measured already.
        record: told of each.

    Returns:
        Why there are no more, if the part itself failed.
    """
    part = PARTS[name]
    try:
        for key, function in part.entries(options.device, options.sizes, options.peers or {}):
            if key in known:
                continue
            try:
                record({key: {"value": function()}})
            except Exception:  # noqa: BLE001 - whatever it fails with is recorded
                record({key: {"error": traceback.format_exc()[-2000:]}})
    except Exception:  # noqa: BLE001 - likewise
        return traceback.format_exc()[-4000:]
    return None


def _apart(
    name: str, options: Options, limit_s: float, known: Entries
) -> tuple[Entries, str | None]:
    """The same in a process of its own: one that crashes or hangs takes no other with it."""
    with tempfile.TemporaryDirectory() as directory:
        into = Path(directory) / "entries"
        (Path(directory) / "known").write_text(json.dumps(list(known)))
        command = [sys.executable, "-m", "benchmarks.gpu", "--only", name, "--into", directory]
        command += ["--device", options.device]
        command += ["--workloads", ",".join(options.sizes.workloads)]
        command += ["--turns", ",".join(options.sizes.turns)]
        for peer, path in (options.peers or {}).items():
            command += [f"--{peer}", path]
        problem = _stopped_in_time(command, limit_s)
        lines = into.read_text().splitlines() if into.exists() else []
    entries: Entries = {}
    for line in lines:
        entries |= json.loads(line)
    return entries, problem


def _stopped_in_time(command: list[str], limit_s: float) -> str | None:
    """Run a command with all that it starts; what went wrong, None if nothing did."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"took more than {limit_s:.0f} s"
    return None if process.returncode == 0 else errors[-4000:] or f"exit {process.returncode}"


def _only(name: str, options: Options, directory: Path) -> None:
    """One part, in the process that `_apart` started."""
    known = json.loads((directory / "known").read_text())
    with (directory / "entries").open("a") as file:

        def record(entry: Entries) -> None:
            file.write(json.dumps(entry) + "\n")
            file.flush()

        problem = measure(name, options, known, record)
    if problem is not None:
        sys.exit(problem)


def as_text(found: dict[str, Any]) -> str:
    """The results as Markdown: a section for each part, a row for each of its entries."""
    lines = [f"# What only a GPU can show, on {found['device']}", ""]
    lines += ["Made by `python -m benchmarks.gpu`.", ""]
    for name, part in found["parts"].items():
        lines += [f"## {name}: {part['status']}, {part['took_s']} s", "", PARTS[name].about, ""]
        if "note" in part:  # written by hand, where circumstances were not as usual
            lines += [part["note"], ""]
        if part["entries"]:
            lines += ["| | |", "|---|---|"]
        for key, entry in part["entries"].items():
            failed = entry.get("error", "").strip().splitlines()
            shown = _shown(entry["value"]) if "value" in entry else f"failed: {failed[-1]}"
            lines.append(f"| {key} | {shown} |")
        if "error" in part:
            lines += ["", "```", part["error"].strip(), "```"]
        lines.append("")
    return "\n".join(lines) + "\n" + as_markdown(found["machine"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all parts")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--workloads", default=",".join(Sizes().workloads))
    parser.add_argument("--turns", default=",".join(Sizes().turns), help="in order")
    parser.add_argument("--again", action="store_true", help="forget all results first")
    parser.add_argument("--leanrl", help="checkout of LeanRL")
    parser.add_argument("--cleanrl", help="checkout of CleanRL")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the part that this process measures
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    peers = {name: path for name in ("leanrl", "cleanrl") if (path := getattr(given, name))}
    sizes = Sizes(workloads=tuple(given.workloads.split(",")), turns=tuple(given.turns.split(",")))
    options = Options(
        device=given.device,
        sizes=sizes,
        out=given.out,
        limit_s=given.limit,
        parts=tuple(given.parts.split(",")),
        peers=peers,
    )
    for known, asked in ((Sizes().workloads, sizes.workloads), (Sizes().turns, sizes.turns)):
        if unknown := [name for name in asked if name not in known]:
            parser.error(f"there is no {', '.join(unknown)}. Use some of: {', '.join(known)}.")
    unknown = [name for name in (*options.parts, given.only or "capture") if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}. Parts: {', '.join(PARTS)}.")
    if given.only:
        _only(given.only, options, given.into)
        return
    if given.again:
        (given.out / "gpu.json").unlink(missing_ok=True)
    found = run_all(options)
    print(as_text(found))


if __name__ == "__main__":
    main()
