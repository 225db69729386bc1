"""What each study runs: programs by label, whose work depends on their arguments alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PYTHON = sys.executable
PEERS = Path(__file__).parents[1] / "peers"
COMPILED = 8  # times as many env steps: compiling ends after several iterations


@dataclass(frozen=True, slots=True)
class Case:
    """One bar of a study's figure."""

    label: str
    command: list[str]  # `{out}` stands for a new directory
    on_policy: bool = True
    simulators: int = 1  # processes that simulate


def redline(algorithm: str, env: str, env_steps: int, *options: str) -> list[str]:
    """A training run of Redline on one thread, without files that others do not write."""
    return [
        *(PYTHON, "-m", "redline.cli", "train", algorithm, "--env", env),
        *("--total-env-steps", str(env_steps), "--out", "{out}/run", "--num-threads", "1"),
        *("--quiet", "--no-tensorboard", "--checkpoints", "none", *options),
    ]


# PPO's settings in all studies, whole, or presets would decide: other ones for each environment.
PPO = (
    *("--num-envs", "4", "--rollout-length", "128", "--num-epochs", "4"),
    *("--num-minibatches", "4"),
)


def unmarked(name: str, env_steps: int) -> list[str]:
    """A script in CleanRL's style, or Stable-Baselines3: see `benchmarks.unmarked.programs`."""
    words = [PYTHON, "-m", "benchmarks.unmarked.programs", name]
    return [*words, "--env-steps", str(env_steps)]


def peer(name: str) -> list[str]:
    """A program of `benchmarks/peers`, but for the number of its env steps."""
    return [PYTHON, str(PEERS / f"{name}.py"), "--env-steps"]


def _frameworks(scale: float, cleanrl: Path | None) -> list[Case]:
    steps = int(8192 * scale)
    sb3 = [PYTHON, str(PEERS / "stable_baselines3_settings.py"), "PPO", "CartPole-v1"]
    settings = ["--n-envs", "4"]
    for setting in ("n_steps=128", "batch_size=128", "n_epochs=4"):
        settings += ["--set", setting]
    script = [PYTHON, str((cleanrl or Path()) / "cleanrl" / "ppo.py"), "--no-cuda"]
    return [
        Case("SB3", [*sb3, "--env-steps", str(steps), *settings]),
        *([Case("CleanRL", [*script, "--total-timesteps", str(steps)])] if cleanrl else []),
        *([Case("TorchRL", [*peer("torchrl_ppo"), str(steps)])] if find_spec("torchrl") else []),
        Case("one file", unmarked("ppo in one file", steps)),
        *(
            Case(
                f"Redline {engine}",
                redline("ppo", "CartPole-v1", length * steps, *PPO, "--accelerate", engine),
            )
            for engine, length in (("eager", 1), ("cpu", 1), ("compile", COMPILED))
        ),
    ]


def _algorithms(scale: float, cleanrl: Path | None) -> list[Case]:
    on, off = int(16_384 * scale), int(3_000 * scale) + 1_000
    simple = ("--accelerate", "eager")
    return [
        Case("A2C", redline("a2c", "Pendulum-v1", on, *simple)),
        Case("PPO", redline("ppo", "Pendulum-v1", on, *simple, *PPO)),
        *(
            Case(name, redline(name.lower(), "Pendulum-v1", off, *simple), on_policy=False)
            for name in ("DDPG", "TD3", "SAC")
        ),
    ]


def _simulators(scale: float, cleanrl: Path | None) -> list[Case]:
    steps = int(8_192 * scale)
    envs = {
        "CartPole": "CartPole-v1",
        "LunarLander": "LunarLander-v3",
        "Hopper": "Hopper-v5",
        "HalfCheetah": "HalfCheetah-v5",
        "Ant": "Ant-v5",
        "MinAtar": "MinAtar/Breakout-v1",
    }
    eager = ("--accelerate", "eager", *PPO)
    envpool = ("--env-backend", "envpool")
    return [
        *(Case(label, redline("ppo", env, steps, *eager)) for label, env in envs.items()),
        Case("CartPole, EnvPool", redline("ppo", "CartPole-v1", steps, *eager, *envpool)),
        Case("CartPole, tensors", redline("ppo", "redline/CartPole-v1", steps, *eager)),
        Case("Pong, ALE", redline("ppo", "ALE/Pong-v5", max(steps // 2, 1024), *eager)),
    ]


def _workers(scale: float, cleanrl: Path | None) -> list[Case]:
    steps = int(8_192 * scale)
    shared = ("--accelerate", "eager", "--num-envs", "16")
    return [
        *(
            Case(
                f"{number} simulator{'s' * (number > 1)}",
                redline(
                    *("ppo", "CartPole-v1", steps, *shared),
                    *("--collector", "workers", "--num-workers", str(number)),
                ),
                simulators=number,
            )
            for number in (1, 2, 4, 8, 16)
        ),
        # As in self-play each acts by itself, with weights that one learner sends.
        *(
            Case(
                f"{number} actor{'s' * (number > 1)}",
                redline(
                    *("appo", "CartPole-v1", steps, *shared),
                    *("--collector", "async", "--num-workers", str(number)),
                ),
                simulators=number,
            )
            for number in (1, 4, 16)
        ),
    ]


STUDIES = {
    "frameworks": _frameworks,
    "algorithms": _algorithms,
    "simulators": _simulators,
    "workers": _workers,
}
