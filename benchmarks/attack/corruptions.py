"""Random damage to run directories: noticed, or without any effect, or the run fell back.

A run repeats to the bit from either of its two checkpoints. So whatever was damaged, a run that
goes on must end with the parameters of the undamaged one; anything else is an undetected change.
Every fourth time the damaged checkpoint is signed again, as a stranger can: then other parameters
are the stranger's right, but nothing may crash.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import redline
from benchmarks.attack.series import FAULT, Verdict, quiet, refusal
from redline.errors import RedlineError
from redline.train.checkpoint.checkpoint import load_checkpoint, save_checkpoint

STEPS, TOTAL = 64, 96
_TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 8, "hidden_sizes": (4,), "log_interval": 16,
    "checkpoint_interval": 32, "total_env_steps": STEPS, "preset": "default", "quiet": True,
    "tensorboard": False, "num_threads": 1,
}  # fmt: skip
_REPLAY: dict[str, Any] = {
    "rollout_length": 2, "replay_size": 64, "batch_size": 4, "replay_ratio": 2.0,
    "learning_starts": 16,
}  # fmt: skip
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", _TINY | {"num_minibatches": 1, "num_epochs": 1}),
    "dqn": (
        "dqn", "CartPole-v1",
        _TINY | _REPLAY | {"target_update_interval": 2, "prioritized": True},
    ),
    "sac": ("sac", "Pendulum-v1", _TINY | _REPLAY),
}  # fmt: skip
LEFT_OUT = ("lock", ".lock")


class Corruptions:
    """Damages copies of small runs and goes on with them, in this process."""

    kind = "corruptions"

    def prepare(self, folder: Path) -> None:
        """Train each run once, and find how it ends when nothing is damaged."""
        self._folder = folder
        self._ends: dict[str, str] = {}
        for name, (algorithm, env, settings) in RUNS.items():
            redline.train(algorithm, env=env, out=folder / name, **settings)
            whole = shutil.copytree(folder / name, folder / f"{name}-whole")
            self._ends[name] = self._end_of(whole)

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Damage a copy, go on, and compare the end."""
        name = rng.choice(list(RUNS))
        run = Path(shutil.copytree(self._folder / name, folder / "run"))
        if number % 4 == 3:
            what, resigned = _sign_again(run, rng), True
        else:
            what = "; ".join(damage(run, rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))
            resigned = False
        said = f"{name}: {what}"
        group = "signed again" if resigned else name
        try:
            with quiet() as (_, err):
                end = self._end_of(run)
        except RedlineError as error:
            message = refusal(error)
            return Verdict(self.kind, number, said, "refused" if message else FAULT,
                           message or repr(error), group)  # fmt: skip
        except SystemExit as error:
            return Verdict(self.kind, number, said, FAULT, f"exited with {error.code}", group)
        if end == self._ends[name]:
            warned = "warning" in err.getvalue()
            return Verdict(self.kind, number, said, "fell back" if warned else "harmless",
                           err.getvalue()[:300], group)  # fmt: skip
        if resigned:
            return Verdict(self.kind, number, said, "ran as signed", "", group)
        return Verdict(self.kind, number, said, FAULT, f"undetected: other end {end}", group)

    @staticmethod
    def _end_of(run: Path) -> str:
        done = redline.train(resume=run, total_env_steps=TOTAL, quiet=True)
        return str(done.inspect()["params_sha256"])


