"""Hostile run directories and sessions: nothing outside is written, deleted or run; nothing hangs.

Links, fifos, sockets, devices, files of a terabyte (sparse), deep folders and odd names are put in
place of random parts, and every command that opens a directory is called on it. A tree beside it,
where the links lead, must be the same afterwards to the byte, and a module there must not have
been imported.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.attack.corruptions import train_and_lose_the_end
from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict, quiet
from benchmarks.attack.sessions import SESSIONS
from redline.cli import main

_NAMES = (
    "checkpoints", "tensorboard", "videos", "progress.csv", "config.json", "history.jsonl",
    "replay", "wandb", "profile", "lock", "best", ".tmp-x", "latest", "metadata.json",
)  # fmt: skip
_COMMANDS = (
    ["train", "--resume", "{}", "--quiet"],
    ["eval", "{}", "--episodes", "1"],
    ["inspect", "{}"],
    ["plot", "{}", "--out", "curve.png"],
    ["runs", "{}"],
    ["compare", "{}", "--out", "compared"],
    ["report", "{}"],
    ["export", "{}", "--format", "torch", "--out", "policy.pt2"],
    ["train", "--config", "{}/config.json", "--out", "again", "--quiet"],
    ["train", "ppo", "--env", "CartPole-v1", "--init-from", "{}", "--out", "warm", "--quiet",
     "--total-env-steps", "16", "--num-envs", "2", "--rollout-length", "8"],
)  # fmt: skip


class Directories:
    """Hostile directories, through the command line's entry."""

    kind = "directories"
    wait_s = WAIT_LIMIT_S

    def prepare(self, folder: Path) -> None:
        """Train a small run to make hostile copies of."""
        train_and_lose_the_end("ppo", folder / "run")
        self._folder = folder

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Make a hostile copy, and open it."""
        outside = _outside(folder)
        sys.path.insert(0, str(outside))
        before = fingerprint(outside)
        sessions = sorted(each.name for each in SESSIONS.iterdir() if each.is_dir())
        what = rng.choice(["run", "run", "run", *sessions])
        source = self._folder / "run" if what == "run" else SESSIONS / what / "session"
        place = Path(shutil.copytree(source, folder / "place"))
        done = "; ".join(hostile(place, outside, rng) for _ in range(rng.choice((1, 1, 2, 3))))
        template = rng.choice(_COMMANDS)
        words = [word.format(place) for word in template]
        os.chdir(folder)
        with quiet() as (out, err):
            try:
                status: object = main(words)
            except SystemExit as error:
                status = error.code
        os.chdir(self._folder)
        sys.path.remove(str(outside))
        said, shown = out.getvalue() + err.getvalue(), f"{' '.join(template[:2])}: {what}: {done}"
        problem = None
        if fingerprint(outside) != before:
            problem = "something outside was changed"
        elif "never_import_me" in sys.modules:
            problem = "a module was imported"
        elif "Traceback" in said or status not in (0, 1, 2):
            problem = f"status {status!r}"
        elif "\x1b" in said:
            problem = "an escape sequence was shown"
        if problem:
            return Verdict(
                self.kind, number, shown, FAULT, f"{problem}\n{said[-1500:]}", template[0]
            )
        verdict = "harmless" if status == 0 else "refused"
        return Verdict(self.kind, number, shown, verdict, said[:200], template[0])


def _outside(folder: Path) -> Path:
    """A tree of things that Redline would delete or write in a directory of its own."""
    outside = folder / "outside"
    for name in (".tmp-precious", "step_000000000900", "step_000000000032", "best"):
        (outside / name).mkdir(parents=True)
        (outside / name / "state.json").write_text("precious")
    (outside / "progress.csv").write_text("precious")
    (outside / "never_import_me.py").write_text("class Env: ...\n")
    return outside


def fingerprint(root: Path) -> str:
    """Of all names and contents below; caches of imports are left out."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if "__pycache__" not in path.parts:
            found.update(str(path.relative_to(root)).encode())
            found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


def hostile(place: Path, outside: Path, rng: random.Random) -> str:
    """Put one hostile thing somewhere; what and where."""
    existing = [p for p in sorted(place.rglob("*")) if not p.is_symlink()]
    target = rng.choice(existing) if rng.random() < 0.7 and existing else place / rng.choice(_NAMES)
    shown = str(target.relative_to(place))
    how = rng.choice((*_ALONE, *_IN_PLACE, "link", "link"))
    if how in _ALONE:
        return _ALONE[how](place, rng)
    _remove(target)
    if how == "link":
        inside = rng.choice((outside, outside / "best", outside / "progress.csv", Path("/etc")))
        target.symlink_to(inside)
    else:
        _IN_PLACE[how](target)
    return f"{how} at {shown!r}"


def _module(place: Path, rng: random.Random) -> str:
    """Name a module where the config names something that Redline knows."""
    config = place / "config.json"
    if not config.is_file():
        return "nothing"
    old = rng.choice(('"CartPole-v1"', '"serial"', '"auto"', '"ppo"'))
    config.write_text(config.read_text().replace(old, '"never_import_me:Env"'))
    return f"{old} became a module"


def _odd_name(place: Path, rng: random.Random) -> str:
    (place / rng.choice(("\x1b[2J", "a\nb", "=cmd|x", "\udcff", "-rf", " "))).write_text("x")
    return "an odd name"


def _socket(target: Path) -> None:
    here = Path.cwd()
    os.chdir(target.parent)  # a path of a socket has 107 characters at most
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(target.name[:90])
    os.chdir(here)


def _sparse(target: Path) -> None:
    with target.open("wb") as file:
        file.truncate(10**12)


def _deep(target: Path) -> None:
    for _ in range(150):
        target = target / "d"
    target.mkdir(parents=True)


def _unreadable(target: Path) -> None:
    target.write_bytes(b"x")
    target.chmod(0)


_ALONE: dict[str, Callable[[Path, random.Random], str]] = {"module": _module, "name": _odd_name}
_IN_PLACE: dict[str, Callable[[Path], None]] = {
    "loop": lambda target: target.symlink_to(target.name),
    "fifo": os.mkfifo,
    "socket": _socket,
    "sparse": _sparse,
    "deep": _deep,
    "unreadable": _unreadable,
}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
