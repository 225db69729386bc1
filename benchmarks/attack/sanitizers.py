"""The C code under the address and undefined-behavior sanitizers, with fuzzed input.

    python -m benchmarks.attack.sanitizers --seconds 3600

The extensions that read files of others are built into a temporary folder with
`-fsanitize=address,undefined`, and a process with gcc's libasan fuzzes them: sessions with damaged
files are reported, shards of random events are decoded, streams are merged and summed, priority
trees of random sizes are written and searched. The first bad access, overflow or misaligned read
ends it with the sanitizer's report.

Exit status 0: clean; 1: a report, which is printed; 77: gcc or its libasan is not here.
"""

from __future__ import annotations

import argparse
import collections
import importlib.machinery
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FUZZED = ("redline.profile._sweep", "redline.replay._tree")
NOT_HERE = 77
_CALLS_PER_SESSION = 20
_FAN, _TOP = 16, 4096  # of a tree, as in replay/tree.py, which would load torch
_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1", "-std=gnu11"]


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


def build(folder: Path) -> None:
    """Compile the fuzzed extensions into `folder`, each as its last name with .so."""
    sources = {
        "redline.profile._sweep": ["profile/csrc/sweep.c", "profile/csrc/decode.c"],
        "redline.replay._tree": ["replay/csrc/tree.c"],
    }
    include = f"-I{sysconfig.get_path('include')}"
    for name, files in sources.items():
        out = folder / f"{name.rpartition('.')[2]}.so"
        paths = [str(ROOT / "src" / "redline" / file) for file in files]
        command = ["gcc", "-shared", "-fPIC", *_FLAGS, include, *paths, "-o", str(out)]
        subprocess.run(command, check=True)


def check(seconds: float, seed: int) -> tuple[int, str]:
    """Build, fuzz for so long in a process of its own; its exit status and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        words = ["--fuzz", folder, "--seconds", str(seconds), "--seed", str(seed)]
        environment = {
            **os.environ,
            "LD_PRELOAD": str(libasan()),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # the interpreter frees little
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.attack.sanitizers", *words],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


# -- in the process with libasan --------------------------------------------------------------


def fuzz(folder: Path, seconds: float, seed: int) -> None:
    """Fuzz the extensions in `folder`; a sanitizer ends the process at the first fault."""
    modules = {name: _loaded(name, folder) for name in FUZZED}
    rng = random.Random(seed)
    accepted: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        sessions = _sessions(Path(place))
        end = time.monotonic() + seconds
        while not accepted or time.monotonic() < end:  # once, however slow the machine is
            for _ in range(_CALLS_PER_SESSION):
                accepted["decode"] += _fuzz_decoding(modules["redline.profile._sweep"], rng)
                accepted["streams"] += _fuzz_streams(modules["redline.profile._sweep"], rng)
                accepted["tree"] += _fuzz_tree(modules["redline.replay._tree"], rng)
            _fuzz_session(sessions, accepted["sessions"], rng, Path(place))
            accepted["sessions"] += 1
    told = ", ".join(f"{count} {name}" for name, count in accepted.items())
    print(f"clean with seed {seed}; accepted: {told}")


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
    if name.startswith("redline.profile"):  # redline.replay would load torch
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


def _fuzz_decoding(sweep: Any, rng: random.Random) -> int:
    """Random events over random tables of names; how many calls were not refused."""
    import numpy as np

    from redline.profile import layout

    draw = np.random.default_rng(rng.randrange(2**32))
    rows = int(draw.integers(0, 400))
    top = int(draw.choice([8, 64, 2**16]))
    deltas = draw.integers(0, int(draw.choice([2, 1000, 2**32])), rows).astype(np.uint32)
    codes = draw.integers(0, top, rows).astype(np.uint16)
    kinds = draw.integers(0, 256, layout.MAX_IDS).astype(np.uint8)
    levels = draw.integers(0, 256, layout.MAX_IDS).astype(np.uint8)
    return _accepted([lambda: sweep.decode(deltas, codes, kinds, levels)])


def _accepted(calls: Sequence[Callable[[], Any]]) -> int:
    """Make the calls; how many of them were not refused."""
    count = 0
    for call in calls:
        try:
            call()
        except (ValueError, MemoryError, OverflowError, TypeError, IndexError, BufferError):
            continue
        count += 1
    return count


def _fuzz_streams(sweep: Any, rng: random.Random) -> int:
    """Streams of random times and states: merged, summed, and as intervals of labels."""
    import numpy as np

    draw = np.random.default_rng(rng.randrange(2**32))

    def stream(states: int) -> tuple[Any, Any]:
        rows = int(draw.integers(0, 50))
        times = draw.integers(-(2**40), 2**40, rows)
        if draw.random() < 0.8:
            times = np.sort(times)
        return times.astype(np.int64), draw.integers(0, states + 1, rows).astype(np.uint32)

    count = int(draw.integers(1, 4))
    sizes = [int(each) for each in draw.integers(1, 9, count)]
    streams = [stream(size) for size in sizes]
    begin = int(draw.integers(-(2**40), 2**40))
    intervals = [np.sort(draw.integers(0, 2**40, (2, 9)), axis=0) for _ in range(count)]
    return _accepted(
        [
            lambda: sweep.accumulate(streams, sizes, begin, begin + int(draw.integers(0, 2**41))),
            lambda: sweep.lead(stream(5), stream(5), bytes(draw.integers(0, 2, 12).tolist())),
            lambda: sweep.overlap_masks(
                [np.sort(each[0]) for each in intervals], [np.sort(each[1]) for each in intervals]
            ),
        ]
    )


def _fuzz_tree(tree: Any, rng: random.Random) -> int:
    """Write and search trees of random sizes, leaves outside of them included."""
    import numpy as np

    draw = np.random.default_rng(rng.randrange(2**32))
    size = int(draw.integers(1, 5000))
    levels = [-(-(size + 1) // _FAN) * _FAN]
    while len(levels) == 1 or levels[-1] > _TOP:
        levels.append(-(-(levels[-1] // _FAN) // _FAN) * _FAN)
    sums = tuple(np.zeros(length) for length in levels)
    minima = tuple(np.full(length, np.inf) for length in levels[1:])
    low, high = (0, size) if draw.random() < 0.7 else (-3, 2 * size + 3)
    index = draw.integers(low, high, int(draw.integers(0, 40))).astype(np.int64)
    value = draw.choice([0.0, 1.0, 1e-300, 1e300, np.nan, np.inf, -1.0], len(index))
    found = np.zeros(16, np.int64)
    return _accepted(
        [
            lambda: tree.set(sums, minima, index, value),
            lambda: tree.find(sums, draw.random(16), found),
        ]
    )


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
    status, said = check(options.seconds, seed)
    print(f"seed {seed}\n{said}")
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
