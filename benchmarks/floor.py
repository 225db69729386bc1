"""What an env_step costs at the least: the raw environment, and multiplications at full rate.

    python -m benchmarks.floor --algo sac --threads 1

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.workloads import WORKLOADS, Workload


def floor_s(workload: Workload, measured: dict[str, float]) -> float:
    """Seconds per env_step: the environment, then all operations at the measured rate."""
    return measured["env_s"] + workload.flops / (1e9 * measured["gflops"])


def best_of(function: Callable[[], Any], seconds: float = 0.3) -> float:
    """Least seconds of one call, over many."""
    function()
    least, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        begin = time.perf_counter()
        function()
        least = min(least, time.perf_counter() - begin)
    return least


def gemm_rate(rows: int, fan_in: int, fan_out: int) -> float:
    """GFLOP/s of x W^T, by the quicker of torch's two libraries for it on a CPU."""
    import torch

    x, weight = torch.randn(rows, fan_in), torch.randn(fan_out, fan_in)
    out = torch.empty(rows, fan_out)
    calls: list[Callable[[], Any]] = [lambda: torch.mm(x, weight.t(), out=out)]
    if torch.backends.mkldnn.is_available():
        product = torch.ops.mkldnn._linear_pointwise.default
        calls.append(lambda: product(x, weight, None, "none", [], ""))
    with torch.no_grad():
        least = min(best_of(call) for call in calls)
    return 2.0 * rows * fan_in * fan_out / least / 1e9


def raw_env_s(workload: Workload, steps: int = 3_000) -> float:
    """Seconds per env_step of the bare environment under random actions."""
    import gymnasium

    name = workload.settings["env"]
    if workload.env_backend == "envpool":
        import envpool

        env: Any = envpool.make_gymnasium(
            name, num_envs=workload.num_envs, seed=1, **workload.settings["env_kwargs"]
        )
    else:
        env = gymnasium.make(name)
    env.reset()
    space = env.action_space
    if workload.num_envs > 1:
        space = gymnasium.vector.utils.batch_space(space, workload.num_envs)
    space.seed(0)
    actions = [space.sample() for _ in range(256)]
    steps //= workload.num_envs
    begin = time.perf_counter()
    for t in range(steps):
        _, _, terminated, truncated, _ = env.step(actions[t % 256])
        if workload.num_envs == 1 and (terminated or truncated):
            env.reset()
    return (time.perf_counter() - begin) / (steps * workload.num_envs)


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", required=True, choices=list(WORKLOADS))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    workload = WORKLOADS[arguments.algo]
    measured = {
        "env_s": raw_env_s(workload),
        "gflops": gemm_rate(*workload.product),
        "flops": workload.flops,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
