"""`examples/own_algorithm.py`: one class that all of Redline serves, in Python and by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import redline
from redline.cli import main
from redline.errors import ConfigError, UnknownNameError
from redline.train.runs.run import load_run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def algorithm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from own_algorithm import KLPenaltyPPO  # type: ignore[import-not-found]

    return KLPenaltyPPO


def trained(algorithm: Any, out: Path, **settings: Any) -> Any:
    return redline.train(
        algorithm,
        env="CartPole-v1",
        out=out,
        seed=1,
        tensorboard=False,
        quiet=True,
        num_threads=1,
        **settings,
    )


def test_loss_by_hand() -> None:
    """r = 2 and 1, A = 3 and 1, beta = 1/2, the third row does not count.

    KL terms: 2 - 1 - log 2 and 0; loss = ((1 - log 2) / 2 - 6 - 1) / 2.
    """
    sys.path.insert(0, str(EXAMPLES))
    try:
        from own_algorithm import penalized_loss  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLES))
    log_ratio = torch.tensor([2.0, 1.0, float("inf")]).log()
    valid = torch.tensor([True, True, False])
    loss: Tensor = penalized_loss(
        log_ratio, torch.tensor([3.0, 1.0, 9.0]), torch.tensor(0.5), valid
    )
    assert loss.item() == pytest.approx(((1.0 - torch.tensor(2.0).log().item()) / 2.0 - 7.0) / 2.0)


def test_it_is_trained_saved_resumed_and_evaluated(algorithm: Any, tmp_path: Path) -> None:
    """Stopped half way and resumed, it ends with the parameters of an undisturbed run."""
    whole = trained(algorithm, tmp_path / "whole", total_env_steps=1024, num_epochs=2)
    trained(algorithm, tmp_path / "half", total_env_steps=512, num_epochs=2)
    again = redline.train(algorithm, resume=tmp_path / "half", total_env_steps=1024, quiet=True)
    assert again.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert whole.inspect()["optimizer_steps"] == 2 * 1024 // 512
    assert whole.evaluate(episodes=2).episodes == 2


def test_it_learns(algorithm: Any, tmp_path: Path) -> None:
    """CartPole from some 20 to above 150 within 40,000 env_steps, with its defaults."""
    run = trained(algorithm, tmp_path / "run", total_env_steps=40_000)
    assert run.evaluate(episodes=10).return_mean > 150.0


def test_a_run_directory_alone_imports_nothing(algorithm: Any, tmp_path: Path) -> None:
    trained(algorithm, tmp_path / "run", total_env_steps=512, num_epochs=1)
    assert json.loads((tmp_path / "run/config.json").read_text())["algorithm"] == (
        "own_algorithm:KLPenaltyPPO"
    )
    with pytest.raises(ConfigError, match="must not decide what is imported"):
        load_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="must not decide what is imported"):
        redline.train(resume=tmp_path / "run")
    assert load_run(tmp_path / "run", algorithm="own_algorithm:KLPenaltyPPO").inspect()


def test_the_command_line_takes_it_by_module_and_name(
    algorithm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command in a process of its own: there the module is found in the folder."""
    name, out = "own_algorithm:KLPenaltyPPO", str(tmp_path / "run")
    command = [
        sys.executable, "-m", "redline", "train", name, "--env", "CartPole-v1",
        "--total-env-steps", "512", "--out", out, "--num-epochs", "1", "--quiet",
        "--no-tensorboard", "--num-threads", "1",
    ]  # fmt: skip
    begun = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert begun.returncode == 0, begun.stderr
    assert main(["train", name, "--resume", out, "--total-env-steps", "1024"]) == 0
    capsys.readouterr()
    assert main(["inspect", out, "--algorithm", name]) == 0
    assert json.loads(capsys.readouterr().out)["env_steps"] == 1024
    assert main(["train", name, "--help"]) == 0
    assert "--target-kl" in capsys.readouterr().out
    assert main(["train", "own_algorithm:Nothing", "--env", "CartPole-v1"]) == 2
    assert "has no algorithm 'Nothing'" in capsys.readouterr().err


def test_what_is_no_algorithm_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="is no algorithm"):
        redline.train(dict, env="CartPole-v1")
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        redline.train("ppoo", env="CartPole-v1")
