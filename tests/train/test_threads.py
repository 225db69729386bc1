"""Threads by work, cores and load."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from redline.envs.cpus import allowed_cpus
from redline.train.threads import busy_cores, choose_threads, update_multiplications

SAC, DDPG, DQN, PPO = 1.7e8, 1.1e8, 4.2e6, 1.7e7


@pytest.mark.parametrize(
    ("work", "cores", "busy", "threads"),
    [
        (SAC, 1, 0.0, 1),
        (SAC, 2, 0.0, 2),
        (SAC, 2, 0.3, 2),  # a little load of others is no reason to leave a core idle
        (SAC, 2, 0.6, 1),
        (SAC, 2, 2.0, 1),
        (SAC, 16, 0.0, 3),
        (DDPG, 16, 0.0, 2),
        (DQN, 16, 0.0, 1),
        (PPO, 16, 0.0, 1),
        (0.0, 16, 0.0, 1),
        (math.inf, 16, 0.0, 16),
        (math.inf, 16, 12.2, 4),
    ],
)
def test_threads_follow_work_cores_and_load(
    work: float, cores: int, busy: float, threads: int
) -> None:
    assert choose_threads(work, cores, busy) == threads


def test_work_counts_what_is_learned_once() -> None:
    """10 rows x 3 passes x (2 x 3 + 3) parameters; frozen ones and a second name add nothing."""
    learned, target = nn.Linear(2, 3), nn.Linear(2, 3).requires_grad_(False)
    algorithm = SimpleNamespace(policy=learned, actor=learned, target=target, gamma=0.9)
    assert update_multiplications(algorithm, 10) == 270


def test_without_a_table_of_times_nothing_is_busy(tmp_path: Path) -> None:
    assert busy_cores(tmp_path / "none") == 0.0
    table = tmp_path / "stat"
    table.write_text("cpu 1 2 3\ncpu0 x\n")
    assert busy_cores(table) == 0.0
    table.write_text("".join(f"cpu{core} 0 0 0 0 0 0 0 0\n" for core in allowed_cpus()))
    assert busy_cores(table) == 0.0


def test_this_machine_has_no_more_busy_cores_than_cores() -> None:
    assert 0.0 <= busy_cores() <= len(allowed_cpus()) + 0.5
