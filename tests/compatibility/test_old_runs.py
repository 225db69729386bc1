"""Runs that earlier revisions wrote load, evaluate and go on to their end.

The fixtures were stopped half-way; `expected.json` and `expected.safetensors` hold what the
revision that wrote them gave at the end. `tests/fixtures/write_runs.py` makes such a fixture.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import redline

FIXTURES = Path(__file__).parents[1] / "fixtures"
OLD_RUNS = sorted(FIXTURES.glob("revision-*/training/*"))

RELATIVE_TOLERANCE = 1e-3
"""Of the change that the resumed half makes to the parameters, in the L2 norm over all of them.

Kernels differ between revisions and processors, so each update differs by some 1e-7. Adam divides
small gradients by their own size, which lets single parameters differ by more than their norm does.
"""


@pytest.fixture(params=OLD_RUNS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The fixture, and a copy of its run to write into."""
    fixture: Path = request.param
    shutil.copytree(fixture / "run", tmp_path / "run")
    return fixture, tmp_path / "run"


def test_there_are_old_runs() -> None:
    assert len(OLD_RUNS) >= 10


def test_an_old_run_evaluates_as_before(old_run: tuple[Path, Path]) -> None:
    fixture, run = old_run
    expected = expectation(fixture)["evaluation"]
    found = redline.load(run).evaluate(expected["episodes"]).to_json()
    # Later versions say more.
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-3)


def test_an_old_run_ends_as_it_would_have(old_run: tuple[Path, Path]) -> None:
    """Same steps, same updates, and parameters and logged rows to float tolerance."""
    fixture, run = old_run
    expected = expectation(fixture)
    before = learned(redline.load(run))
    resumed = redline.train(resume=run, total_env_steps=expected["total_env_steps"], quiet=True)
    assert resumed.exit_code == 0
    found, wanted = resumed.inspect(), expected["inspect"]
    for name in ("env_steps", "iteration", "optimizer_steps"):
        assert found[name] == wanted[name]
    after, ended = learned(resumed), load_file(fixture / "expected.safetensors")
    assert set(ended) <= set(after)
    difference = distance({name: after[name] for name in ended}, ended)
    if getattr(resumed.config.algo, "prioritized", False):
        # 0.2 divides importance weights by the batch's largest instead of the buffer's, which Adam
        # mostly makes up for: the run goes on with other weights, near where it would have ended.
        assert difference <= 0.1 * distance(before, ended)
        return
    assert difference <= RELATIVE_TOLERANCE * distance(before, ended)
    for row, old_row in zip(last_rows(run, 2), expected["rows"], strict=True):
        assert numbers(row, old_row) == pytest.approx(numbers(old_row), rel=1e-2, abs=1e-4)


def expectation(fixture: Path) -> dict[str, Any]:
    return json.loads((fixture / "expected.json").read_text())


def learned(run: Any) -> dict[str, Tensor]:
    """What gradients change, by part and name: policy.body.0.weight, log_alpha, ..."""
    state = run.checkpoint().state["algorithm"]
    found: dict[str, Tensor] = {}
    for part in ("policy", "critic", "discriminator", "log_alpha"):
        content = state.get(part, {})
        if isinstance(content, Tensor):
            found[part] = content
        else:
            found |= {f"{part}.{name}": value for name, value in content.items()}
    return found


def distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """L2 norm of the difference between floating-point tensors of the same names."""
    squares = [
        (some[name].double() - other.double()).square().sum()
        for name, other in others.items()
        if other.is_floating_point()
    ]
    return float(torch.stack(squares).sum().sqrt())


def last_rows(run: Path, count: int) -> list[dict[str, str]]:
    with (run / "progress.csv").open() as file:
        return list(csv.DictReader(file))[-count:]


def numbers(row: dict[str, str], columns: dict[str, str] | None = None) -> dict[str, float]:
    """The columns that both revisions write and fill."""
    return {name: float(row[name]) for name, value in (columns or row).items() if value}
