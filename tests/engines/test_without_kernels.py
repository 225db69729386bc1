"""Everything trains without the CPU kernels: without their C, and without their folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = tuple(f"redline.engines.cpu.{name}" for name in ("_dense", "_convolution"))
RUNS = {
    "ppo": {"env": "CartPole-v1", "num_envs": 2, "rollout_length": 32, "total_env_steps": 128},
    "sac": {"env": "Pendulum-v1", "total_env_steps": 60, "learning_starts": 20, "batch_size": 8,
            "replay_ratio": 8.0, "replay_size": 100},
    "dqn": {"env": "CartPole-v1", "num_envs": 1, "total_env_steps": 60, "learning_starts": 20,
            "batch_size": 8, "replay_size": 100, "target_update_interval": 10},
}  # fmt: skip
PROGRAM = """
import json, sys

hidden, runs, out = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"no module {name}", name=name)

sys.meta_path.insert(0, Hidden())
import redline

for name, settings in runs.items():
    redline.train(name, out=f"{out}/{name}", preset="default", quiet=True, tensorboard=False,
                  hidden_sizes=(8, 8), **settings)
assert not set(hidden) & set(sys.modules)
"""


@pytest.mark.parametrize(
    "hidden", [EXTENSIONS, ("redline.engines.cpu",)], ids=["extensions", "folder"]
)
def test_runs_train_without(hidden: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(hidden), json.dumps(RUNS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in RUNS:
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["engine"]
        if len(hidden) == 1:
            assert config["run"]["accelerate"] == "eager"
            assert "kernels are not installed" in config["engine"]
        assert list((tmp_path / name / "checkpoints").iterdir())
