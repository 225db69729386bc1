"""The C code under the address and undefined-behavior sanitizers, with fuzzed input.

    python -m benchmarks.attack.sanitizers --seconds 3600

Every extension of setup.py is built into a temporary folder with `-fsanitize=address,undefined`,
and a process with gcc's libasan fuzzes them: sessions with damaged files are reported, shards of
random events are decoded, streams are merged and summed, priority trees are written and searched,
networks and convolutions of random sizes are computed, and random programs are recorded. The first
bad access, overflow or misaligned read ends it with the sanitizer's report.

Exit status 0: clean; 1: a report, which is printed; 77: gcc or its libasan is not here.
"""

from __future__ import annotations

import argparse
import collections
import importlib.machinery
import importlib.util
import os
import random
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.attack import fuzzers

ROOT = Path(__file__).parents[2]
NOT_HERE = 77
_PATIENCE = 40  # sessions
_CALLS_PER_SESSION = 20
_SAY_S = 60.0  # from one word on what has been done to the next
_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-std=gnu11"]


def why_not() -> str | None:
    """Why nothing can be checked here; None if it can be."""
    if sys.platform != "linux":
        return "the libasan of gcc is preloaded, which only Linux does so"
    if shutil.which("gcc") is None:
        return "there is no gcc"
    if not libasan().is_absolute():
        return "gcc has no libasan"
    return None


def libasan() -> Path:
    """Gcc's runtime of the address sanitizer; a bare name where there is none."""
    found = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    )
    return Path(found.stdout.strip())


def extensions() -> dict[str, dict[str, Any]]:
    """What setup.py builds: name -> the arguments of its `Extension`."""
    found: dict[str, dict[str, Any]] = {}
    stub: Any = ModuleType("setuptools")
    stub.Extension = lambda name, **options: (name, options)
    stub.setup = lambda ext_modules, **_: found.update(ext_modules)
    before = sys.modules.get("setuptools")
    sys.modules["setuptools"] = stub
    try:
        runpy.run_path(str(ROOT / "setup.py"))
    finally:
        sys.modules.pop("setuptools")
        if before is not None:
            sys.modules["setuptools"] = before
    return found


def build(folder: Path, optimization: str = "-O1") -> None:
    """Compile all extensions into `folder`, each as its last name with .so.

    Args:
        folder: to write to.
        optimization: "-O0" is compiled in a third of the time, and fuzzed at half the speed.
    """
    include = f"-I{sysconfig.get_path('include')}"
    for name, options in extensions().items():
        out = folder / f"{name.rpartition('.')[2]}.so"
        flags = [*options["extra_compile_args"], *_FLAGS, optimization, include]
        libraries = [f"-l{each}" for each in options.get("libraries", ())]
        command = ["gcc", "-shared", "-fPIC", *flags, *options["sources"], *libraries]
        subprocess.run([*command, "-o", str(out)], check=True, cwd=ROOT)


def check(seconds: float, seed: int, optimization: str = "-O1") -> tuple[int, str]:
    """Build, fuzz for so long in a process of its own; its status and output, also shown."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), optimization)
        words = ["--fuzz", folder, "--seconds", str(seconds), "--seed", str(seed)]
        environment = {
            **os.environ,
            "LD_PRELOAD": str(libasan()),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # the interpreter frees little
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        said: list[str] = []
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.attack.sanitizers", *words],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                sys.stderr.write(line)
                said.append(line)
    return process.returncode, "".join(said)


# -- in the process with libasan --------------------------------------------------------------


def fuzz(folder: Path, seconds: float, seed: int) -> None:
    """Fuzz the extensions in `folder`; a sanitizer ends the process at the first fault."""

    def goes_on() -> bool:
        # However slow the machine is, each door takes something once, unless it never does.
        waits = 0 in done.values() and done["sessions"] < _PATIENCE
        return not done or waits or time.monotonic() < end

    fuzzers.load_openmp()
    modules = {name.rpartition(".")[2]: _loaded(name, folder) for name in extensions()}
    rng = random.Random(seed)
    done: collections.Counter[str] = collections.Counter()
    end, said = time.monotonic() + seconds, 0.0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        sessions = _sessions(place)
        while goes_on():
            for _ in range(_CALLS_PER_SESSION):
                done["decode"] += fuzzers.decoding(modules["_sweep"], rng)
                done["streams"] += fuzzers.streams(modules["_sweep"], rng)
                done["tree"] += fuzzers.trees(modules["_tree"], rng)
                done["dense"] += fuzzers.networks(modules["_dense"], rng)
                done["convolution"] += fuzzers.convolutions(modules["_convolution"], rng)
            done["recorder"] += fuzzers.recorder_calls(modules["_native"], rng, place / "calls")
            done["recordings"] += fuzzers.recordings(rng, place / "recording")
            _fuzz_session(sessions, done["sessions"], rng, place)
            done["sessions"] += 1
            for each in ("calls", "recording"):
                shutil.rmtree(place / each)
            if time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                print(f"{max(0.0, end - said):.0f} s left: {dict(done)}", flush=True)
    told = ", ".join(f"{count} {name}" for name, count in done.items())
    print(f"clean with seed {seed} after {seconds:g} s; accepted: {told}")


def _loaded(name: str, folder: Path) -> Any:
    """An extension from `folder`, in the place of the package's own."""
    path = str(folder / f"{name.rpartition('.')[2]}.so")
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise RuntimeError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    if name.startswith("redline.profile"):  # the other packages would load torch
        setattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2], module)
    return module


def _sessions(place: Path) -> Any:
    from benchmarks.attack.sessions import Sessions

    attack = Sessions()
    attack.prepare(place)
    return attack


def _fuzz_session(attack: Any, number: int, rng: random.Random, place: Path) -> None:
    folder = place / f"attempt-{number}"
    folder.mkdir()
    verdict = attack.attempt(number, rng, folder)
    # Whether damage is noticed is what the attack on sessions asks; here it is what C code does.
    if verdict.verdict == "FAULT" and "undetected" not in verdict.detail:
        raise RuntimeError(f"{verdict}")
    shutil.rmtree(folder)


def main() -> int:
    """Check, or fuzz in the process that `check` started."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--fuzz", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    if options.fuzz is not None:
        fuzz(options.fuzz, options.seconds, seed)
        return 0
    reason = why_not()
    if reason is not None:
        print(f"nothing is checked: {reason}")
        return NOT_HERE
    print(f"seed {seed}", flush=True)
    status, _said = check(options.seconds, seed)
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
