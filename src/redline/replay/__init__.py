"""Replay: what was collected, kept in a ring and sampled for off-policy learning.

One design covers {uniform, prioritized} x {transition, sequence} x {plain,
frame-deduplicating}; `ReplayConfig` chooses, `Replay` does. n-step returns are computed
when a batch is drawn, so one buffer serves any n.

| file | holds |
|---|---|
| `config.py` | `ReplayConfig`, which imports no torch |
| `spec.py` | `ReplaySpec`: shapes and dtypes of what is stored |
| `buffer.py` | `Replay`: add, sample, update_priorities, save, load |
| `links.py` | what a rollout must be, and where its episodes begin and end |
| `plain.py` | small observations beside their successors; the quick path of plain transitions |
| `frames.py` | large observations and stacks, each frame stored once |
| `windows.py`, `batches.py` | n-step windows, and what is gathered for the rows drawn |
| `sequences.py` | which sequences are complete, and their stored states |
| `samplers.py`, `tree.py` | uniform and proportional choice |
| `priorities.py` | the error of a priority that is no finite number |
| `storage.py` | arrays in memory, in a file or on a device; the check that they fit |
| `snapshot.py` | incremental, verified save and load |
"""

from typing import TYPE_CHECKING, Any

from redline.replay.config import ReplayConfig

if TYPE_CHECKING:
    from redline.replay.batches import SequenceBatch
    from redline.replay.buffer import Replay
    from redline.replay.samplers import mixed_priority
    from redline.replay.snapshot import SavedFile, verify_snapshot
    from redline.replay.spec import ReplaySpec

__all__ = [
    "Replay",
    "ReplayConfig",
    "ReplaySpec",
    "SavedFile",
    "SequenceBatch",
    "mixed_priority",
    "verify_snapshot",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for: a config must not load torch."""
    if name == "Replay":
        from redline.replay import buffer as module
    elif name == "SequenceBatch":
        from redline.replay import batches as module
    elif name == "ReplaySpec":
        from redline.replay import spec as module
    elif name == "mixed_priority":
        from redline.replay import samplers as module
    elif name in {"SavedFile", "verify_snapshot"}:
        from redline.replay import snapshot as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
