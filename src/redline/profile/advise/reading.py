"""All that a report shows of one session, read with as few walks through its events as can be.

Two looks say where to cut (see `slices`). One walk gives the tables, and when the program stepped
and learned. One more, from what these say, gives the time per env step, and the page's stretches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.errors import ProfileError
from redline.profile.advise.iteration import Iteration, IterationReader
from redline.profile.advise.rates import measure_rates
from redline.profile.advise.remedies import advise
from redline.profile.advise.report import advice_to_json
from redline.profile.advise.steady import Entries, find_steady
from redline.profile.analyse.shares import with_shares
from redline.profile.analyse.slices import Outline, follow, outline
from redline.profile.analyse.stacks import Stacks, read_stacks
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.analyse.timeline import Timeline
from redline.profile.reader import Session
from redline.profile.report.html import render_html
from redline.profile.report.page_data import PageBins

__all__ = ["Reading", "find_iteration", "read_session", "render_page"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A session after the first walk."""

    session: Session
    outlines: list[Outline]
    summary: Summary
    entries: list[dict[str, NDArray[np.int64]]]  # per process, see `Entries`
    stacks: list[Stacks | None]  # per process, with what each sample was in


def read_session(session: Session, sampled: Session | None = None) -> Reading:
    """Walk through a session once.

    Args:
        session: that was recorded.
        sampled: see `with_shares`.

    Raises:
        ProfileError: if the C extension was not built.
        ConfigError: if `sampled` has nothing to do with it.
    """
    outlines = outline(session.processes)
    entries = Entries(session.processes)
    stacks = [read_stacks(process) for process in session.processes]
    summary = summarize(session, outlines, entries.add, stacks=stacks)
    summary = with_shares(summary, session, sampled, outlines)
    return Reading(session, outlines, summary, entries.found(), stacks)


def find_iteration(reading: Reading, *beside: Callable[[int, Timeline], None]) -> Iteration | None:
    """What an env step costs; None where nothing steps an env, or no time is known.

    Args:
        reading: of the session, which is walked through once more if there is something to find.
        beside: let these have each slice as well, as `slices.follow` does.
    """
    try:
        steady = find_steady(reading.session, reading.summary, reading.entries)
    except ProfileError:
        if beside:
            follow(reading.outlines, *beside)
        return None
    found = reading.outlines[steady.place]
    stacks = reading.stacks[steady.place]
    reader = IterationReader(reading.session, reading.summary, found, steady, stacks)
    if beside:
        follow(reading.outlines, reader.add, *beside)
    else:
        follow([found], lambda _, timeline: reader.add(steady.place, timeline))
    try:
        return reader.result()
    except ProfileError:
        return None


def render_page(reading: Reading) -> tuple[str, Iteration | None]:
    """The HTML page with the advice, and what an env step costs.

    Raises:
        ProfileError: if plotly is not installed.
    """
    bins = PageBins(reading.session, reading.summary, reading.outlines, reading.stacks)
    iteration = find_iteration(reading, bins.add)
    page = render_html(reading.session, reading.summary, _advice_of(iteration), bins.data())
    return page, iteration


def _advice_of(iteration: Iteration | None) -> dict[str, Any] | None:
    if iteration is None:
        return None
    return advice_to_json(iteration, advise(iteration, measure_rates(iteration.torch_threads)))
