"""Programs that profiles are tested on: CleanRL's scripts, Stable-Baselines3, and usual pieces.

CleanRL is no package: clone https://github.com/vwxyzjn/cleanrl and name the folder. Its scripts run
as they are. The others are in `benchmarks.unmarked.programs`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Script, arguments, env steps of some 8 s on the machine of the recorded results.
CLEANRL = {
    "CleanRL SAC": ("sac_continuous_action", "--env-id Hopper-v5 --learning-starts 200", 1_000),
    "CleanRL PPO": ("ppo", "", 12_288),
    "CleanRL DQN": ("dqn", "--learning-starts 500", 12_000),
}
# Name in `benchmarks.unmarked`, env steps.
PIECES = {
    "SB3 SAC": ("sb3 sac", 700),
    "SB3 PPO, 4 processes": ("sb3 ppo, 4 processes", 8_192),
    "EnvPool": ("ppo on envpool", 15_360),
    "DataLoader": ("data loader", 9_000),  # 6 s of it are imports
    "torch.compile": ("dqn, compiled loss", 10_000),
}
NAMES = (*CLEANRL, *PIECES)

__all__ = ["NAMES", "command", "environment"]


def command(name: str, cleanrl: Path | None, scale: float = 1.0) -> list[str]:
    """What to run.

    Args:
        name: one of `NAMES`.
        cleanrl: the clone's folder.
        scale: of the env steps.

    Raises:
        SystemExit: if the program is CleanRL's and there is no clone.
    """
    if name in PIECES:
        known, env_steps = PIECES[name]
        program = [sys.executable, "-m", "benchmarks.unmarked.programs", known]
        return [*program, "--env-steps", str(max(int(env_steps * scale), 256))]
    script, options, env_steps = CLEANRL[name]
    if cleanrl is None or not (path := cleanrl / "cleanrl" / f"{script}.py").exists():
        raise SystemExit(
            f"{name} needs a clone of CleanRL, and --cleanrl is {cleanrl}. Clone "
            "https://github.com/vwxyzjn/cleanrl and give its folder"
        )
    steps = ["--total-timesteps", str(max(int(env_steps * scale), 1_024))]
    return [sys.executable, str(path), "--no-cuda", *steps, *options.split()]


def environment(cleanrl: Path | None) -> dict[str, str]:
    """The environment of all of them: one thread for torch, and where modules are found."""
    places = [ROOT, ROOT / "src", *([cleanrl] if cleanrl else [])]
    path = os.pathsep.join(str(place) for place in places)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
