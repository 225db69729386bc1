"""`benchmarks.launches` counts what the host launches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.launches_of_peers import (
    PeerScript,
    count,
    line_of_learning,
    on_the_stand_in,
    per_env_step,
)

from benchmarks import launches

SCRIPT = """
import argparse
import torch
from tensordict.nn import CudaGraphModule

parser = argparse.ArgumentParser()
parser.add_argument("--total-timesteps", type=int)
steps = parser.parse_args().total_timesteps
device = torch.device("cuda" if torch.cuda.is_available() and True else "cpu")
x = torch.zeros(3, device=device)
step = CudaGraphModule(lambda x: x * 2 + 1) if {captured} else (lambda x: x * 2 + 1)
for _ in range(steps):
    x = step(x)
    # ALGO LOGIC: training.
    x.sum().item()
"""

OLD_SCRIPT = """
import sys
import torch
from package_of_a_peer import TIMES

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.zeros(3, device=device)
for _ in range(int(sys.argv[2])):
    for _ in range(TIMES):
        y = x + 1
    # Optimizing the policy and value network
    for _ in range(TIMES):
        y = x + 1
"""
PEER = {"script": "a.py", "launches": 2.0, "launches_per_update": 3.0, "waits": 1.0}


@pytest.mark.parametrize("mode", launches.MODES)
def test_launches_of_a_small_workload(mode: str, tmp_path: Path) -> None:
    row = launches.measure("dqn", mode, env="redline/CartPole-v1", batch_size=8, replay_ratio=1.6,
                           learning_starts=40, total_env_steps=120, hidden_sizes=(8,),
                           target_update_interval=2)  # fmt: skip
    assert row["updates"] == 2
    if mode == "cudagraph":
        assert row["learn"]["launches"] == 1
    else:
        assert row["learn"]["launches"] > 2 * 30
    assert row["learn"]["waits"] == 0
    assert row["learn"]["copied_bytes"] == 0
    launches.write([row], tmp_path, [PEER])
    text = (tmp_path / "launches.md").read_text()
    assert f"| dqn | {mode} |" in text
    assert "| a.py | 3.00 | 2.00 | 1.00 |" in text


@pytest.mark.parametrize(("captured", "wanted"), [(False, 3), (True, 4)])
def test_launches_of_a_script(
    captured: bool, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Product, sum and reduction; captured: a graph, copies in and out, and the reduction."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr("tensordict.nn.CudaGraphModule", None)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(captured=captured))
    few, many = count(script, 5), count(script, 9)
    assert (many["launches"] - few["launches"]) / 4 == wanted
    assert (many["waits"] - few["waits"]) / 4 == 1
    assert (many["launches_to_learn"] - few["launches_to_learn"]) / 4 == 1


def test_a_script_sees_older_packages_first(tmp_path: Path) -> None:
    """Twice the launches with the older package; a checkout's folder comes after it."""
    older, checkout = tmp_path / "older", tmp_path / "checkout"
    for folder, times in ((older, 2), (checkout, 1)):
        folder.mkdir()
        (folder / "package_of_a_peer.py").write_text(f"TIMES = {times}\n")
    (checkout / "script.py").write_text(OLD_SCRIPT)
    script = PeerScript("script.py", "sac", (), (2, 4), env_steps_per_update=10)
    assert launches.measure_peer(script, checkout, [older]) == {
        "script": "script.py", "launches": 4.0, "launches_to_learn": 2.0, "waits": 0.0,
        "launches_per_update": 20.0,
    }  # fmt: skip


def test_a_script_that_cannot_be_counted_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no line with torch\.device"):
        on_the_stand_in("device = 'cpu'")
    with pytest.raises(ValueError, match="no comment"):
        line_of_learning("x = 1")
    script = tmp_path / "script.py"
    script.write_text("print(1)")
    assert 'torch.device("standin:0")' in on_the_stand_in('torch.device("cuda:0" if ok else "cpu")')
    assert "no line with torch.device" in per_env_step(script, (1, 2))["failed"]
