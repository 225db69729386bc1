"""The parts of `benchmarks.gpu`, most important first."""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.engines.learners import ALGORITHMS, batch, make
from torch import Tensor

import redline
from benchmarks.workloads import WORKLOADS
from redline.algos.ppo import PPO
from redline.collect.device import DeviceCollector
from redline.devices import kind_of
from redline.engines.engine import choose_engine
from redline.envs.settings import make_device_vec
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.train.runs.run import Run

SCRIPTS = Path(__file__).parent.parent / "scripts"
_PEER_NAMES = ("sac_continuous_action", "td3_continuous_action", "dqn", "ppo_continuous_action",
               "ppo_atari_envpool")  # fmt: skip
_PEER_FILES = {
    "leanrl": [f"leanrl/{name}_torchcompile.py" for name in _PEER_NAMES],
    "cleanrl": [f"cleanrl/{name}.py" for name in _PEER_NAMES],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        updates: of each algorithm and engine.
        rounds: in which engines alternate.
        share: of each workload's measured env_steps.
        num_envs: environments on the device.
        rollout_length: steps of one rollout of theirs.
        engines: that are compared.
        workloads: names, of `benchmarks.workloads`.
        algorithms: names, of `tests.engines.learners`.
        scripts: files in scripts/.
    """

    updates: int = 100
    rounds: int = 3
    share: float = 1.0
    num_envs: int = 16384
    rollout_length: int = 64
    engines: tuple[str, ...] = ("eager", "compile", "cudagraph", "compile+cudagraph")
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    algorithms: tuple[str, ...] = ALGORITHMS
    scripts: tuple[str, ...] = tuple(workload.script for workload in WORKLOADS.values())


@dataclass(frozen=True, slots=True)
class Part:
    """Something to measure.

    Attributes:
        about: one sentence on what the numbers are.
        limit_s: seconds after which it is given up.
        run: (device, sizes, peers) -> result, as plain data.
    """

    about: str
    limit_s: float
    run: Callable[[str, Sizes, Mapping[str, str]], dict[str, Any]]


def _timed(device: str, function: Callable[[], Any], times: int) -> float:
    """Seconds of one call, of so many that follow each other."""
    kind, place = kind_of(device), torch.device(device)
    kind.synchronize(place)
    began_s = time.perf_counter()
    for _ in range(times):
        function()
    kind.synchronize(place)
    return (time.perf_counter() - began_s) / times


def _tensors(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(tree, Mapping):
        parts = [_tensors(part, f"{prefix}.{name}") for name, part in tree.items()]
        return {name: leaf for part in parts for name, leaf in part.items()}
    return {prefix: tree.detach().cpu()} if isinstance(tree, Tensor) else {}


def capture(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """Parameters after captured updates, less those after eager ones, relative to their moves."""
    del peers
    result: dict[str, Any] = {}
    for name in sizes.algorithms:
        source = make(name)
        data = [batch(name, source, seed).to(device) for seed in range(5)]
        eager, captured = make(name, device=device), make(name, device=device)
        start = _tensors(copy.deepcopy(eager.state_dict()["policy"]))
        engine = choose_engine(captured, "cudagraph")
        for i in range(sizes.updates):
            eager.update(data[i % len(data)])
            engine.update(data[i % len(data)])
        wanted = _tensors(eager.state_dict()["policy"])
        found = _tensors(captured.state_dict()["policy"])
        apart = sum(float((found[key] - wanted[key]).double().square().sum()) for key in wanted)
        moved = sum(float((start[key] - wanted[key]).double().square().sum()) for key in wanted)
        result[name] = {
            "apart": (apart / max(moved, 1e-30)) ** 0.5,
            "graphs": str(engine.captured),
        }
    return result


def updates(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """Milliseconds of one small update, engines in turn: what launching costs."""
    del peers
    result: dict[str, Any] = {}
    for name in sizes.algorithms:
        data = batch(name, make(name), 0).to(device)
        made = {mode: choose_engine(make(name, device=device), mode) for mode in sizes.engines}
        calls = {mode: partial(engine.update, data) for mode, engine in made.items()}
        for call in calls.values():
            _timed(device, call, 3)
        times: dict[str, list[float]] = {mode: [] for mode in calls}
        for _ in range(sizes.rounds):
            for mode, call in calls.items():
                count = max(1, sizes.updates // sizes.rounds)
                times[mode].append(_timed(device, call, count))
        result[name] = {mode: 1e3 * statistics.median(each) for mode, each in times.items()}
    return result


def _trained(device: str, settings: dict[str, Any], algorithm: str, out: Path) -> tuple[Run, float]:
    """A whole run without checkpoints, and the seconds that it took."""
    began_s = time.perf_counter()
    run = redline.train(
        algorithm, out=out, device=device,
        **{"quiet": True, "tensorboard": False, "checkpoints": "last", "num_threads": 1} | settings,
    )  # fmt: skip
    return run, time.perf_counter() - began_s


def _rate(run: Run) -> float:
    """SPS of the second half of a run's rows, by its own clock."""
    rows = [line.split(",") for line in (run.out / "progress.csv").read_text().splitlines()]
    steps, wall = rows[0].index("env_steps"), rows[0].index("wall_time_s")
    begin, end = rows[max(1, len(rows) // 2)], rows[-1]
    if begin is end:
        return float(end[steps]) / float(end[wall])
    return (float(end[steps]) - float(begin[steps])) / (float(end[wall]) - float(begin[wall]))


def workloads(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """SPS of whole runs of the five workloads, engines in turn."""
    del peers
    result: dict[str, Any] = {}
    for name in sizes.workloads:
        workload = WORKLOADS[name]
        total = workload.warmup + int(sizes.share * workload.measured)
        settings = workload.settings | {
            "total_env_steps": total,
            "log_interval": max(1, total // 8),
        }
        if "replay_size" in settings:
            settings |= {"replay_storage": "device"}
        result[name] = {}
        for mode in sizes.engines:
            with tempfile.TemporaryDirectory() as out:
                changed = settings | {"accelerate": mode}
                run, _ = _trained(device, changed, workload.algorithm, Path(out) / "run")
                result[name][mode] = _rate(run)
    return result


def device_envs(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """SPS of PPO on CartPole with environments on the device."""
    del peers
    steps = sizes.num_envs * sizes.rollout_length
    settings = {
        "env": "redline/CartPole-v1", "preset": "default", "num_envs": sizes.num_envs,
        "rollout_length": sizes.rollout_length, "num_epochs": 1, "num_minibatches": 1,
        "total_env_steps": 6 * steps, "log_interval": steps,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        run, _ = _trained(device, settings, "ppo", Path(out) / "run")
        return {"ppo CartPole SPS": _rate(run)}


def replay(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """Microseconds to draw a batch of 256 from a replay on the device."""
    del peers
    result: dict[str, Any] = {}
    env = make_device_vec("redline/CartPole-v1", 4, device=device)
    learner = PPO.make(
        env.observation_space, env.action_space, PPO.Config(num_envs=4), seed=0, device=device
    )
    with DeviceCollector(env, learner.policy, rollout_length=32) as collector:
        gathered = collector.collect()
    for prioritized in (False, True):
        config = ReplayConfig(
            capacity=4096, storage="device", device=device, prioritized=prioritized
        )
        store = Replay(config, ReplaySpec.from_rollout(gathered))
        for _ in range(8):
            store.add(gathered)
        generator = torch.Generator(device).manual_seed(0)
        seconds = _timed(device, partial(store.sample, 256, generator), sizes.updates)
        result["prioritized" if prioritized else "uniform"] = 1e6 * seconds
    return result


def deterministic(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """Whether two runs of one seed end with the same bits."""
    del peers, sizes
    result: dict[str, Any] = {}
    settings = {
        "env": "redline/CartPole-v1", "preset": "default", "num_envs": 4, "rollout_length": 16,
        "num_epochs": 1, "num_minibatches": 1, "total_env_steps": 128, "deterministic": True,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        runs = [_trained(device, settings, "ppo", Path(out) / name)[0] for name in ("a", "b")]
        sums = {run.inspect()["params_sha256"] for run in runs}
        result["ppo equal to the bit"] = len(sums) == 1
    return result


def memory(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """MiB of the graphs of each algorithm's updates, which share one pool."""
    del peers
    before, result = 0, {}
    capturing = kind_of(device).graphs(torch.device(device))
    for name in sizes.algorithms:
        learner = make(name, device=device)
        engine = choose_engine(learner, "cudagraph")
        engine.update(batch(name, make(name), 0).to(device))
        result[name] = (capturing.nbytes - before) / 2**20
        before = capturing.nbytes
    return result


def _script(path: Path, arguments: list[str]) -> dict[str, Any]:
    """Seconds of a program, or how it failed."""
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=path.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds} if done.returncode == 0 else {"failed": done.stderr[-600:]}


def scripts(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """The single-file scripts, eager and with graphs; then those of the peers that were given."""
    result: dict[str, Any] = {}
    for name in sizes.scripts:
        length = ["--total-env-steps", "10000", "--device", device]
        for option in ([], ["--cudagraphs"]):
            found = _script(SCRIPTS / name, [*length, *option])
            result[" ".join([name, *option])] = found
    for peer, root in peers.items():
        for file in _PEER_FILES[peer]:
            options = ["--compile", "--cudagraphs"] if peer == "leanrl" else []
            found = _script(Path(root) / file, ["--total-timesteps", "10000", *options])
            result[file] = found
    return result


def profiler(device: str, sizes: Sizes, peers: Mapping[str, str]) -> dict[str, Any]:
    """Share of a run's time that the profiler's GPU windows and NVML call busy."""
    del sizes, peers
    with tempfile.TemporaryDirectory() as out:
        command = [
            *(sys.executable, "-m", "redline", "train", "ppo", "--env", "redline/CartPole-v1"),
            *("--preset", "default", "--num-envs", "256", "--rollout-length", "64"),
            *("--total-env-steps", "500000", "--device", device, "--out", str(Path(out) / "run")),
            *("--quiet", "--profile"),
        ]
        subprocess.run(command, capture_output=True, text=True, check=True)
        session = next((Path(out) / "run").rglob("manifest.json"), None)
        if session is None:
            raise FileNotFoundError(f"no session below {out}")
        command = [sys.executable, "-m", "redline", "profile", "show", str(session.parent)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = [line for line in shown.stdout.splitlines() if "gpu" in line.lower()]
        return {f"line {i}": line.strip() for i, line in enumerate(lines)}


PARTS: dict[str, Part] = {
    "capture": Part(
        "Captured updates beside eager ones: distance over distance moved.", 120, capture
    ),
    "updates": Part("Milliseconds of one small update.", 150, updates),
    "workloads": Part("Env_steps per second of whole runs.", 240, workloads),
    "device_envs": Part("Environments on the device.", 60, device_envs),
    "replay": Part("Microseconds to draw a batch of 256 transitions.", 30, replay),
    "deterministic": Part("The same seed, twice.", 30, deterministic),
    "memory": Part("MiB of graphs.", 30, memory),
    "scripts": Part("Seconds of 10,000 env_steps, with the start of the process.", 200, scripts),
    "profiler": Part("What the profiler says of the GPU.", 60, profiler),
}
