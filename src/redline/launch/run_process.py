"""The process of one run: begins it or goes on with it, and writes down how it ended.

    python -m redline.launch.run_process RUN_DIR [--watch FD]

`RUN_DIR/order.json` says what to run and where; `RUN_DIR/outcome.json` what became of it. The
process ends when its launcher does: it holds one end of a pipe whose other end only the launcher
has, and when that closes, the run writes a checkpoint and stops, as on SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redline.errors import RunDirectoryError
from redline.plain_files import lock_within, open_plain, read_json, read_row, without_locks

ORDER, OUTCOME = "order.json", "outcome.json"
_TAIL_BYTES = 2**14
_LOCK = ".process.lock"
GRACE_S = 150.0  # for the checkpoint of a run that is stopped; within the 180 of docs/slurm.md
_PREDECESSOR_S = GRACE_S + 30.0  # for the process of a launcher that is gone


def main(arguments: list[str] | None = None) -> int:
    """Run what the order says; the exit code is 0, or 128 + a signal, or 1 for a failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--watch", type=int, default=None)
    parsed = parser.parse_args(arguments)
    order = read_json(parsed.run_dir / ORDER)
    # Before any thread: each takes the cores of the one that starts it.
    if order["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, order["cores"])
    if parsed.watch is not None:
        stop_with_launcher(parsed.watch)
    try:
        lock = _wait_for_predecessor(parsed.run_dir)
    except OSError as error:
        if finished_result(parsed.run_dir, order["key"]) is not None:
            return 0  # the process before has finished, and takes long to end
        _write_failure(parsed.run_dir, order, error)  # what stands there is of an earlier attempt
        return 1
    try:
        return _carried_out(parsed.run_dir, order)
    finally:
        os.close(lock)


def stop_with_launcher(descriptor: int, grace_s: float = GRACE_S) -> None:
    """Stop this process when the other end of a pipe closes: SIGTERM first, then SIGKILL."""

    def wait() -> None:
        while True:
            try:
                if not os.read(descriptor, 1):
                    break
            except InterruptedError:
                continue
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="launcher-watch", daemon=True).start()


def _wait_for_predecessor(run_dir: Path) -> int:
    """Hold the run for this process alone, once the one before has ended.

    Raises:
        RunDirectoryError: if that takes too long, or if the file system has no locks.
        OSError: if the lock cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(run_dir / _LOCK, flags, 0o644)
    try:
        lock_within(descriptor, _PREDECESSOR_S)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunDirectoryError(
            f"{run_dir} is still in use by a process of an earlier launcher after "
            f"{_PREDECESSOR_S:g} s. End that process, then resume."
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise RunDirectoryError(without_locks(run_dir, error)) from error
    return descriptor


def _carried_out(run_dir: Path, order: Mapping[str, Any]) -> int:
    outcome = run_dir / OUTCOME
    try:
        known = finished_result(run_dir, order["key"])
        if known is not None:
            return 0  # the process before had finished, and nobody was there to see it
        outcome.unlink(missing_ok=True)
        code, result = _trained(run_dir, order)
    except BaseException as error:
        _write_failure(run_dir, order, error)
        if not isinstance(error, Exception):
            raise
        return 1
    if result is not None:
        _write(outcome, {"key": order["key"], "result": result})
    return code


def _write_failure(run_dir: Path, order: Mapping[str, Any], error: BaseException) -> None:
    """Write down what an attempt raised; an exception goes into the log, too."""
    said = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    _write(run_dir / OUTCOME, {"key": order["key"], **said})
    if isinstance(error, Exception):
        sys.stderr.write(said["traceback"])


def _trained(run_dir: Path, order: Mapping[str, Any]) -> tuple[int, dict[str, Any] | None]:
    from redline.train.process import before_torch_loads

    settings = dict(order["settings"])
    if settings.get("tune_process", True):
        before_torch_loads()
    from redline.train.runs.given import Given
    from redline.train.runs.start import resume_run, start_run

    given = Given(
        algorithm=order["algorithm"],
        env=settings["env"],
        env_backend=settings.get("env_backend"),
        collector=settings.get("collector"),
        network=settings.get("network"),
        data=settings.get("data"),
        callbacks=tuple(settings.get("callbacks") or ()),
    )
    if (run_dir / "config.json").exists():
        given = dataclasses.replace(given, confirmed=_confirmed(run_dir, order))
        run = resume_run(run_dir, given, quiet=True)
    else:
        # The launcher has checked them; those of a folder begun earlier nobody can change.
        run = start_run(_config_of(run_dir, order), given, are_new=False)
    if run.exit_code:
        return run.exit_code, None
    return 0, {**run.inspect(), **newest_numbers(run_dir)}


def _confirmed(run_dir: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    """What reaches outside the run directory: whoever wrote the order has said it, too.

    A launcher writes no order before its caller has said what it reaches; see `confirming`.

    Presets are part of what it says, and so is the choice that `accelerate="auto"`, or an update
    that failed its self-check, has left in `config.json`.
    """
    asked = _config_of(run_dir, order).run
    chosen = read_json(run_dir / "config.json")["run"]["accelerate"]
    found: dict[str, Any] = {
        name: getattr(asked, name) for name in ("wandb", "env_kwargs", "init_from")
    }
    if asked.accelerate == "auto" or "compile" in asked.accelerate:
        found["accelerate"] = chosen
    return found


def _config_of(run_dir: Path, order: Mapping[str, Any]) -> Any:
    from redline.train.config_files import config_of, given_settings

    settings = {"quiet": True, "num_threads": order["threads"], **order["settings"]}
    given = given_settings({"algorithm": order["algorithm"], **settings})
    return config_of(given, seed=order["seed"], out=str(run_dir))


def newest_numbers(run_dir: Path) -> dict[str, float]:
    """The newest number of each column of progress.csv; {} before the first row.

    Reads only the end of the file, so that looking at many runs is quick.
    """
    try:
        with open(open_plain(run_dir / "progress.csv"), "rb") as file:
            header = read_row(file).decode(errors="replace")
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(header), size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return {}
    names = header.strip().split(",")
    rows = [line.strip().split(",") for line in tail.split("\n")[:-1]]  # the rest has no end yet
    found: dict[str, float] = {}
    for row in rows:
        with contextlib.suppress(ValueError):  # the first may be the rest of one, or any damaged
            found |= {name: float(cell) for name, cell in zip(names, row, strict=True) if cell}
    return found


def finished_result(run_dir: Path, key: str) -> dict[str, Any] | None:
    """What a run reached, if its directory says that it is complete and has these settings."""
    outcome = read_outcome(run_dir)
    return outcome.get("result") if outcome.get("key") == key else None


def is_of_another(run_dir: Path, key: str) -> bool:
    """Whether a directory holds the run of other settings than those of this key."""
    if not run_dir.is_dir():
        return False
    try:
        order = read_json(run_dir / ORDER)
    except (OSError, ValueError):
        return (run_dir / "config.json").exists()
    return not isinstance(order, dict) or order.get("key") != key


def read_outcome(run_dir: Path) -> dict[str, Any]:
    """What the process of a run wrote at its end; {} if it could not."""
    try:
        found = read_json(run_dir / OUTCOME)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_order(run_dir: Path, order: Mapping[str, Any]) -> None:
    """Lay down what the process of a run is to do."""
    run_dir.mkdir(parents=True, exist_ok=True)
    _write(run_dir / ORDER, order)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
