"""Algorithms that an installed package offers: found by name, trained, resumed and loaded so."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import redline
from redline import registry
from redline.algos.a2c import A2C
from redline.algos.registry import BUILT_IN, algorithm_label, algorithm_names, find_algorithm
from redline.cli import main
from redline.errors import UnknownNameError


class Own(A2C):
    """A2C by another name."""

    name = "own"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("own", f"{__name__}:Own", "redline.algorithms")
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: [point] if group == point.group else []
    )


def test_installed_algorithms_are_found_by_entry_point() -> None:
    assert find_algorithm("own") is Own
    assert algorithm_names() == (*BUILT_IN, "own")
    assert algorithm_label(Own) == "own"
    with pytest.raises(UnknownNameError, match="Did you mean 'own'"):
        find_algorithm("owm")


def test_a_run_of_one_goes_on_by_its_name_alone(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    command = ["train", "own", "--env", "CartPole-v1", "--total-env-steps", "64", "--out", out]
    command += ["--num-envs", "2", "--rollout-length", "16", "--quiet", "--no-tensorboard"]
    assert main(command) == 0
    assert redline.load(out).config.algorithm == "own"
    assert main(["train", "--resume", out, "--total-env-steps", "96", "--quiet"]) == 0
    assert main(["eval", out, "--episodes", "1"]) == 0
    assert redline.load(out).inspect()["env_steps"] == 96
