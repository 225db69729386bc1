"""Data-parallel runs: two ranks of half the environments against one process with all."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import redline
from redline.errors import ConfigError, IncompatibleCheckpointError
from redline.train.presets import preset_config
from redline.train.ranks import ALONE, Ranks, learned_by
from redline.train.settings import RunConfig

SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 4,
    "rollout_length": 16,
    "num_minibatches": 1,
    "num_epochs": 2,
    "normalize_obs": True,
    "scale_reward": True,
    "hidden_sizes": [16],
    "total_env_steps": 20 * 64,
    "log_interval": 64,
    "checkpoint_interval": 640,
    "tensorboard": False,
    "quiet": True,
    "num_threads": 1,
}


def _torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [sys.executable, "-m", *launcher, "-m", "redline", "train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 updates of PPO by two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "run.json").write_text(json.dumps({"algorithm": "ppo", **SETTINGS}))
    out = folder / "run"
    done = _torchrun("--config", str(folder / "run.json"), "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


def test_two_ranks_equal_one_process_with_all_environments(parallel: Path, tmp_path: Path) -> None:
    alone = redline.train("ppo", **SETTINGS, accelerate="eager", out=tmp_path / "alone")
    mine, theirs = _rows(tmp_path / "alone"), _rows(parallel)
    assert len(mine) == len(theirs) == 20
    for one, two in zip(mine, theirs, strict=True):
        assert one["env_steps"] == two["env_steps"]
        for name in ("return_mean", "policy_loss", "value_loss", "entropy", "grad_norm"):
            if one[name]:
                assert float(two[name]) == pytest.approx(float(one[name]), rel=2e-3, abs=1e-5), name
    other = redline.load(parallel).policy().state_dict()
    for name, value in alone.policy().state_dict().items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-4)


def test_another_number_of_ranks_is_refused(parallel: Path) -> None:
    with pytest.raises(IncompatibleCheckpointError, match="saved by 2 ranks, and 1 would"):
        redline.train(resume=parallel, total_env_steps=2_000, quiet=True)


def _config(algorithm: str, **settings: Any) -> RunConfig:
    from redline.algos.registry import declaration

    return preset_config(declaration(algorithm), "CartPole-v1", "default").replace(**settings)


def test_settings_are_split_and_what_does_not_divide_is_named() -> None:
    ranks = Ranks(1, 2)
    ppo = ranks.share(_config("ppo", num_envs=8, rollout_length=64)).algo
    # 512 samples make 8 minibatches of 64, so that each rank takes 8 steps of 32.
    assert (ppo.num_envs, getattr(ppo, "num_minibatches", None)) == (4, 8)
    dqn = ranks.share(_config("dqn", num_envs=2, batch_size=64, replay_size=1000)).algo
    assert (dqn.num_envs, dqn.batch_size, dqn.replay_size) == (1, 32, 500)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"num_envs=1 and batch_size=33 .* over 2 ranks"):
        ranks.share(_config("dqn", num_envs=1, batch_size=33))
    config = _config("ppo")
    assert ALONE.share(config) is config


def test_what_ranks_cannot_do_is_refused() -> None:
    for settings in ({"eval_async": True, "eval_interval": 10}, {"target_kl": 0.1}):
        with pytest.raises(ConfigError, match="does not go with several ranks"):
            Ranks(0, 2).check(_config("ppo", **settings))
        ALONE.check(_config("ppo", **settings))


def test_every_parameter_that_an_optimizer_changes_is_found_once() -> None:
    class Learner:
        def __init__(self) -> None:
            self.network = torch.nn.Linear(2, 1)
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
            self.again = torch.optim.SGD([self.network.weight], lr=0.1)

    assert len(learned_by(Learner())) == 2
