"""Every command that opens a run or a session, and what becomes of a hostile one behind it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from benchmarks.attack.forks import Ended, run
from benchmarks.attack.series import FAULT

_SMALL = (
    "--quiet", "--total-env-steps", "32", "--num-envs", "2", "--hidden-sizes", "4", "--preset",
    "default", "--num-threads", "1", "--no-tensorboard",
)  # fmt: skip
_OFF_POLICY = (
    "--rollout-length", "2", "--replay-size", "64", "--batch-size", "4", "--replay-ratio", "2",
    "--learning-starts", "16",
)  # fmt: skip
_WARM: dict[str, tuple[str, ...]] = {  # a run of the same kind, for what another one gives it
    "ppo": ("train", "ppo", "--env", "CartPole-v1", "--rollout-length", "8", "--num-minibatches",
            "1"),
    "dqn": ("train", "dqn", "--env", "CartPole-v1", "--prioritized", "--target-update-interval",
            "2", *_OFF_POLICY),
    "sac": ("train", "sac", "--env", "Pendulum-v1", *_OFF_POLICY),
}  # fmt: skip
_RUN_DOORS: tuple[tuple[str, ...], ...] = (
    ("train", "--resume", "{}", "--quiet", "--accept-changed-config"),
    ("train", "--config", "{}/config.json", "--out", "again", "--quiet"),
    ("eval", "{}", "--episodes", "1", "--max-episode-steps", "20"),
    ("eval", "{}", "--episodes", "1", "--max-episode-steps", "20", "--which", "best"),
    ("collect", "{}", "--out", "e.npz", "--episodes", "1"),
    ("inspect", "{}"),
    ("plot", "{}", "--out", "curve.svg"),
    ("runs", "{}"),
    ("runs", "."),
    ("compare", "{}", "--out", "compared"),
    ("export", "{}", "--format", "torch", "--out", "policy.pt2"),
    ("sweep", "status", "{}"),
    ("sessions", "{}"),
)
_SESSION_DOORS: tuple[tuple[str, ...], ...] = (
    ("report", "{}"), ("report", "{}", "--out", "page.html"), ("trace", "{}", "--out", "t.json"),
    ("advise", "{}"), ("diff", "{}", "{}"), ("inspect-session", "{}"), ("sessions", "."),
    ("merge-sessions", "{}", "{}", "--out", "merged"), ("runs", "{}"),
)  # fmt: skip


def door(kind: str, rng: random.Random) -> tuple[str, ...]:
    """A command for a run of the algorithm `kind`, or for a session, its directory being `{}`."""
    if kind not in _WARM:
        return rng.choice(_SESSION_DOORS)
    if rng.random() < 0.4:  # most of what a run holds is read by none but this
        return ("train", "--resume", "{}", "--quiet")
    parts = rng.choice(("weights,normalizer", "weights,normalizer,replay"))
    if kind == "ppo":
        parts = "weights,normalizer"
    warm = (*_WARM[kind], *_SMALL, "--init-from", "{}", "--init-parts", parts, "--out", "warm")
    # Exporting takes seconds.
    doors = [each for each in _RUN_DOORS for _ in range(1 if each[0] == "export" else 3)]
    return rng.choice([*doors, *[warm] * 9])


def called(door: tuple[str, ...]) -> str:
    """What attempts at this door are counted by."""
    if door[0] != "train":
        return door[0]
    option = next(o for o in ("--resume", "--config", "--init-from") if o in door)
    return f"train {option}"


def enter(door: tuple[str, ...], place: Path, folder: Path, outside: Path | None = None) -> Ended:
    """Open a directory.

    Args:
        door: the command.
        place: the directory.
        folder: to call it in.
        outside: holds a module that must not be imported.
    """
    if outside is None:
        return run([word.format(place) for word in door], folder)

    def before() -> None:
        import sys

        sys.path.insert(0, str(outside))

    return run([word.format(place) for word in door], folder, before=before)


def verdict_on(ended: Ended, outside: Path | None = None, was: str = "") -> tuple[str, str]:
    """Verdict and detail.

    Args:
        ended: how the command ended.
        outside: a tree that must be as it was; a module in it leaves a mark when it is imported.
        was: its `fingerprint` before.
    """
    problem = ended.problem()
    if outside is not None and (outside / "imported").exists():
        problem = "a module was imported"
    elif outside is not None and fingerprint(outside) != was:
        problem = "something outside was changed"
    if problem:
        return FAULT, f"{problem}\n{ended.said[-1500:]}"
    return ("harmless" if ended.status == 0 else "refused"), ended.reason()


def fingerprint(root: Path) -> str:
    """Of all names and contents below; caches of imports are left out."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if "__pycache__" not in path.parts:
            found.update(str(path.relative_to(root)).encode())
            found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()
