"""The parts of `benchmarks.gpu`, most important first.

A part is a number of entries, each with a name and a function that measures it. One that fails is
recorded as failed, and the next is measured.
"""

from __future__ import annotations

import copy
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.engines.learners import ALGORITHMS, batch, make
from torch import Tensor

import redline
from benchmarks.launches_of_peers import PEERS, PeerScript
from benchmarks.workloads import WORKLOADS
from redline import profile
from redline.algos.ppo import PPO
from redline.collect.device import DeviceCollector
from redline.devices import kind_of
from redline.engines.engine import choose_engine
from redline.envs.settings import make_device_vec
from redline.profile.analyse.samples import read_machine_samples
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.train.runs.run import Run

SCRIPTS = Path(__file__).parent.parent / "scripts"
_PEER_LIMIT_S = 60.0  # of one of its scripts, with what it compiles
_SPEED = re.compile(r"SPS: *(\d+)|(?:speed: +)?([\d.]+) sps")
# Long enough for LeanRL's clock, which starts three iterations after learning has begun.
_PEER_STEPS = {"sac": 1_600, "td3": 1_600, "dqn": 20_000, "ppo-continuous": 16_384,
               "ppo-atari": 16_384}  # fmt: skip
Entries = Iterator[tuple[str, Callable[[], Any]]]
"""Name, and what measures it: plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        updates: of each algorithm and engine.
        rounds: in which engines alternate.
        share: of each workload's measured env_steps.
        profiled: times `updates` are the iterations of the profiled run.
        num_envs: environments on the device.
        rollout_length: steps of one rollout of theirs.
        turns: what is compared on a workload, in this order: engines, and other projects.
        workloads: names, of `benchmarks.workloads`.
        algorithms: names, of `tests.engines.learners`.
        compiled: those of which small updates are compiled, too, each taking up to a minute.
    """

    updates: int = 100
    rounds: int = 3
    share: float = 1.0
    profiled: int = 15
    num_envs: int = 16384
    rollout_length: int = 64
    turns: tuple[str, ...] = (
        "cudagraph", "leanrl", "eager", "compile+cudagraph", "cleanrl", "compile",
    )  # fmt: skip
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    algorithms: tuple[str, ...] = ALGORITHMS
    compiled: tuple[str, ...] = ("sac",)


@dataclass(frozen=True, slots=True)
class Part:
    """Something to measure.

    Attributes:
        about: one sentence on what the numbers are.
        limit_s: seconds after which it is given up; what it has measured by then is kept.
        entries: (device, sizes, peers) -> what it measures, one after the other.
    """

    about: str
    limit_s: float
    entries: Callable[[str, Sizes, Mapping[str, str]], Entries]


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


