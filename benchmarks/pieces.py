"""What can be left out of a run, to see what it buys; see `benchmarks.pay_or_go`."""

from __future__ import annotations

from collections.abc import Callable


def _c_networks() -> None:
    from redline.engines.cpu import mlp

    mlp._dense = None


def _c_convolutions() -> None:
    from redline.engines.cpu import convolution

    convolution._convolution = None


def _laid_out_weights() -> None:
    from redline.engines.cpu import serving

    serving.packed_actor = lambda *_: None  # type: ignore[assignment]


def _acting_row_by_row() -> None:
    from redline.engines.cpu import serving

    serving.ROW_ACTORS = {}  # type: ignore[assignment]


def _steps_written_together() -> None:
    from redline.envs.batched import BatchedEnv

    BatchedEnv.can_step_quietly = property(lambda _: False, lambda *_: None)  # type: ignore


def _cpu_updates() -> None:
    from redline.engines import cpu

    cpu.update_for = lambda _: (None, "left out")  # type: ignore[assignment]


def _nothing() -> None:
    """Settings alone leave this piece out."""


PIECES: dict[str, tuple[Callable[[], None], dict[str, object]]] = {
    "cpu-updates": (_cpu_updates, {}),
    "c-networks": (_c_networks, {}),
    "c-convolutions": (_c_convolutions, {}),
    "laid-out-weights": (_laid_out_weights, {}),
    "acting-row-by-row": (_acting_row_by_row, {}),
    "steps-written-together": (_steps_written_together, {}),
    "process": (_nothing, {"tune_process": False}),
}
"""Name -> what leaves the piece out of this process, and of the settings."""

WORKLOADS_OF: dict[str, tuple[str, ...]] = {
    "cpu-updates": ("sac", "td3", "dqn", "ppo-continuous", "ppo-atari"),
    "c-networks": ("sac", "td3", "dqn"),
    "c-convolutions": ("ppo-atari",),
    "laid-out-weights": ("ppo-atari",),
    "acting-row-by-row": ("sac", "td3", "dqn", "ppo-continuous"),
    "steps-written-together": ("sac", "td3", "dqn", "ppo-continuous"),
    "process": ("ppo-atari", "sac"),
}
"""Name -> the workloads that it can make quicker: on others nothing of it runs."""
