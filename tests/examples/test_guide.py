"""The algorithm that the guide writes out runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import redline
from redline.algos.algorithm import OffPolicyAlgorithm
from redline.algos.config import OffPolicyConfig
from redline.algos.q_learning import make_q_policy
from redline.models.q_heads import ScalarHead
from redline.policies.q_policy import at_action

GUIDE = Path(__file__).parents[2] / "docs" / "own_algorithm.md"


def test_the_guides_off_policy_algorithm_trains_resumes_and_acts(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "OffPolicyAlgorithm" in block]
    space: dict[str, Any] = {
        "torch": torch,
        "OffPolicyAlgorithm": OffPolicyAlgorithm,
        "OffPolicyConfig": OffPolicyConfig,
        "make_q_policy": make_q_policy,
        "ScalarHead": ScalarHead,
        "at_action": at_action,
        "__name__": "guide",
    }
    exec(compile(code, str(GUIDE), "exec"), space)
    settings: dict[str, Any] = {"env": "CartPole-v1", "learning_starts": 50, "batch_size": 8}
    settings |= {
        "tensorboard": False,
        "replay_ratio": 8.0,
        "num_threads": 1,
        "quiet": True,
        "seed": 1,
    }
    mine: Any = space["Mine"]
    whole = redline.train(mine, total_env_steps=200, out=tmp_path / "whole", **settings)
    redline.train(mine, total_env_steps=100, out=tmp_path / "half", **settings)
    resumed = redline.train(mine, resume=tmp_path / "half", total_env_steps=200, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert whole.evaluate(episodes=2).episodes == 2
