"""A recorder with an injected clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redline.profile import _native

MARKS = 1
BASE_NS = 1_000


class FakeRecorder:
    """A recording whose clock moves only when told: `tick(7)` passes 7 ns."""

    def __init__(self, directory: Path, **settings: int) -> None:
        self.directory, self.now_ns = directory, BASE_NS
        _native.set_clock(self.now_ns)
        _native.start(str(directory), **settings)
        _native.set_active(MARKS)

    def tick(self, ns: int) -> None:
        """Let time pass."""
        self.now_ns += ns
        _native.set_clock(self.now_ns)

    def stop(self) -> dict[str, int]:
        """End the recording; the statistics."""
        return _native.stop()

    def events(self, thread: int = 0) -> list[tuple]:
        """What the shard of this thread holds, without the opening of the window."""
        from shards import WINDOW_ON, read_events

        path = self.directory / f"thread-{thread:05d}.arrow"
        return [e for e in read_events(path, _native.names()) if e[1:] != (WINDOW_ON,)]


@pytest.fixture
def fake_recorder(tmp_path: Path) -> Iterator[Callable[..., FakeRecorder]]:
    yield lambda **settings: FakeRecorder(tmp_path, **settings)
    _native.stop()
    _native.set_clock(None)
