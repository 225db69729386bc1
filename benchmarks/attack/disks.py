"""Disks that fill up while a run writes to them: it says so, and goes on once there is room.

An attempt trains one configuration (`cases`) where there is too little room, gives it room, and
resumes it, up to three times; each process must end with a sentence of Redline's or complete, and
none by a signal. In the end parameters and progress.csv must be those of a run that was left alone.

Room is taken away in two ways. Where this process may mount one, a file system of its own (tmpfs)
has some kilobytes too few: all writing fails with ENOSPC. Everywhere, RLIMIT_FSIZE limits the size
of each file: writing beyond it fails with EFBIG.
"""

from __future__ import annotations

import ctypes
import os
import random
from pathlib import Path

from benchmarks.attack.cases import CASES, References, compare, said_by, start, write_episodes
from benchmarks.attack.forks import Ended, limit_files, load_everything
from benchmarks.attack.series import FAULT, Verdict

TIMES = 3  # processes without room, of an attempt at most
_PAGE = 4096
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REMOUNT, _MS_REC, _MS_PRIVATE = 32, 16384, 1 << 18
_ENOUGH = 1 << 30


class Disks:
    """Runs whose disk is full, and has room again."""

    kind = "disks"
    wait_s = 900.0

    def prepare(self, folder: Path) -> None:
        """Load what the forks need, and find out whether file systems can be mounted."""
        load_everything()
        write_episodes(folder / "episodes.npz")
        self._folder, self._references = folder, References(folder)
        self._can_mount = own_mounts()

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """One run of the next configuration."""
        name = list(CASES)[number % len(CASES)]
        whole = self._references.of(name)[2]
        if self._can_mount and number // len(CASES) % 2 == 0:
            return self._small_disk(number, rng, folder, name)
        largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        run, told = folder / "run", list[str]()
        for _ in range(TIMES):
            limit = int(largest ** rng.uniform(0.2, 1.0))
            ended = start(name, run, self._folder, before=limit_files(limit)).wait()
            told.append(f"files of {limit} bytes: {ended.status}")
            if problem := _problem(ended):
                return Verdict(self.kind, number, f"{name}: {told}", FAULT, problem, "file size")
            if ended.status == 0:
                break
        return self._verdict(number, name, run, told, "file size")

    def _small_disk(self, number: int, rng: random.Random, folder: Path, name: str) -> Verdict:
        whole = self._references.of(name)[2]
        needed = sum(_PAGE + path.stat().st_size for path in whole.rglob("*"))
        disk, told = folder / "disk", list[str]()
        disk.mkdir()
        mount(disk, _ENOUGH)
        try:
            for _ in range(TIMES):
                room = int(rng.uniform(0.0, 1.1) * needed)
                mount(disk, _used(disk) + room, again=True)
                ended = start(name, disk / "run", self._folder).wait()
                told.append(f"{room} bytes of room: {ended.status}")
                if problem := _problem(ended):
                    return Verdict(self.kind, number, f"{name}: {told}", FAULT, problem, "disk")
                if ended.status == 0:
                    break
            mount(disk, _ENOUGH, again=True)
            return self._verdict(number, name, disk / "run", told, "disk")
        finally:
            unmount(disk)

    def _verdict(self, number: int, name: str, run: Path, told: list[str], group: str) -> Verdict:
        """Go on with room, and compare."""
        ended = start(name, run, self._folder).wait()
        what = f"{name}: {told}"
        if ended.status != 0:
            return Verdict(self.kind, number, what, FAULT, f"with room: {said_by(ended)}", group)
        problem = compare(name, run, self._references.of(name)[0])
        verdict = FAULT if problem else "identical"
        return Verdict(self.kind, number, what, verdict, problem or "", group)


def _problem(ended: Ended) -> str | None:
    problem = ended.problem()
    return f"{problem}\n{ended.said[-2000:]}" if problem else None


def _used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def own_mounts() -> bool:
    """Let this process see mounts that nobody else sees; whether it may mount anything."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if user == 0:
        done = libc.unshare(_CLONE_NEWNS) == 0
    else:
        done = libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) == 0
        if done:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    return done and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0


def mount(place: Path, size_bytes: int, *, again: bool = False) -> None:
    """Mount a file system in memory, or give one another size.

    Raises:
        OSError: if it cannot be.
    """
    pages = -(-size_bytes // _PAGE)
    flags = _MS_REMOUNT if again else 0
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={pages * _PAGE}".encode()
    if libc.mount(b"none", os.fsencode(place), b"tmpfs", flags, options):
        raise OSError(ctypes.get_errno(), f"cannot mount {place}")


def unmount(place: Path) -> None:
    """Take a file system away, with all that it holds."""
    ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(place), 2)
