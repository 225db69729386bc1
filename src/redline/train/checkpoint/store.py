"""The checkpoints of one run: which are written, which are kept, which one to go on from.

| mode | kept |
|---|---|
| none | nothing during the run; the final state |
| last | the newest `keep` (2: the newest, and one to fall back to) |
| every | all |
| gap | those at least `gap` env_steps apart, and the final state; others are not written |
| last+gap | both of the above |
| best | the newest `keep`, and in `best/` a copy of the one with the highest score |

An old checkpoint is removed only after the new one is complete on disk. Saving at a step
supersedes checkpoints of that and of later steps: they come from a course of the run that
was abandoned when it went on from an earlier one. The best one survives that. The same holds
for those newer than the one that a run goes on from: they are damaged, or of such a course.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from redline.errors import ConfigError, CorruptCheckpointError, UnknownNameError
from redline.replay import Replay
from redline.train.checkpoint.atomic_files import (
    atomic_directory,
    remove_directory,
    remove_leftovers,
    sync_file,
)
from redline.train.checkpoint.checkpoint import (
    Checkpoint,
    load_checkpoint,
    read_manifest,
    save_checkpoint,
)
from redline.train.checkpoint.files import params_sha256

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "SnapshotMode",
    "load_checkpoint",
    "params_sha256",
    "save_checkpoint",
]

SnapshotMode: TypeAlias = Literal["none", "last", "every", "gap", "last+gap", "best"]

_NAME = re.compile(r"step_(\d{12,})(?:-(\d+))?")


class CheckpointStore:
    """Checkpoints under one directory, named by their step in env_steps.

    Several processes may read; one may write.

    Args:
        directory: usually `checkpoints/` of a run directory; made at the first save.
        mode: as in the module's table.
        gap: env_steps between those that the gap modes keep.
        keep: how many of the newest ones last, last+gap and best keep.
        score_of: what scores are the mean of, such as "evaluations". A best one whose score is of
            something else loses to any other.

    Raises:
        ConfigError: if mode is unknown, or gap or keep is missing or not positive.
    """

    def __init__(
        self,
        directory: Path | str,
        mode: SnapshotMode = "last",
        *,
        gap: int | None = None,
        keep: int = 2,
        score_of: str | None = None,
    ) -> None:
        if mode not in get_args(SnapshotMode):
            raise UnknownNameError(
                f"there is no checkpoint mode {mode!r}. Choose one of: "
                f"{', '.join(get_args(SnapshotMode))}."
            )
        if "gap" in mode and (gap is None or gap < 1):
            raise ConfigError(f"gap={gap} must be at least 1 env_step in the mode {mode!r}.")
        if keep < 1:
            raise ConfigError(f"keep={keep} must be at least 1.")
        self.directory = Path(directory)
        self.mode = mode
        self._gap = gap
        self._keep, self._score_of = keep, score_of
        self._cleaned = False
        self._left_behind: frozenset[Path] = frozenset()

    def go_on_from(self, path: Path) -> None:
        """Count those newer than this checkpoint no more; the next save removes them.

        Damage to a file of theirs must not be linked into a checkpoint to come.
        """
        newer = [found for found in self.list() if _order(found) > _order(path)]
        self._left_behind = frozenset(newer)

    def wants(self, step: int, *, final: bool = False) -> bool:
        """Whether `save` would write at this step; the state need not be gathered if not."""
        if final or self.mode not in ("none", "gap"):
            return True
        if self.mode == "none":
            return False
        steps = [found for found, _ in self._found() if found < step]
        return step in self._apart([*steps, step])

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        *,
        score: float | None = None,
        final: bool = False,
        replay: Replay | None = None,
        run_files: Mapping[str, Any] | None = None,
    ) -> Path | None:
        """Write a checkpoint if the mode wants one, then remove those it does not keep.

        Args:
            step: env_steps so far.
            state: tree of plain data, tensors and numpy arrays.
            metadata: plain data that describes it.
            score: higher is better; None or NaN never becomes the best.
            final: the run ends here; written in every mode.
            replay: saved beside the state; what did not change since the newest checkpoint
                is linked from there.
            run_files: plain data about the files beside the checkpoints.

        Returns:
            Where it lies; None if the mode did not want it.

        Raises:
            CheckpointError: if the state cannot be saved.
            RunDirectoryError: if the directory cannot be written.
        """
        if not self._cleaned:
            self.clean_leftovers()
        if not self.wants(step, final=final):
            return None
        path = _free_path(self.directory, step)
        earlier = self.list()
        save_checkpoint(
            path,
            step,
            state,
            metadata=metadata,
            score=score,
            score_of=None if score is None else self._score_of,
            replay=replay,
            previous=earlier[-1] if earlier else None,
            run_files=run_files,
        )
        if self.mode == "best":
            self._keep_if_best(path)
        self._remove_unwanted(step, path)
        return path

    def save_best(
        self,
        step: int,
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        *,
        score: float,
    ) -> Path:
        """Write a state as the best one, in every mode; the best one before is removed.

        It is for evaluating and exporting, not for going on: no replay is saved.

        Args:
            step: env_steps so far.
            state: as for `save`.
            metadata: as for `save`.
            score: what makes it the best.

        Raises:
            CheckpointError: if the state cannot be saved.
            RunDirectoryError: if the directory cannot be written.
        """
        if not self._cleaned:
            self.clean_leftovers()
        directory = self.directory / "best"
        old = [best for _, best in _scan(directory)]
        path = _free_path(directory, step)
        save_checkpoint(path, step, state, metadata=metadata, score=score, score_of=self._score_of)
        for best in old:
            remove_directory(best)
        return path

    def clean_leftovers(self) -> None:
        """Remove what a killed save left; for the one process that writes, at its start."""
        for directory in (self.directory, self.directory / "best"):
            if directory.is_dir():
                remove_leftovers(directory)
        self._cleaned = True

    def list(self) -> list[Path]:
        """The checkpoints, oldest first, without `best/` and those left behind; unchecked."""
        return [path for _, path in self._found()]

    def latest(
        self, on_problem: Callable[[str], None], *, with_replay: bool = False
    ) -> Checkpoint | None:
        """The newest checkpoint that is whole.

        Args:
            on_problem: told of each newer one that is not, by a message.
            with_replay: check its replay too: for going on with the run.

        Returns:
            None if there is no checkpoint at all.

        Raises:
            CorruptCheckpointError: if there are some but none is whole; lists each.
            IncompatibleCheckpointError: if another version of the format wrote the newest.
        """
        problems: list[str] = []
        for path in reversed(self.list()):
            try:
                checkpoint = load_checkpoint(path, with_replay=with_replay)
            except CorruptCheckpointError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                on_problem(f"corrupt checkpoint: {problem} Falling back to {path.name}.")
            return checkpoint
        if problems:
            raise CorruptCheckpointError(
                f"none of the {len(problems)} checkpoints in {self.directory} can be used: "
                f"{' '.join(problems)} Put whole ones back, or "
                f"begin another run with its settings: redline train --config "
                f"{self.directory.parent / 'config.json'} --out OTHER."
            )
        return None

    def has_best(self) -> bool:
        """Whether one is kept as the best, whole or not."""
        return bool(_scan(self.directory / "best"))

    def best(self) -> Checkpoint | None:
        """The checkpoint with the highest score; None if there is none.

        Raises:
            CorruptCheckpointError: if it is torn or altered.
            IncompatibleCheckpointError: if another version of the format wrote it.
        """
        found = _scan(self.directory / "best")
        return load_checkpoint(found[-1][1]) if found else None

    def at(self, step: int) -> Checkpoint | None:
        """The checkpoint of so many env_steps; None if it is not kept.

        Raises:
            CorruptCheckpointError: if it is torn or altered.
            IncompatibleCheckpointError: if another version of the format wrote it.
        """
        path = self._path_at(step)
        return None if path is None else load_checkpoint(path)

    def has(self, step: int) -> bool:
        """Whether one of so many env_steps is kept, whole or not."""
        return self._path_at(step) is not None

    def steps(self) -> list[int]:
        """The env_steps of what is kept, the best one included, rising."""
        return sorted({step for step, _ in self._kept()})

    def _kept(self) -> list[tuple[int, Path]]:
        return [*_scan(self.directory / "best"), *self._found()]

    def _path_at(self, step: int) -> Path | None:
        found = [path for other, path in self._kept() if other == step]
        return found[-1] if found else None

    @property
    def best_score(self) -> float | None:
        """Of the checkpoint with the highest score; None if there is none.

        Minus infinity if it cannot be read, or is of something else.
        """
        found = [self._score(best) for _, best in _scan(self.directory / "best")]
        return max(found, default=None)

    def _found(self) -> list[tuple[int, Path]]:
        return [pair for pair in _scan(self.directory) if pair[1] not in self._left_behind]

    def _keep_if_best(self, path: Path) -> None:
        manifest = read_manifest(path)
        score, directory = manifest["score"], self.directory / "best"
        old = [best for _, best in _scan(directory)]
        if score is None or any(self._score(best) >= score for best in old):
            return
        with atomic_directory(_free_path(directory, manifest["step"])) as temporary:
            for file in path.rglob("*"):
                target = temporary / file.relative_to(path)
                if file.is_dir():
                    target.mkdir()
                else:
                    _link_or_copy(file, target)
        for best in old:
            remove_directory(best)

    def _score(self, path: Path) -> float:
        """The score of a best checkpoint; one that cannot be compared loses to any other."""
        try:
            manifest = read_manifest(path)
        except CorruptCheckpointError:
            return float("-inf")
        score, of = manifest["score"], manifest.get("score_of")
        # Earlier versions did not say what it is of; then it counts as it is.
        is_other = None not in (of, self._score_of) and of != self._score_of
        return float("-inf") if score is None or is_other else score

    def _remove_unwanted(self, step: int, newest: Path) -> None:
        found = [pair for pair in self._found() if pair[0] < step]
        stale = [path for other, path in self._found() if other >= step and path != newest]
        kept: set[Path] = set()
        if self.mode == "every":
            kept.update(path for _, path in found)
        if "gap" in self.mode:
            apart = self._apart([other for other, _ in found])
            kept.update(path for other, path in found if other in apart)
        if self.mode in ("last", "last+gap", "best") and self._keep > 1:
            kept.update(path for _, path in found[-(self._keep - 1) :])
        for path in [*sorted(self._left_behind), *stale, *(path for _, path in found)]:
            if path not in kept:
                remove_directory(path)
        self._left_behind = frozenset()

    def _apart(self, steps: list[int]) -> set[int]:
        """Those of the rising steps that are `gap` or more after the last one chosen."""
        chosen: set[int] = set()
        last = 0
        for step in steps:
            if self._gap is not None and step - last >= self._gap:
                chosen.add(step)
                last = step
        return chosen


def _scan(directory: Path) -> list[tuple[int, Path]]:
    """(step, path) of the checkpoints in a directory, oldest first."""
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return [(_order(path)[0], path) for path in sorted(found, key=_order)]


def _order(path: Path) -> tuple[int, int]:
    """The step of a checkpoint, and how often that had been saved before."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _free_path(directory: Path, step: int) -> Path:
    """A name that sorts after any the step has there; a directory cannot be replaced."""
    taken = [_order(path)[1] for found, path in _scan(directory) if found == step]
    name = f"step_{step:012d}"
    return directory / (f"{name}-{max(taken) + 1}" if taken else name)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # File systems without hard links.
        shutil.copyfile(source, target)
        sync_file(target)