def damage(root: Path, rng: random.Random) -> str:
    """Do something to one file or name; what it was."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name not in LEFT_OUT)
    if not files:
        return "nothing left"
    path = rng.choice(files)
    shown = path.relative_to(root)
    how = rng.choice(_DAMAGES)
    if how == "value" and path.suffix in (".json", ".jsonl"):
        return f"{shown}: {_other_value(path, rng)}"
    if how == "delete":
        path.unlink()
    elif how == "swap":
        other = rng.choice(files)
        data = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return f"{shown} swapped with {other.relative_to(root)}"
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "rename":
        path.rename(path.with_name(rng.choice(("x", "state.json", "a" * 200, ".tmp-1"))))
    elif how == "remove parent" and path.parent != root:
        shutil.rmtree(path.parent)
    else:
        data = bytearray(path.read_bytes())
        how = _spoil(data, rng)
        path.write_bytes(data)
    return f"{shown}: {how}"


_DAMAGES = (
    "bytes", "bytes", "bytes", "bytes", "value", "value", "delete", "swap", "folder", "rename",
    "remove parent",
)  # fmt: skip


def _spoil(data: bytearray, rng: random.Random) -> str:
    """Change bytes in place; how."""
    at = rng.randrange(len(data)) if data else 0
    how = rng.choice(("bit", "bit", "byte", "cut", "append", "zeros", "twice", "empty"))
    if how == "bit" and data:
        data[at] ^= 1 << rng.randrange(8)
        return f"bit of byte {at} flipped"
    if how == "byte" and data:
        data[at] = rng.randrange(256)
    elif how == "cut":
        del data[at:]
    elif how == "append":
        data += rng.randbytes(rng.randint(1, 50))
    elif how == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif how == "twice":
        data += data
    else:
        data.clear()
    return f"{how} at {at}"


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, -(2**63), 1e308, -1e-308, "", "x", "../../x",
    "/etc/passwd", "\0", "\x1b[2J", [], {}, [[[[]]]], "9" * 5000, [1] * 100,
)  # fmt: skip


def _other_value(path: Path, rng: random.Random) -> str:
    """Give one value inside a JSON file another one; which."""
    lines = path.suffix == ".jsonl"
    try:
        text = path.read_text()
        data = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    except ValueError:
        return "left as it is"
    places = list(_places(data))
    if not places:
        return "left as it is"
    holder, key, trail = rng.choice(places)
    value = rng.choice(STRANGE)
    if rng.random() < 0.1:
        del holder[key]
        said = f"{trail} removed"
    else:
        holder[key] = value
        said = f"{trail} = {value!r:.40}"
    path.write_text(
        "".join(json.dumps(each) + "\n" for each in data) if lines else json.dumps(data)
    )
    return said


def _places(data: Any, trail: str = "") -> list[tuple[Any, Any, str]]:
    """Every place in nested data: (holder, key or index, how it is reached)."""
    found: list[tuple[Any, Any, str]] = []
    pairs: Any = ()
    if isinstance(data, dict):
        pairs = list(data.items())
    elif isinstance(data, list):
        pairs = list(enumerate(data))
    for key, value in pairs:
        found.append((data, key, f"{trail}.{key}"))
        found += _places(value, f"{trail}.{key}")
    return found


def _sign_again(run: Path, rng: random.Random) -> str:
    """Change a value of the newest checkpoint's state, with a manifest that agrees."""
    import torch

    path = sorted((run / "checkpoints").iterdir())[-1]
    found = load_checkpoint(path)
    places = _places(found.state)
    holder, key, trail = rng.choice(places)
    old = holder[key]
    if isinstance(old, torch.Tensor):
        made = [torch.full_like(old, 0), old.double(), old.flatten()[:1], torch.zeros(3, 3, 3)]
        if old.is_floating_point():
            made += [torch.full_like(old, float("nan")), torch.full_like(old, 1e30)]
        value: Any = rng.choice(made)
        said = f"tensor {tuple(value.shape)} {value.dtype}"
    else:
        value = rng.choice([each for each in STRANGE if each != old])
        said = f"{value!r:.40}"
    holder[key] = value
    shutil.rmtree(path)
    try:
        save_checkpoint(
            path, found.step, found.state, metadata=found.metadata, run_files=found.run_files
        )
    except Exception as error:  # noqa: BLE001 (what cannot be written harms nobody)
        return f"state{trail} = {said} could not be written ({type(error).__name__})"
    return f"state{trail} = {said}"
