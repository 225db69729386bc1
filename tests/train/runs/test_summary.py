"""What a list says of a run directory that is not as Redline left it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from redline.cli import main
from redline.train.runs.summary import summarize_run

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


def test_the_last_return_may_lie_far_above_the_last_row(tmp_path: Path) -> None:
    """Rows without an episode fill more than the end of the file that is read first."""
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    rows = [f"{n},{7.5 if n == 3 else ''}," + "x" * 100 for n in range(1, 4_001)]
    (run / "progress.csv").write_text("\n".join(["env_steps,return_mean,more", *rows, ""]))
    summary = summarize_run(run)
    assert (summary.env_steps, summary.return_mean) == (4_000, 7.5)
    (run / "progress.csv").write_text("\n".join(["env_steps,return_mean,more", *rows[3:], ""]))
    assert summarize_run(run).return_mean is None
