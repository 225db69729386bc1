"""Everything that only a GPU can show, in one command and at most nine minutes.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --leanrl ../LeanRL --cleanrl ../cleanrl
    python -m benchmarks.gpu --parts capture,updates

It needs no network and no package beyond the project's own. Parts run one after the other, most
important first, each in a process of its own with a limit of its own, and the results are written
after each: benchmarks/results/gpu.json and gpu.md. A part that fails or takes too long is recorded,
and the next begins. A second call goes on with the parts that have no result yet, then tries those
that failed; `--again` forgets all results first.

The tests rehearse all parts on the stand-in accelerator, at the smallest sizes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts import PARTS, Sizes
from benchmarks.machine import as_markdown, describe

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


def run_all(options: Options) -> dict[str, Any]:
    """Run every part that has no good result yet; write the results after each."""
    file = options.out / "gpu.json"
    found = json.loads(file.read_text()) if file.exists() else {"parts": {}}
    found |= {"machine": describe(), "device": options.device}
    parts: dict[str, Any] = found["parts"]
    ends_s = time.monotonic() + options.limit_s
    unknown = [name for name in options.parts if name not in parts]
    failed = [name for name in options.parts if name in parts and parts[name]["status"] != "ok"]
    for name in [*unknown, *failed]:
        left_s = ends_s - time.monotonic()
        if left_s < _LEAST_S:
            break
        began_s = time.monotonic()
        run: Callable[..., dict[str, Any]] = _here if options.in_process else _apart
        parts[name] = run(name, options, min(left_s, PARTS[name].limit_s))
        parts[name]["took_s"] = round(time.monotonic() - began_s, 1)
        options.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "gpu.md").write_text(as_text(found))
        print(f"{name}: {parts[name]['status']} ({parts[name]['took_s']} s)", file=sys.stderr)
    return found


def _here(name: str, options: Options, limit_s: float) -> dict[str, Any]:
    """One part in this process."""
    del limit_s
    try:
        result = PARTS[name].run(options.device, options.sizes, options.peers or {})
    except Exception:  # noqa: BLE001 - whatever it fails with is recorded
        return {"status": "failed", "error": traceback.format_exc()}
    return {"status": "ok", "result": result}


def _apart(name: str, options: Options, limit_s: float) -> dict[str, Any]:
    """One part in a process of its own: one that crashes or hangs takes no other with it."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--only", name, "--device", options.device]
    for peer, path in (options.peers or {}).items():
        command += [f"--{peer}", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "failed", "error": f"took more than {limit_s:.0f} s"}
    if done.returncode != 0:
        return {"status": "failed", "error": done.stderr[-4000:] or f"exit {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def as_text(found: dict[str, Any]) -> str:
    """The results as Markdown: a section for each part, a row for each of its entries."""
    lines = [f"# What only a GPU can show, on {found['device']}", ""]
    lines += ["Made by `python -m benchmarks.gpu`.", ""]
    for name, part in found["parts"].items():
        lines += [f"## {name}: {part['status']}, {part['took_s']} s", "", PARTS[name].about, ""]
        if part["status"] == "ok":
            lines += ["| | |", "|---|---|"]
            lines += [f"| {key} | {_shown(value)} |" for key, value in part["result"].items()]
        else:
            lines += ["```", part["error"].strip(), "```"]
        lines.append("")
    return "\n".join(lines) + "\n" + as_markdown()


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
    parser.add_argument("--again", action="store_true", help="forget all results first")
    parser.add_argument("--leanrl", help="checkout of LeanRL")
    parser.add_argument("--cleanrl", help="checkout of CleanRL")
    parser.add_argument("--only", help="run one part here and print its result")
    given = parser.parse_args()
    peers = {name: path for name in ("leanrl", "cleanrl") if (path := getattr(given, name))}
    options = Options(
        device=given.device,
        out=RESULTS,
        limit_s=given.limit,
        parts=tuple(given.parts.split(",")),
        peers=peers,
    )
    unknown = [name for name in (*options.parts, given.only or "capture") if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}. Parts: {', '.join(PARTS)}.")
    if given.only:
        print(json.dumps(_here(given.only, options, LIMIT_S)))
        return
    if given.again:
        (RESULTS / "gpu.json").unlink(missing_ok=True)
    found = run_all(options)
    print(as_text(found))


if __name__ == "__main__":
    main()
