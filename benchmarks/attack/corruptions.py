"""Random damage to run directories: noticed, or without any effect, or the run fell back.

Each run was killed after two checkpoints, and repeats to the bit from either. So whatever was
damaged, a run that goes on must end with the parameters of the undamaged one; anything else is an
undetected change.
Every fourth time the damaged checkpoint is signed again, as a stranger can: then other parameters
are the stranger's right, but nothing may crash.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

import redline
from benchmarks.attack.damage import STRANGE, damage
from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict, quiet, refusal
from redline.errors import RedlineError
from redline.train.checkpoint.checkpoint import load_checkpoint, save_checkpoint

TOTAL, INTERVAL = 96, 32
_TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 8, "hidden_sizes": (4,), "log_interval": 16,
    "checkpoint_interval": INTERVAL, "checkpoints": "every", "total_env_steps": TOTAL,
    "preset": "default", "quiet": True, "tensorboard": False, "num_threads": 1,
    "self_check": False, "tune_process": False,
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


class Corruptions:
    """Damages copies of small runs and goes on with them, in this process."""

    kind = "corruptions"
    wait_s = WAIT_LIMIT_S

    def prepare(self, folder: Path) -> None:
        """Train each run once, and find how it ends when nothing is damaged."""
        self._folder = folder
        self._ends: dict[str, str] = {}
        for name in RUNS:
            self._ends[name] = train_and_lose_the_end(name, folder / name)
            whole = Path(shutil.copytree(folder / name, folder / f"{name}-whole"))
            if self._end_of(whole) != self._ends[name]:
                raise RuntimeError(f"{name} does not repeat even without damage")

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
            warned = "Falling back" in err.getvalue()
            return Verdict(self.kind, number, said, "fell back" if warned else "harmless",
                           err.getvalue()[:300], group)  # fmt: skip
        if resigned:
            return Verdict(self.kind, number, said, "ran as signed", "", group)
        return Verdict(self.kind, number, said, FAULT, f"undetected: other end {end}", group)

    @staticmethod
    def _end_of(run: Path) -> str:
        return str(redline.train(resume=run, quiet=True).inspect()["params_sha256"])


def train_and_lose_the_end(name: str, out: Path) -> str:
    """Train a run of `RUNS` and leave it as a kill after its second checkpoint does.

    Returns:
        The parameters' hash at its end.
    """
    algorithm, env, settings = RUNS[name]
    run = redline.train(algorithm, env=env, out=out, **settings)
    end = str(run.inspect()["params_sha256"])
    shutil.rmtree(out / "checkpoints" / f"step_{TOTAL:012}")
    return end


def _walk(state: Any, rng: random.Random) -> tuple[Any, Any, str]:
    """A place in nested data, each branch as likely as its neighbors."""
    trail = ""
    while True:
        key = rng.choice(list(state) if isinstance(state, dict) else range(len(state)))
        trail += f".{key}"
        inner = state[key]
        if not (isinstance(inner, (dict, list)) and inner) or rng.random() < 0.05:
            return state, key, trail
        state = inner


def _other_tensor(old: torch.Tensor, rng: random.Random) -> torch.Tensor:
    made = [torch.full_like(old, 0), old.double(), old.flatten()[:1], torch.zeros(3, 3, 3)]
    if old.is_floating_point():
        made += [torch.full_like(old, float("nan")), torch.full_like(old, 1e30)]
    else:
        bits = old.numpy()  # torch itself adds no unsigned numbers
        made += [torch.from_numpy(~bits), torch.from_numpy(bits ^ 1)]
    return rng.choice(made).contiguous()


def _sign_again(run: Path, rng: random.Random) -> str:
    """Change a value of the newest checkpoint's state, with a manifest that agrees."""
    path = sorted((run / "checkpoints").iterdir())[-1]
    found = load_checkpoint(path)
    holder, key, trail = _walk(found.state, rng)
    old = holder[key]
    if isinstance(old, np.ndarray):
        old = torch.from_numpy(old)
    if isinstance(old, torch.Tensor):
        value: Any = _other_tensor(old, rng)
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
