"""Runs on Ray: what cannot be reached is named, and a sweep outlives a node of its cluster."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.errors import ClusterError, ConfigError, MissingExtraError
from redline.launch import ray_places
from redline.launch.ray_places import RayPlaces
from redline.launch.state import SweepState

BASE = {
    "env": "CartPole-v1",
    "total_env_steps": 12_000,
    "checkpoint_interval": 1_000,
    "num_envs": 2,
    "rollout_length": 32,
    "num_minibatches": 2,
    "hidden_sizes": [8],
    "tensorboard": False,
}


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


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_listens_but_is_no_cluster_is_named(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself would wait for minutes; nothing but silence, or another protocol."""
    pytest.importorskip("ray")
    monkeypatch.setattr("redline.ray_cluster._ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with contextlib.suppress(OSError):  # who calls may be gone
                connection, _ = server.accept()
                with connection:
                    connection.sendall(answer)
                    connection.recv(100)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        with pytest.raises(ClusterError, match="is no Ray cluster: it does not answer as one"):
            RayPlaces(address=f"127.0.0.1:{server.getsockname()[1]}")
        listener.join(20)  # before the server is closed


def test_a_search_asks_for_the_same_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    asked: dict[str, Any] = {}

    def refuse(**options: Any) -> None:
        asked.update(options)
        raise ClusterError("there is none")

    monkeypatch.setattr(ray_places, "RayPlaces", refuse)
    file: Mapping[str, Any] = {"algorithm": "ppo", "base": BASE, "launch": {"on": "ray"}}
    with pytest.raises(ClusterError, match="there is none"):
        redline.tune(file, out=tmp_path / "tuning", slots=2, address="head:6379", quiet=True)
    assert (asked["slots"], asked["address"]) == (2, "head:6379")
    assert not (tmp_path / "tuning").exists()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without CPUs and two nodes with one each; small, without dashboard or network."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=small["object_store_memory"])
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_a_run_of_a_lost_node_goes_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "ppo-CartPole-v1-seed=1"

    def lose_its_node() -> None:
        _wait_until(lambda: any(run.glob("checkpoints/*")))
        said = (run / "output.txt").read_text()
        lost = next(node for node in cluster.worker_nodes if f"node {node.node_id} " in said)
        cluster.remove_node(lost, allow_graceful=False)

    losing = threading.Thread(target=lose_its_node, daemon=True)
    losing.start()
    done = redline.sweep(
        algorithm="ppo",
        base=BASE,
        seeds=1,
        out=tmp_path,
        on="ray",
        address=cluster.address,
        quiet=True,
    )
    losing.join(timeout=10)
    assert not losing.is_alive()
    assert done.exit_code == 0
    with SweepState(tmp_path) as state:
        assert [run.result["env_steps"] for run in state.runs("done")] == [12_032]
    assert "resumed" in (run / "history.jsonl").read_text()
    nodes = [line for line in (run / "output.txt").read_text().splitlines() if " node " in line]
    assert len(set(nodes)) == 2  # the second on another one


def _wait_until(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
