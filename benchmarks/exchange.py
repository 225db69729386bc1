"""How long two ranks take to add up their gradients: run by `benchmarks.ranks`, under torchrun.

Between two exchanges each rank computes for 3 ms, as it does between two steps of an optimizer. The
first rank prints one line of JSON: microseconds of the median and of the mean exchange by numbers
exchanged.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from torch import distributed

from redline.data.ranks import sum_over_ranks

SIZES = {"ppo-cartpole": 9_155, "ppo-halfcheetah": 11_085}  # parameters of the default networks
COMPUTING_S, EXCHANGES = 0.003, 300


def exchange(numbers: int) -> dict[str, float]:
    """Median and mean, in us."""
    gradients, square, taken_us = torch.randn(numbers), torch.randn(64, 64), []
    for _ in range(EXCHANGES):
        until = time.perf_counter() + COMPUTING_S
        while time.perf_counter() < until:
            torch.mm(square, square)
        begin = time.perf_counter()
        sum_over_ranks(gradients)
        taken_us.append((time.perf_counter() - begin) * 1e6)
    return {
        "median_us": round(statistics.median(taken_us)),
        "mean_us": round(statistics.fmean(taken_us)),
    }


def main() -> None:
    """Exchange, and say how long it took."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = {name: {"numbers": size, **exchange(size)} for name, size in SIZES.items()}
    if distributed.get_rank() == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
