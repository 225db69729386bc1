"""How fast native games step with random actions, by the number of environments.

    python -m benchmarks.device_envs                      # all games on the CPU, 2 threads
    python -m benchmarks.device_envs --device cuda
    python -m benchmarks.device_envs --games redline/CartPole-v1 --modes eager compile

Stepping includes random actions drawn beforehand, time limits, new episodes, and both
observations of a step. `eager` runs the operations one by one, `compile` through
torch.compile, `graph` (CUDA) replays one captured step. Each figure is the median of
`--repeats` measurements, which go through all sizes in turn, so that a slow moment of the
machine does not hit one size only. Beside them: the original in Gymnasium's vector
environment, 8 at a time. Writes benchmarks/results/device_envs.md and .json; with compiled
steps device_envs_compiled, on a CUDA device names that end in _cuda.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.machine import as_markdown, describe
from redline.envs import make_vec
from redline.envs.games.ids import GAMES, ORIGINALS
from redline.envs.games.native import NativeEnv, make_game

RESULTS = Path(__file__).parent / "results"
SIZES = (64, 256, 1024, 4096, 16_384, 65_536)
ACTIONS = 16  # batches drawn beforehand, used in turn


def draw_actions(space: spaces.Space[Any], num_envs: int, device: str) -> list[Tensor]:
    """Batches of random actions on the device."""
    rng = np.random.default_rng(0)
    if isinstance(space, spaces.Discrete):
        drawn = rng.integers(int(space.n), size=(ACTIONS, num_envs))
    else:
        shape = (ACTIONS, num_envs, *(space.shape or ()))
        drawn = rng.uniform(space.low, space.high, shape).astype(np.float32)  # type: ignore[attr-defined]
    return list(torch.from_numpy(drawn).to(device).unbind(0))


def make_stepper(env_id: str, num_envs: int, device: str, mode: str) -> Callable[[int], None]:
    """A function that takes n steps and waits for the device."""
    env = NativeEnv(make_game(env_id, device, {}), num_envs)
    env.reset(0)
    actions = draw_actions(env.action_space, num_envs, device)
    if mode == "graph":
        return graph_stepper(env, actions)
    advance = env.advance
    if mode == "compile":
        advance = torch.compile(advance, fullgraph=True, dynamic=False)
    carry = env._carry
    if carry is None:
        raise RuntimeError("the environments were reset, so there is a state")

    def run(steps: int) -> None:
        nonlocal carry
        with torch.no_grad():
            for t in range(steps):
                carry, _ = advance(carry, actions[t % ACTIONS])
        wait(device)

    return run


def graph_stepper(env: NativeEnv, actions: list[Tensor]) -> Callable[[int], None]:
    """Replays one step that was captured in a CUDA graph, which writes its own input."""
    leaves, shape = pytree.tree_flatten(env._carry)
    action = actions[0].clone()

    def step() -> None:
        after, _ = env.advance(pytree.tree_unflatten(leaves, shape), action)
        for mine, new in zip(leaves, pytree.tree_leaves(after), strict=True):
            mine.copy_(new)

    leaves = [leaf.clone() for leaf in leaves]
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        step()

    def run(steps: int) -> None:
        for t in range(steps):
            action.copy_(actions[t % ACTIONS])
            graph.replay()
        torch.cuda.synchronize()

    return run


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def make_original_stepper(env_id: str, num_envs: int) -> Callable[[int], None]:
    """The same for the environment that a game follows, one after the other in this process."""
    env = make_vec(ORIGINALS[env_id], num_envs, check=False)
    env.reset(0)
    actions = [action.numpy() for action in draw_actions(env.action_space, num_envs, "cpu")]

    def run(steps: int) -> None:
        for t in range(steps):
            env.step(actions[t % ACTIONS])

    return run


def measure(run: Callable[[int], None], num_envs: int, seconds: float) -> float:
    """env_steps per second over about `seconds`."""
    steps = 2
    while True:
        started = time.perf_counter()
        run(steps)
        elapsed = time.perf_counter() - started
        if elapsed >= seconds / 2:
            return steps * num_envs / elapsed
        steps = max(steps * 2, int(0.8 * steps * seconds / max(elapsed, 1e-9)))


def measure_game(env_id: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All sizes and modes of one game, in turn, and the original."""
    cases: list[tuple[str, int, Callable[[int], None]]] = [
        (mode, size, make_stepper(env_id, size, options.device, mode))
        for mode in options.modes
        for size in options.sizes
    ]
    cases.append(("original", 8, make_original_stepper(env_id, 8)))
    for _, _, run in cases:
        run(3)  # compiles, captures, allocates
    found: list[list[float]] = [[] for _ in cases]
    for _ in range(options.repeats):
        for figures, (_, size, run) in zip(found, cases, strict=True):
            figures.append(measure(run, size, options.seconds))
    rows = []
    for (mode, size, _), figures in zip(cases, found, strict=True):
        row = {
            "game": env_id, "mode": mode, "num_envs": size,
            "sps": statistics.median(figures), "min": min(figures), "max": max(figures),
        }  # fmt: skip
        rows.append(row)
        print(f"{env_id} {mode} {size}: {row['sps']:,.0f} SPS", flush=True)
    return rows


def as_table(rows: list[dict[str, Any]], sizes: list[int]) -> str:
    """One line per game and mode, one column per size, in thousands of SPS."""
    head = "".join(f" {size:,} |" for size in sizes)
    text = f"| game | mode |{head} original x 8 |\n|---|---|{'---|' * (len(sizes) + 1)}\n"
    by_case = {(r["game"], r["mode"], r["num_envs"]): r["sps"] for r in rows}
    for game, mode in dict.fromkeys((r["game"], r["mode"]) for r in rows):
        if mode == "original":
            continue
        cells = "".join(f" {by_case[game, mode, size] / 1e3:,.0f} |" for size in sizes)
        text += f"| {game} | {mode} |{cells} {by_case[game, 'original', 8] / 1e3:,.0f} |\n"
    return text


def main() -> int:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--games", nargs="+", choices=tuple(GAMES), default=list(GAMES))
    parser.add_argument("--modes", nargs="+", choices=("eager", "compile", "graph"),
                        default=["eager"])  # fmt: skip
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement, about")
    options = parser.parse_args()
    if options.device == "cpu" and "graph" in options.modes:
        parser.error("--modes graph captures CUDA graphs: it needs --device cuda")
    torch.set_num_threads(options.threads)
    torch._dynamo.config.recompile_limit = 100  # each game and size is a program of its own
    parts = ["device_envs", *(["compiled"] if "compile" in options.modes else [])]
    name = "_".join([*parts, *(["cuda"] if options.device == "cuda" else [])])
    rows = [row for game in options.games for row in measure_game(game, options)]
    where = options.device
    if where == "cuda":
        where = torch.cuda.get_device_name()
    text = (
        "# Native games\n\n```bash\npython -m benchmarks.device_envs "
        f"{' '.join(sys.argv[1:])}\n```\n"
        f"\nThousands of env_steps per second with random actions, medians of {options.repeats}, "
        f"on {where}, {options.threads} threads; by the number of environments.\n\n"
        f"{as_table(rows, options.sizes)}\n{as_markdown()}"
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text)
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"machine": describe(), "device": where, "threads": options.threads,
                    "results": rows}, indent=1) + "\n"
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
