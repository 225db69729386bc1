"""Hostile run directories and sessions: nothing outside is written, deleted or run; nothing hangs.

Links, fifos, sockets, devices, files of a terabyte (sparse), deep folders and odd names are put in
place of random parts; half of them are also signed again with other values in them. Every command
that opens a directory is called on it. A tree beside it, where the links lead, must be the same
afterwards to the byte, and a module there must not have been imported.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from benchmarks.attack.corruptions import train_and_lose_the_end
from benchmarks.attack.doors import called, door, enter, fingerprint, verdict_on
from benchmarks.attack.forks import load_everything
from benchmarks.attack.series import WAIT_LIMIT_S, Verdict
from benchmarks.attack.sessions import SESSIONS
from benchmarks.attack.signing import damage_and_seal, damage_and_sign

_LARGEST_CONFIG = 1 << 20
_NAMES = (
    "checkpoints", "tensorboard", "videos", "progress.csv", "config.json", "history.jsonl",
    "replay", "wandb", "profile", "lock", "best", ".tmp-x", "latest", "metadata.json",
)  # fmt: skip


class Directories:
    """Hostile directories, through the command line's entry."""

    kind = "directories"
    wait_s = WAIT_LIMIT_S

    def prepare(self, folder: Path) -> None:
        """Train small runs to make hostile copies of."""
        load_everything()
        for name in ("ppo", "dqn"):
            train_and_lose_the_end(name, folder / name)
        self._folder = folder

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Make a hostile copy, and open it."""
        outside = _outside(folder)
        before = fingerprint(outside)
        sessions = sorted(each.name for each in SESSIONS.iterdir() if each.is_dir())
        what = rng.choice(["ppo", "ppo", "dqn", *sessions])
        is_run = what not in sessions
        source = self._folder / what if is_run else SESSIONS / what / "session"
        place = Path(shutil.copytree(source, folder / "place"))
        done: list[str] = []
        if rng.random() < 0.5:  # first: it would take minutes to sign a file of a terabyte
            done.append(damage_and_sign(place, rng) if is_run else damage_and_seal(place, rng))
        done += [hostile(place, outside, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        chosen = door(what if is_run else "session", rng)
        ended = enter(chosen, place, folder, outside)
        verdict, detail = verdict_on(ended, outside, before)
        said = f"{' '.join(chosen)}: {what}: {'; '.join(done)}"
        return Verdict(self.kind, number, said, verdict, detail, called(chosen))


def _outside(folder: Path) -> Path:
    """A tree of things that Redline would delete or write in a directory of its own."""
    outside = folder / "outside"
    for name in (".tmp-precious", "step_000000000900", "step_000000000032", "best"):
        (outside / name).mkdir(parents=True)
        (outside / name / "state.json").write_text("precious")
    (outside / "progress.csv").write_text("precious")
    mark = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()"
    (outside / "never_import_me.py").write_text(f"{mark}\nclass Env: ...\n")
    return outside


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
    if not config.is_file() or config.stat().st_size > _LARGEST_CONFIG:  # another made it sparse
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
