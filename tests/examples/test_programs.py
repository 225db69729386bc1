"""The programs in `examples/` that show one job each, run with tiny budgets; and the notebook."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "first_steps.ipynb"
STEPS = ["--env-steps", "512"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run directories of their own, and modules that import each other as programs do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def program(name: str) -> Any:
    return importlib.import_module(name)


def test_an_environment_of_ones_own() -> None:
    assert 0.0 <= program("own_env").main([*STEPS, "--out", "run"]) <= 1.0
    progress = Path("run/progress.csv").read_text()
    assert "success_rate" in progress.splitlines()[0]


def test_the_corridor_by_hand() -> None:
    """Two steps to the right in a corridor of two fields: -0.01, then 1 and the end."""
    env = program("own_env").Corridor(length=2)
    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [0.0]
    assert env.step(0)[0].tolist() == [0.0]  # the wall
    obs, reward, terminated, truncated, info = env.step(1)
    assert (obs.tolist(), reward, terminated, truncated) == ([0.5], -0.01, False, False)
    obs, reward, terminated, _, info = env.step(1)
    assert (obs.tolist(), reward, terminated, info) == ([1.0], 1.0, True, {"is_success": True})


def test_dict_observations() -> None:
    assert 0.0 <= program("dict_observations").main([*STEPS, "--out", "run"]) <= 10.0


def test_a_network_of_ones_own() -> None:
    assert program("own_network").main([*STEPS, "--out", "run"]) > 0.0


def test_a_callback_and_a_curriculum() -> None:
    """Two good iterations in a row, long before the budget is over."""
    steps = program("callback_and_curriculum").main(["--enough", "2", "--out", "run"])
    assert 0 < steps < 20_000
    rows = Path("run/progress.csv").read_text().splitlines()
    assert "mine/good_iterations" in rows[0]


def test_a_warm_start(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*STEPS, "--more-env-steps", "512"]
    for _ in range(2):  # a second call is not in the way of the first one's runs
        cold, warm = program("warm_start").main(argv)
        assert min(cold, warm) > 0.0
        assert "taken: policy." in capsys.readouterr().err
    assert Path("runs/warm-start/short-2").is_dir()


def test_a_serving_loop(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "--requests", "50", "--env-steps", "256"]
    assert program("serving_loop").main(argv) == 50.0
    assert program("serving_loop").main(argv) == 50.0  # the run is there now
    assert "us each" in capsys.readouterr().out


def test_offline_to_online(capsys: pytest.CaptureFixture[str]) -> None:
    returns = program("offline_to_online").main(
        ["--teacher-steps", "512", "--recorded-steps", "2560", "--sac-steps", "16",
         "--episodes", "3"]
    )  # fmt: skip
    assert len(returns) == 3
    assert min(returns) > 0.0
    assert "replay begins with" in capsys.readouterr().err


def test_a_search_with_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is one core."""
    pytest.importorskip("optuna", reason="extra tune is not installed")
    monkeypatch.setattr("redline.launch.slots.usable_cpus", lambda cgroup: 1)
    argv = ["--trials", "1", "--env-steps", "256", "--out", "search"]
    best = program("sweep_with_optuna").main(argv)
    assert "learning_rate" in best.read_text()


def test_a_profile_of_ones_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    from redline.profile.commands import report_main

    out = program("profile_own_loop").main(["--iterations", "5"])
    capsys.readouterr()
    report_main([str(out)])
    said = capsys.readouterr().out
    for name in ("inference", "simulation", "backpropagation"):
        assert name in said


def test_device_environments() -> None:
    argv = ["--num-envs", "8", "--steps", "4", "--device", "cpu", *STEPS, "--out", "run"]
    assert program("device_environments").main(argv) > 0.0


def test_the_notebook_runs_from_top_to_bottom() -> None:
    """Every cell, in order, with a tenth of the steps; none holds outputs."""
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    space: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        assert not cell["outputs"]
        code = "".join(cell["source"]).replace("20_000", "2_000").replace("24_000", "2_400")
        exec(compile(code, f"cell {number}", "exec"), space)
    assert space["total"] > 0
    assert space["longer"].progress()["env_steps"][-1] >= 2_400


def test_every_program_is_run_here() -> None:
    """A program without a test would rot; those of own files have tests of their own."""
    tested_elsewhere = {"demo", "own_algorithm", "own_backend", "own_collector"}
    here = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert path.stem in tested_elsewhere or f'program("{path.stem}")' in here
