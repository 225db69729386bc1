"""The objects of a run go when nobody uses them any more, not when the collector comes by."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redline

TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 8, "hidden_sizes": (4,), "total_env_steps": 64,
    "preset": "default", "quiet": True, "tensorboard": False, "num_threads": 1,
}  # fmt: skip
REPLAY: dict[str, Any] = {
    "rollout_length": 2, "replay_size": 64, "batch_size": 4, "replay_ratio": 2.0,
    "learning_starts": 16,
}  # fmt: skip


@contextmanager
def left_to_the_collector() -> Iterator[list[str]]:
    """The types of what only the garbage collector could free after the block."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


def test_a_cycle_would_be_seen() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    with left_to_the_collector() as found:
        Cycle()
    assert any("Cycle" in each for each in found)


class Watches:
    """A callback that keeps what it is given."""

    def on_iteration(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {"num_minibatches": 1, "callbacks": [Watches()]}),
        ("dqn", "CartPole-v1", REPLAY | {"target_update_interval": 2}),
        ("sac", "Pendulum-v1", REPLAY | {"prioritized": True}),
    ],
)
def test_nothing_of_a_run_is_left_to_the_collector(
    algorithm: str, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Before, environments, networks, optimizers and replay stayed: 200 runs kept growing."""
    redline.train(algorithm, env=env, out=tmp_path / "first", **TINY | settings)  # imports, caches
    with left_to_the_collector() as found:
        redline.train(algorithm, env=env, out=tmp_path / "run", **TINY | settings)
    ours = ("redline.", "torch.nn.", "gymnasium.", "numpy.")
    assert [each for each in found if each.startswith(ours)] == []
