"""The process of one run: what it says of settings that reach outside the run directory."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.launch import run_process
from redline.launch.run_process import _config_of, _confirmed, _trained, main, write_order
from redline.train.runs.outside_settings import require_confirmed


def _order(**settings: Any) -> dict[str, Any]:
    base = {"env": "CartPole-v1", "total_env_steps": 100}
    return {
        **{"algorithm": "ppo", "settings": base | settings},
        **{"seed": 1, "key": "k", "threads": 1, "cores": []},
    }


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({"wandb": True}, "eager"),
        ({"env_kwargs": {"path": "/data/levels"}}, "eager"),
        ({"accelerate": "compile"}, "compile"),
        ({"accelerate": "compile"}, "eager"),  # its self-check failed
        ({"accelerate": "auto"}, "compile+cudagraph"),
    ],
)
def test_a_resumed_run_confirms_what_its_sweep_has_said(
    settings: dict[str, Any], recorded: str, tmp_path: Path
) -> None:
    order = _order(**settings)
    config = _config_of(tmp_path, order).replace(accelerate=recorded)
    (tmp_path / "config.json").write_text(json.dumps({"run": {"accelerate": recorded}}))
    require_confirmed(config, _confirmed(tmp_path, order))


def test_what_only_the_run_directory_says_is_not_confirmed(tmp_path: Path) -> None:
    order = _order(accelerate="eager")
    (tmp_path / "config.json").write_text(json.dumps({"run": {"accelerate": "compile"}}))
    confirmed = _confirmed(tmp_path, order)
    config = _config_of(tmp_path, order)
    with pytest.raises(ConfigError, match="runs a compiler"):
        require_confirmed(config.replace(accelerate="compile"), confirmed)
    with pytest.raises(ConfigError, match="not what the run was begun with"):
        require_confirmed(config.replace(wandb=True), confirmed)


@pytest.mark.parametrize(
    "settings",
    [
        {"eval_interval": 101},
        {"checkpoints": "gap", "checkpoint_gap": 20, "checkpoint_interval": 21},
    ],
)
def test_a_folder_begun_earlier_is_finished_as_it_was_begun(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """A new run is refused with these; nobody could change what a folder has queued."""
    small = {
        **{"num_envs": 2, "rollout_length": 10, "num_minibatches": 1, "hidden_sizes": [4]},
        **{"tensorboard": False, "tune_process": False},
    }
    code, result = _trained(tmp_path, _order(**small | settings))
    assert code == 0
    assert result is not None
    assert result["env_steps"] == 100
    written = json.loads((tmp_path / "config.json").read_text())["run"]
    assert {name: written[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOLCK, "No locks available"), r"cannot be locked \(No locks available\)"),
        (BlockingIOError(errno.EAGAIN, "busy"), "still in use by a process of an earlier launcher"),
    ],
)
def test_a_run_that_cannot_be_locked_says_so_in_its_outcome(
    error: OSError, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep showed the error that an earlier attempt had left there."""

    def refuse(descriptor: int, patience_s: float) -> None:
        raise error

    monkeypatch.setattr(run_process, "lock_within", refuse)
    write_order(tmp_path, _order())
    outcome = tmp_path / "outcome.json"
    outcome.write_text(json.dumps({"key": "k", "error": "ValueError: an earlier one"}))
    assert main([str(tmp_path)]) == 1
    assert re.search(said, json.loads(outcome.read_text())["error"])
    outcome.write_text(json.dumps({"key": "k", "result": {"return_mean": 1.0}}))
    assert main([str(tmp_path)]) == 0  # whoever holds the run has finished it
    assert json.loads(outcome.read_text())["result"] == {"return_mean": 1.0}
