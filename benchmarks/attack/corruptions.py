"""Random damage to run directories: noticed, or without any effect, or the run fell back.

Each run was killed after two checkpoints, and repeats to the bit from either. So whatever was
damaged, a run that goes on must end with the parameters of the undamaged one; anything else is an
undetected change.
Every second time values are changed and all hashes computed again, as a stranger can, and one of
the commands that take a run opens it. Then other parameters are the stranger's right, but nothing
may crash, hang, or end without a sentence.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import redline
from benchmarks.attack.damage import damage
from benchmarks.attack.doors import called, door, enter, verdict_on
from benchmarks.attack.forks import load_everything
from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict, quiet, refusal
from benchmarks.attack.signing import damage_and_sign
from redline.errors import RedlineError

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
        load_everything()
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
        if number % 2:
            return self._signed(number, name, run, rng)
        said = f"{name}: {'; '.join(damage(run, rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))}"
        group = name
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
        return Verdict(self.kind, number, said, FAULT, f"undetected: other end {end}", group)

    def _signed(self, number: int, name: str, run: Path, rng: random.Random) -> Verdict:
        what, chosen = damage_and_sign(run, rng), door(name, rng)
        verdict, detail = verdict_on(enter(chosen, run, run.parent))
        verdict = "ran as signed" if verdict == "harmless" else verdict
        said, group = f"{name}, {' '.join(chosen)}: {what}", f"signed again, {called(chosen)}"
        return Verdict(self.kind, number, said, verdict, detail, group)

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
