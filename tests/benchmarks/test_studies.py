"""What the case studies say of rows made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.studies.__main__ import draw, table
from benchmarks.studies.cases import STUDIES
from benchmarks.studies.findings import CONFIRMED, REFUTED, UNTESTABLE, findings
from benchmarks.unmarked.__main__ import shares
from benchmarks.unmarked.__main__ import table as unmarked_table

from redline.command_line.train import parse_train_arguments


def row(label: str, simulation: float, rest: float, **values: Any) -> dict[str, Any]:
    parts = {"simulation": simulation, "backpropagation": rest}
    found = {"label": label, "on_policy": True, "simulators": 1, "env_steps": 1000}
    found |= {"us": simulation + rest, "half_us": 1.0, "parts_us": parts, "waiting_us": 0.0}
    return found | {"gpu_busy": 0.0, "busy": 0.5, "monitor": 0.9, "problems": []} | values


def test_frameworks_are_compared_by_time_per_env_step() -> None:
    rows = [row("SB3", 100, 400), row("Redline eager", 100, 150), row("Redline cpu", 50, 50)]
    speed, graphs, gpu = findings("frameworks", rows)
    assert "SB3 takes 5.0 times as long as Redline cpu" in speed.here
    assert speed.verdict == CONFIRMED
    assert "2.5 times" in graphs.here
    assert gpu.verdict == UNTESTABLE


@pytest.mark.parametrize(("on_policy", "verdict"), [(360, CONFIRMED), (340, REFUTED)])
def test_on_policy_is_more_bound_by_simulation(on_policy: float, verdict: str) -> None:
    """10% against a little more, and a little less, than the published 3.5 times that."""
    rows = [row("PPO", on_policy, 1000 - on_policy), row("SAC", 100, 900, on_policy=False)]
    bound, updates, _ = findings("algorithms", rows)
    assert bound.verdict == verdict
    assert "90 to 90%" in updates.here


def test_the_gpu_is_judged_where_there_is_one() -> None:
    found = findings("simulators", [row("Hopper", 40, 60, gpu_busy=0.2)])
    assert [one.verdict for one in found] == [CONFIRMED, REFUTED]


def test_every_study_makes_a_page_and_a_figure(tmp_path: Path) -> None:
    rows = [row("a", 10, 30), row("b", 5, 5, on_policy=False, simulators=4)]
    for name in STUDIES:
        text = table(name, rows)
        assert text.count("\n| a |") == 1
        assert "| published (RL-Scope, 2021) | here | |" in text
    draw("workers", rows, tmp_path / "workers.png")
    assert (tmp_path / "workers.png").stat().st_size > 1000


def test_studies_scale_their_work(tmp_path: Path) -> None:
    for make in STUDIES.values():
        small, large = make(0.25, tmp_path), make(1.0, tmp_path)
        assert [case.label for case in small] == [case.label for case in large]
        assert [case.command for case in small] != [case.command for case in large]


def test_other_is_that_of_the_process_started_first() -> None:
    summary = {
        "processes": [{"pid": 2, "cpu_s": 1.0}, {"pid": 1, "cpu_s": 9.0}],
        "cells": [
            {"pid": 1, "operation": "other", "corrected_s": 5.0},
            {"pid": 2, "operation": "other", "corrected_s": 1.0},
            {"pid": 2, "operation": "learning", "corrected_s": 3.0},
        ],
    }
    found = shares(summary)
    assert (found["other"], found["seconds"]) == (0.25, 4.0)
    text = unmarked_table({"ppo": {"other": 0.6}}, {"ppo": found, "new": found})
    assert "| ppo | 60.0% | 25.0% | learning 75%, other 25% |" in text
    assert "| new | - | 25.0% |" in text


def test_redline_takes_the_optimizer_steps_of_the_others(tmp_path: Path) -> None:
    """512 samples in minibatches of 128, four times over, as the settings of SB3's case say.

    The preset of CartPole makes one minibatch of all 512: a fourth of the steps.
    """
    for case in STUDIES["frameworks"](1.0, tmp_path):
        if not case.label.startswith("Redline"):
            continue
        words = case.command[case.command.index("train") + 1 :]
        algo = parse_train_arguments(words).algo
        samples = algo.num_envs * algo.rollout_length
        assert (samples, samples / algo.num_minibatches, algo.num_epochs) == (512, 128, 4)
