"""Runs on Ray: what cannot be reached is named, and a sweep outlives a node of its cluster."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import redline
from redline.errors import ClusterError, ConfigError, MissingExtraError
from redline.launch import ray_places
from redline.launch.ray_places import RayPlaces
from redline.launch.state import SweepState
from redline.ray_cluster import starts_here

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


NODES = [
    {"Alive": True, "Resources": {"CPU": 4.0, "memory": 8.0 * 2**30}},
    {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0, "memory": 64.0 * 2**30}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0, "memory": 512.0 * 2**30}},
]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of two nodes, and one that is lost; it has 6 CPUs and a GPU."""
    ray = SimpleNamespace(
        cluster_resources=lambda: {"CPU": 6.0, "GPU": 1.0},
        nodes=lambda: NODES,
        remote=lambda **options: lambda run: run,
    )
    monkeypatch.setattr(ray_places, "connected_ray", lambda *args, **options: ray)
    monkeypatch.setattr(ray_places, "starts_here", lambda address: address is None)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cores_per_run": 5}, "5 CPUs, 0 GPUs, 0.0 GiB"),
        ({"gpus_per_run": 2}, "1 CPUs, 2 GPUs, 0.0 GiB"),
        ({"memory_gb": 100.0}, "1 CPUs, 0 GPUs, 100.0 GiB"),
        ({"cores_per_run": 4, "gpus_per_run": 1}, "4 CPUs, 1 GPUs, 0.0 GiB"),
    ],
)
def test_what_no_node_has_is_refused(
    played: None, asked: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray let the runs wait for ever, and nothing was printed."""
    said = f"a run asks for {said}, and no node .* 2 CPUs, 1 GPUs, 64.0 GiB; 4 CPUs, 0 GPUs, 8.0"
    with pytest.raises(ConfigError, match=said):
        RayPlaces(**asked)
    RayPlaces(**asked, address="head:6379")  # where nodes may join
    assert re.search(f"warning: {said}.* until such a node joins", capsys.readouterr().err)


def test_what_one_node_has_is_taken(played: None) -> None:
    for asked in ({}, {"cores_per_run": 4, "memory_gb": 8.0}, {"gpus_per_run": 1}):
        assert RayPlaces(**asked).free() == "ray"  # type: ignore[arg-type]


def test_a_cluster_that_would_start_here_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert starts_here(None)
    assert starts_here("local")
    assert not starts_here("head:6379")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert not starts_here(None)
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert not starts_here(None)


def test_a_run_works_in_the_folder_of_its_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data: demos.npz` was checked there, and looked for where `ray start` had been called."""
    began: list[dict[str, Any]] = []

    def begin(command: list[str], **options: Any) -> Any:
        del command
        began.append(options)
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    context = SimpleNamespace(get_node_id=lambda: "abc")
    ray = SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_places.subprocess, "Popen", begin)
    for folder in (tmp_path, tmp_path / "not-on-this-node"):
        assert ray_places._run(str(tmp_path), {}, 1, str(folder)) == 0
    assert [options["cwd"] for options in began] == [str(tmp_path), None]


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
