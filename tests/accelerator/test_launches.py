"""`benchmarks.launches` counts what the host launches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.launches_of_peers import count, on_the_stand_in, per_env_step

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
    x.sum().item()
"""


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
    launches.write([row], tmp_path, [{"script": "a.py", "launches": 2.0, "waits": 1.0}])
    text = (tmp_path / "launches.md").read_text()
    assert f"| dqn | {mode} |" in text
    assert "| a.py | 2.00 | 1.00 |" in text


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


def test_a_script_that_cannot_be_counted_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no line with torch\.device"):
        on_the_stand_in("device = 'cpu'")
    script = tmp_path / "script.py"
    script.write_text("print(1)")
    assert 'torch.device("standin:0")' in on_the_stand_in('torch.device("cuda:0" if ok else "cpu")')
    assert "no line with torch.device" in per_env_step(script, (1, 2))["failed"]
