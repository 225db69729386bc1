"""Where runs take place: what the launcher asks of slots, of a cluster, or of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from redline.launch.state import Outcome


class Places(Protocol):
    """Starts runs and says how they ended; it never waits."""

    def free(self) -> str | None:
        """The name of a place for one more run; None if there is none."""
        ...

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        """Begin a run, or go on with it.

        Args:
            run_id: what `ended` calls it.
            run_dir: its directory.
            order: algorithm, settings, seed and key.
            place: that `free` named.
        """
        ...

    def ended(self) -> list[tuple[int, Outcome]]:
        """The runs that have ended since the last call."""
        ...

    def stop(self, run_id: int) -> None:
        """Let a run write a checkpoint and end; its outcome says `stopped`."""
        ...

    def close(self, grace_s: float) -> list[tuple[int, Outcome]]:
        """Stop all that run, and end those that take longer than `grace_s`."""
        ...
