"""Runs on Ray: what cannot be reached is named, and a sweep on a cluster started here."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import redline
from redline.errors import ClusterError, ConfigError, MissingExtraError
from redline.launch.ray_places import RayPlaces
from redline.launch.state import SweepState


def test_without_ray_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'redline\[ray\]'"):
        RayPlaces()


def test_a_cluster_that_is_not_there_is_named() -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"no Ray cluster at 127.0.0.1:{port}"):
        RayPlaces(address=f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="must be host:port"):
        RayPlaces(address="somewhere")


@pytest.fixture
def _no_cluster_is_left() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("_no_cluster_is_left")
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_sweep_runs_on_a_cluster_that_is_started_here(tmp_path: Path) -> None:
    base = {
        "env": "CartPole-v1",
        "total_env_steps": 128,
        "num_envs": 2,
        "rollout_length": 32,
        "num_minibatches": 2,
        "hidden_sizes": [8],
        "tensorboard": False,
    }
    done = redline.sweep(algorithm="ppo", base=base, out=tmp_path, on="ray", slots=1, quiet=True)
    assert done.exit_code == 0
    with SweepState(tmp_path) as state:
        run = state.runs()[0]
    assert (run.state, run.result["env_steps"]) == ("done", 128)