def capture(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """Parameters after captured updates, less those after eager ones, relative to their moves."""
    del peers
    for name in sizes.algorithms:
        yield name, partial(_captured_beside_eager, device, sizes.updates, name)


def _captured_beside_eager(device: str, count: int, name: str) -> dict[str, Any]:
    source = make(name)
    data = [batch(name, source, seed).to(device) for seed in range(5)]
    eager, captured = make(name, device=device), make(name, device=device)
    start = _tensors(copy.deepcopy(eager.state_dict()["policy"]))
    engine = choose_engine(captured, "cudagraph")
    for i in range(count):
        eager.update(data[i % len(data)])
        engine.update(data[i % len(data)])
    wanted = _tensors(eager.state_dict()["policy"])
    found = _tensors(captured.state_dict()["policy"])
    apart = sum(float((found[key] - wanted[key]).double().square().sum()) for key in wanted)
    moved = sum(float((start[key] - wanted[key]).double().square().sum()) for key in wanted)
    return {"apart": (apart / max(moved, 1e-30)) ** 0.5, "graphs": str(engine.captured)}


def updates(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """Milliseconds of one small update, eager and captured in turn: what launching costs."""
    del peers
    for name in sizes.algorithms:
        yield name, partial(_update_ms, device, sizes, name, ("eager", "cudagraph"))
    for name in sizes.compiled:
        for mode in ("compile", "compile+cudagraph"):
            yield f"{name} {mode}", partial(_update_ms, device, sizes, name, (mode,))


def _update_ms(device: str, sizes: Sizes, name: str, modes: Sequence[str]) -> dict[str, float]:
    data = batch(name, make(name), 0).to(device)
    made = {mode: choose_engine(make(name, device=device), mode) for mode in modes}
    calls = {mode: partial(engine.update, data) for mode, engine in made.items()}
    for call in calls.values():
        _timed(device, call, 3)
    times: dict[str, list[float]] = {mode: [] for mode in calls}
    for _ in range(sizes.rounds):
        for mode, call in calls.items():
            times[mode].append(_timed(device, call, max(1, sizes.updates // sizes.rounds)))
    return {mode: 1e3 * statistics.median(each) for mode, each in times.items()}


def _trained(device: str, settings: dict[str, Any], algorithm: str, out: Path) -> tuple[Run, float]:
    """A whole run with a checkpoint at its end alone, and the seconds that it took."""
    began_s = time.perf_counter()
    settings = settings | {"checkpoint_interval": settings["total_env_steps"]}
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


def workloads(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """SPS of whole runs of the five workloads: engines in turn, and other projects' scripts."""
    for turn in sizes.turns:
        for name in sizes.workloads:
            if turn not in PEERS:
                yield f"{name} {turn}", partial(_workload_sps, device, sizes.share, name, turn)
            elif turn in peers:
                # Compiled and captured, where it can be: the last of them that does this.
                of_it = [one for one in PEERS[turn] if one.workload == name]
                for one in of_it[-1:]:
                    yield f"{name} {turn}", partial(_peer_sps, Path(peers[turn]), one)


def _workload_sps(device: str, share: float, name: str, mode: str) -> float:
    workload = WORKLOADS[name]
    total = workload.warmup + int(share * workload.measured)
    settings = workload.settings | {"total_env_steps": total, "log_interval": max(1, total // 8)}
    if "replay_size" in settings:
        settings |= {"replay_storage": "device"}
    with tempfile.TemporaryDirectory() as out:
        changed = settings | {"accelerate": mode}
        run, _ = _trained(device, changed, workload.algorithm, Path(out) / "run")
        return _rate(run)


def _peer_sps(root: Path, one: PeerScript) -> float:
    """SPS as another project's script prints it in the end.

    Raises:
        RuntimeError: if it fails, or prints none.
    """
    options = ["--compile", *one.options] if "--cudagraphs" in one.options else one.options
    environment = os.environ | {"WANDB_MODE": "disabled", "PYTHONPATH": str(root.resolve())}
    steps = str(_PEER_STEPS[one.workload])
    done = subprocess.run(
        [sys.executable, str((root / one.file).resolve()), "--total-timesteps", steps, *options],
        capture_output=True, text=True, check=False, timeout=_PEER_LIMIT_S, env=environment,
        cwd=root,
    )  # fmt: skip
    speeds = _SPEED.findall(done.stdout + done.stderr)
    if done.returncode or not speeds:
        raise RuntimeError(done.stderr.strip()[-600:] or f"exit {done.returncode}, no speed")
    return float(next(each for each in speeds[-1] if each))


def device_envs(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """SPS of PPO on CartPole with environments on the device."""
    del peers
    yield "ppo CartPole SPS", partial(_device_envs_sps, device, sizes)


def _device_envs_sps(device: str, sizes: Sizes) -> float:
    steps = sizes.num_envs * sizes.rollout_length
    settings = {
        "env": "redline/CartPole-v1", "preset": "default", "num_envs": sizes.num_envs,
        "rollout_length": sizes.rollout_length, "num_epochs": 1, "num_minibatches": 1,
        "total_env_steps": 6 * steps, "log_interval": steps,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        run, _ = _trained(device, settings, "ppo", Path(out) / "run")
        return _rate(run)


def replay(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """Microseconds to draw a batch of 256 from a replay on the device."""
    del peers
    for prioritized in (False, True):
        name = "prioritized" if prioritized else "uniform"
        yield name, partial(_draw_us, device, sizes, prioritized=prioritized)


def _draw_us(device: str, sizes: Sizes, *, prioritized: bool) -> float:
    env = make_device_vec("redline/CartPole-v1", 4, device=device)
    learner = PPO.make(
        env.observation_space, env.action_space, PPO.Config(num_envs=4), seed=0, device=device
    )
    length = min(32, sizes.rollout_length)
    with DeviceCollector(env, learner.policy, rollout_length=length) as collector:
        gathered = collector.collect()
    config = ReplayConfig(capacity=4096, storage="device", device=device, prioritized=prioritized)
    store = Replay(config, ReplaySpec.from_rollout(gathered))
    for _ in range(8):
        store.add(gathered)
    generator = torch.Generator(device).manual_seed(0)
    return 1e6 * _timed(device, partial(store.sample, 256, generator), sizes.updates)


def deterministic(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """Whether two runs of one seed end with the same bits."""
    del peers, sizes
    yield "ppo equal to the bit", partial(_are_equal_to_the_bit, device)


def _are_equal_to_the_bit(device: str) -> bool:
    settings = {
        "env": "redline/CartPole-v1", "preset": "default", "num_envs": 8, "rollout_length": 8,
        "num_epochs": 1, "num_minibatches": 1, "total_env_steps": 128, "deterministic": True,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        runs = [_trained(device, settings, "ppo", Path(out) / name)[0] for name in ("a", "b")]
        return len({run.inspect()["params_sha256"] for run in runs}) == 1


def memory(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """MiB of the graphs of each algorithm's updates, which share one pool."""
    del peers
    for name in sizes.algorithms:
        yield name, partial(_graph_mib, device, name)


def _graph_mib(device: str, name: str) -> float:
    capturing = kind_of(device).graphs(torch.device(device))
    before = capturing.nbytes
    engine = choose_engine(make(name, device=device), "cudagraph")
    engine.update(batch(name, make(name), 0).to(device))
    return (capturing.nbytes - before) / 2**20


def scripts(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """The single-file scripts, with graphs and eager."""
    del peers
    for options in (("--cudagraphs",), ()):
        for name in sizes.workloads:
            workload = WORKLOADS[name]
            steps = workload.warmup + int(sizes.share * workload.measured)
            given = (*workload.script_options, "--total-env-steps", str(steps))
            call = partial(_script_s, workload.script, (*given, "--device", device, *options))
            yield " ".join([workload.script, *options]), call


def _script_s(name: str, options: Sequence[str]) -> float:
    """Seconds of a program, with the start of its process.

    Raises:
        RuntimeError: if it fails.
    """
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *options],
        cwd=SCRIPTS, capture_output=True, text=True, check=False, timeout=_PEER_LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:] or f"exit {done.returncode}")
    return time.perf_counter() - began_s


def profiler(device: str, sizes: Sizes, peers: Mapping[str, str]) -> Entries:
    """Share of a run that the profiler's GPU windows call busy, beside what NVML says."""
    del peers
    yield "a run of ppo", partial(_profiled, device, sizes)


def _profiled(device: str, sizes: Sizes) -> dict[str, Any]:
    envs, length = min(16, sizes.num_envs), min(32, sizes.rollout_length)
    settings = {
        "env": "redline/CartPole-v1", "preset": "default", "num_envs": envs,
        "rollout_length": length, "num_epochs": 4, "num_minibatches": 4,
        # Long enough for several windows: the first takes seconds to open.
        "total_env_steps": envs * length * sizes.updates * sizes.profiled,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        with profile.session(Path(out) / "session", gpu_every_s=0.5, gpu_window_s=0.25):
            _trained(device, settings, "ppo", Path(out) / "run")
        summary = summarize(Path(out) / "session")
        samples = read_machine_samples(open_session(Path(out) / "session"))
    shares = {
        f"busy in the windows, device {row.device}": row.busy_ns / max(row.window_ns, 1)
        for row in summary.gpu_devices
    }
    launched = {
        f"{row.operation} {row.kind}": row.count for row in summary.gpu_launched if row.count
    }
    monitor = {}
    if samples is not None and samples.gpus:
        utilization = samples.gpu["utilization"].mean(axis=0).tolist()
        monitor = dict(zip(samples.gpus, utilization, strict=True))
    return {"windows": shares, "NVML": monitor, "launched by": launched,
            "processes": len(summary.processes)}  # fmt: skip


PARTS: dict[str, Part] = {
    "capture": Part(
        "Captured updates beside eager ones: distance over distance moved.", 80, capture
    ),
    "workloads": Part("Env_steps per second of whole runs.", 230, workloads),
    "device_envs": Part("Environments on the device.", 30, device_envs),
    "scripts": Part("Seconds of the single-file scripts, with their start.", 60, scripts),
    "replay": Part("Microseconds to draw a batch of 256 transitions.", 20, replay),
    "profiler": Part("What the profiler says of the GPU.", 30, profiler),
    "deterministic": Part("The same seed, twice.", 20, deterministic),
    "memory": Part("MiB of graphs.", 20, memory),
    "updates": Part("Milliseconds of one small update.", 50, updates),
}
