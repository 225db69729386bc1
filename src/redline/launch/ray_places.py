"""Runs as tasks of a Ray cluster, or of one that is started here.

Ray places the tasks, and begins one again elsewhere when its node is lost. The run then goes on
from its last checkpoint, so the sweep's folder must lie where every node can write to it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redline.errors import ConfigError
from redline.launch.local import LOG, appending, outcome_of
from redline.launch.run_process import write_order
from redline.launch.state import Outcome
from redline.ray_cluster import connected_ray, starts_here
from redline.usable_cores import usable_cpus

_STOP = ".stop"
_POLL_S = 0.2
_GIB = 2**30
_ASKED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resource of a node -> what a task calls it."""


class RayPlaces:
    """One Ray task per run.

    Args:
        slots: runs at a time; None: as many as the cluster's cores hold.
        cores_per_run: CPUs of each task, and its threads.
        gpus_per_run: GPUs of each task.
        memory_gb: GiB that Ray keeps free for each task.
        address: of the cluster; None: `RAY_ADDRESS`, else a cluster that is started here.

    Raises:
        MissingExtraError: without Ray.
        ClusterError: if the cluster cannot be reached.
        ConfigError: if more is asked for than it has, or, where the cluster is started here, than
            one of its nodes has. On another cluster that is a warning: nodes may join it.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        cores_per_run: int = 1,
        gpus_per_run: int = 0,
        memory_gb: float | None = None,
        address: str | None = None,
    ) -> None:
        is_own = starts_here(address)
        self._ray = connected_ray("--on ray", address=address, num_cpus=usable_cpus())
        there = int(self._ray.cluster_resources().get("CPU", 0)) // cores_per_run
        if there < 1:
            raise ConfigError(
                f"cores_per_run={cores_per_run} is more than the Ray cluster has "
                f"({self._ray.cluster_resources().get('CPU', 0):g} CPUs). Give fewer."
            )
        self._slots = there if slots is None else slots
        self._threads = cores_per_run
        resources: dict[str, Any] = {"num_cpus": cores_per_run, "num_gpus": gpus_per_run}
        if memory_gb is not None:
            resources["memory"] = int(memory_gb * _GIB)
        _require_node(self._ray, resources, is_own=is_own)
        # A lost node is no failure of the run: Ray begins its task again on another one.
        self._task = self._ray.remote(max_retries=-1, **resources)(_run)
        self._running: dict[int, tuple[Any, Path]] = {}
        self._stopped: set[int] = set()

    def free(self) -> str | None:
        """Room for one more task."""
        return "ray" if len(self._running) < self._slots else None

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        """Submit a run as a task."""
        del place
        run_dir = run_dir.absolute()
        write_order(run_dir, {**order, "cores": [], "threads": self._threads})
        (run_dir / _STOP).unlink(missing_ok=True)
        # What the launcher can import its nodes can, too, where they share its files.
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()]))
        task = self._task.remote(
            str(run_dir), {"PYTHONPATH": path}, self._threads, folder=os.getcwd()
        )
        self._running[run_id] = (task, run_dir)

    def ended(self) -> list[tuple[int, Outcome]]:
        """The runs whose tasks have ended."""
        if not self._running:
            return []
        tasks = [task for task, _ in self._running.values()]
        done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
        found: list[tuple[int, Outcome]] = []
        for run_id, (task, run_dir) in list(self._running.items()):
            if task in done:
                del self._running[run_id]
                found.append((run_id, self._outcome(run_id, task, run_dir)))
        return found

    def _outcome(self, run_id: int, task: Any, run_dir: Path) -> Outcome:
        stopped = run_id in self._stopped
        self._stopped.discard(run_id)
        try:
            code = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            said = f"Ray: {lines[-1]}"
            return Outcome(error=said, traceback=str(error), stopped=stopped)
        return outcome_of(run_dir, code, stopped=stopped)

    def stop(self, run_id: int) -> None:
        """Ask a run's task to stop; the file reaches it wherever it is."""
        if run_id in self._running and run_id not in self._stopped:
            self._stopped.add(run_id)
            (self._running[run_id][1] / _STOP).touch()

    def close(self, grace_s: float) -> list[tuple[int, Outcome]]:
        """Stop every task; cancel those that go on after `grace_s` seconds."""
        for run_id in self._running:
            self.stop(run_id)
        found: list[tuple[int, Outcome]] = []
        end = time.monotonic() + grace_s
        while self._running:
            found += self.ended()
            if time.monotonic() > end:
                for task, _ in self._running.values():
                    self._ray.cancel(task, force=True)
            time.sleep(_POLL_S)
        return found


def _require_node(ray: Any, resources: Mapping[str, Any], *, is_own: bool) -> None:
    """Refuse tasks that no node can hold, or warn of them: Ray would let them wait without a word.

    Raises:
        ConfigError: if nobody can join the cluster.
    """
    asked = {name: resources.get(key, 0) for name, key in _ASKED.items()}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in nodes):
        return
    there = "; ".join(sorted({_amounts(node) for node in nodes}))
    said = (
        f"a run asks for {_amounts(asked)}, and no node of the Ray cluster has that (nodes there: "
        f"{there}). Give a smaller --cores-per-run or --memory-gb, or leave out --gpus."
    )
    if is_own:
        raise ConfigError(said)
    sys.stderr.write(f"warning: {said} Runs wait until such a node joins.\n")


def _amounts(node: Mapping[str, Any]) -> str:
    cores, gpus, memory = (node.get(name, 0) for name in _ASKED)
    return f"{cores:g} CPUs, {gpus:g} GPUs, {memory / _GIB:.1f} GiB"


def _run(run_dir: str, environment: dict[str, str], threads: int, folder: str) -> int:
    """On a node: a run in a process of its own; its exit code, negative for a signal.

    It works in the launcher's folder where the node has it: paths in settings may be relative.
    """
    import ray

    reading, writing = os.pipe()
    number = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with appending(Path(run_dir) / LOG) as log:
        node = ray.get_runtime_context().get_node_id()
        log.write(f"on {socket.gethostname()}, node {node} of the Ray cluster\n".encode())
        log.flush()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "redline.launch.run_process", run_dir),
                *("--watch", str(reading)),
            ],
            cwd=folder if os.path.isdir(folder) else None,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment, **number},
            pass_fds=(reading,),
            start_new_session=True,
        )
    os.close(reading)
    try:
        while process.poll() is None:
            if (Path(run_dir) / _STOP).exists():
                process.terminate()
                process.wait()
            time.sleep(_POLL_S)
        return process.returncode
    finally:
        os.close(writing)
