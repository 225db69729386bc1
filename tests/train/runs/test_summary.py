"""What a list says of a run directory that is not as Redline left it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from redline.cli import main

RUN = Path(__file__).parents[2] / "fixtures" / "revision-0.1" / "training" / "ppo" / "run"


@pytest.mark.parametrize(
    "damage",
    [b"env_steps,return_mean\n\xff,\xfe\n", b"\xff\n1\n", b"env_steps\ninf\n", b"env_steps\nx\n"],
)
def test_a_run_with_damaged_rows_is_listed_with_the_problem(
    damage: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "mine"
    shutil.copytree(RUN, run)
    (run / "progress.csv").write_bytes(damage)
    assert main(["runs", str(tmp_path / "runs")]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].startswith("mine")
    assert table[2].startswith(f"{run}: progress.csv is damaged")
