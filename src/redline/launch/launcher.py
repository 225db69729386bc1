"""Which run goes where, and what becomes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from redline.launch.places import Places
from redline.launch.run_process import GRACE_S
from redline.launch.starting import AGAIN_S, start
from redline.launch.state import RUNS, Outcome, QueuedRun, SweepState
from redline.train.loops.stop_signal import StopSignal

_POLL_S = 0.05

StopRequest = StopSignal
"""Notes the first SIGINT, SIGTERM or SIGHUP; a later wish interrupts at once."""


def launch(
    state: SweepState,
    places: Places,
    *,
    retries: int = 0,
    say: Callable[[str], None] = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
    watch: Callable[[], None] = lambda: None,
    check: Callable[[QueuedRun], None] = lambda run: None,
    poll_s: float = _POLL_S,
) -> None:
    """Run everything that is queued.

    Args:
        state: of the sweep.
        places: where runs take place.
        retries: how often a run that fails is begun again; it comes after the others.
        say: takes one line about each run that ends.
        stopped: whether to stop all runs, with checkpoints, and leave.
        watch: called between looks at the places.
        check: raises if a run must not be begun.
        poll_s: seconds between looks where nothing happens.

    Raises:
        SweepStateError: if the database cannot be written, or no run can be started.
    """
    running: dict[int, QueuedRun] = {}

    def note(ended: list[tuple[int, Outcome]]) -> None:
        for run_id, outcome in ended:
            run = running.pop(run_id)
            became = state.ended(run_id, outcome, retries=retries)
            say(_sentence(run, outcome, became, state))

    full_until_s = 0.0  # the machine had no room for a further process
    with _closing(places, note):
        while not stopped():
            ended = places.ended()
            note(ended)
            begun = 0
            if ended or not running or time.monotonic() >= full_until_s:
                begun, refused = _begin(state, places, running, check)
                note(refused)
                if any(outcome.stopped for _, outcome in refused):
                    full_until_s = time.monotonic() + AGAIN_S
            watch()
            if not running and not begun:
                return
            if not ended and not begun:
                time.sleep(poll_s)


def _begin(
    state: SweepState,
    places: Places,
    running: dict[int, QueuedRun],
    check: Callable[[QueuedRun], None],
) -> tuple[int, list[tuple[int, Outcome]]]:
    """Begin runs as long as there are places and runs, and the machine lets them start.

    Returns:
        How many were taken from the queue, and how those ended that could not be started.
    """
    begun, refused = 0, list[tuple[int, Outcome]]()
    resume = f"redline sweep --resume {state.folder}"
    while (place := places.free()) is not None:
        run = state.next_queued()
        if run is None:
            break
        check(run)
        state.started(run, place)
        settings = dict(run.settings)
        seed, key = settings.pop("seed"), settings.pop("key")
        order = {"algorithm": run.algorithm, "settings": settings, "seed": seed, "key": key}
        others = len(running) > len(refused)
        running[run.id] = run
        run_dir = state.folder / RUNS / run.name
        outcome = start(places, run.id, run_dir, order, place, others=others, resume=resume)
        begun += 1
        if outcome is not None:
            refused.append((run.id, outcome))
            if outcome.stopped:
                break
    return begun, refused


@contextlib.contextmanager
def _closing(places: Places, note: Callable[[list[tuple[int, Outcome]]], None]) -> Iterator[None]:
    """Stop what runs at the end, and note how it ended, if the database still takes it."""
    try:
        yield
    except BaseException:
        ended = places.close(GRACE_S)
        with contextlib.suppress(Exception):  # the first error is the one to tell
            note(ended)
        raise
    note(places.close(GRACE_S))


def _sentence(run: QueuedRun, outcome: Outcome, became: str, state: SweepState) -> str:
    counts = state.counts()
    total = sum(counts.values())
    head = f"[{counts['done']}/{total}] {run.name}"
    if outcome.result is not None:
        returned = outcome.result.get("return_mean")
        text = f"{head}: done"
        return text if returned is None else f"{text}, return {returned:,.1f}"
    if outcome.stopped and outcome.error:
        return f"{head}: {outcome.error}; tried again when another run has ended"
    if outcome.stopped:
        return f"{head}: stopped; goes on with --resume"
    again = "" if became == "failed" else "; tried again"
    return f"{head}: failed ({outcome.error.splitlines()[0]}){again}"
