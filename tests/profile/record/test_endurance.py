"""A recording that goes on for long, or whose hook is taken from it, stays whole and bounded."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from redline.profile import _native, layout
from redline.profile.analyse.summary import summarize
from redline.profile.analyse.timeline import decode
from redline.profile.reader import open_session


def test_memory_is_flat_over_a_long_run(profiled: Any) -> None:
    """Two million marks in threads that come and go: no more than the rings, once filled.

    An hour of a program with 500 marks per second, without its pauses.
    """
    profiled.run(
        """
import threading, time
from redline import profile
mark = profile.operation("inference")
def work():
    for _ in range(50_000):
        with mark:
            pass
for _ in range(40):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    time.sleep(0.02)
""",
        mode="light",
        memory_mb=16,
    )
    process = open_session(profiled.session).processes[0]
    assert process.monitor is not None
    monitor = decode(process, process.monitor)
    chosen = monitor.special_codes == layout.CODE_RSS
    kib = monitor.special_values[chosen].tolist()
    assert kib[-1] - kib[0] < (16 + 16) * 1024
    events = sum(len(shard.codes) for shard in process.threads)
    assert events + process.dropped >= 4_000_000


def test_a_full_budget_drops_whole_events_and_says_how_many(profiled: Any) -> None:
    """A ring of 64 KB and a burst: what is left is still begins with their ends."""
    profiled.run(
        """
from redline import profile
mark = profile.operation("inference")
for _ in range(300_000):
    with mark:
        pass
""",
        mode="light",
        memory_mb=0.0625,
    )
    process = open_session(profiled.session).processes[0]
    summary = summarize(profiled.session)
    codes = process.threads[0].codes
    (number,) = [n.id for n in process.names.values() if n.name == "inference"]
    begins, ends = (codes == 2 * number).sum(), (codes == 2 * number + 1).sum()
    assert begins == ends
    assert begins * 2 + summary.dropped_events == 600_000
    total = sum(cell.raw_s for cell in summary.cells)
    assert total == pytest.approx(summary.processes[0].wall_s)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later have hooks by tool id")
def test_a_program_that_takes_the_hook_keeps_it(profiled: Any) -> None:
    """The rest of that thread goes unobserved; the program's own profile function is called."""
    done = profiled.run(
        """
import sys, mujoco
mujoco.spin(5_000_000)
seen = []
sys.setprofile(lambda *event: seen.append(event[1]))
mujoco.spin(5_000_000)
mine = sys.getprofile()
sys.setprofile(None)
print("c_call" in seen, mine is not None)
""",
        calibrate=False,
    )
    assert done.stdout == "True True\n"
    (row,) = [r for r in summarize(profiled.session).functions if r.function == "mujoco.spin"]
    assert row.calls == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
def test_a_refusal_leaves_the_other_tool_its_events(tmp_path: Any) -> None:
    from redline import profile
    from redline.errors import ProfilerConflictError

    monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue]
    tool = monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "another")
    try:
        monitoring.set_events(tool, monitoring.events.PY_START)
        with pytest.raises(ProfilerConflictError, match="another"):
            profile.session(tmp_path / "s").__enter__()
        assert monitoring.get_events(tool) == monitoring.events.PY_START
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert _native.get_active() == 0
