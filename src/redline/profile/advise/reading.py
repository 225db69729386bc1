"""All that a report shows of one session, read with as few walks through its events as can be.

Two looks say where to cut (see `slices`), and when the program stepped and learned. One walk gives
the tables and the time per env step. One more, from what these say, gives the page's stretches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redline.errors import ProfileError
from redline.profile.advise.iteration import Iteration, IterationReader
from redline.profile.advise.rates import measure_rates, why_not_measured
from redline.profile.advise.remedies import Advice, advise
from redline.profile.advise.report import advice_to_json
from redline.profile.advise.steady import Entries
from redline.profile.analyse.shares import with_shares
from redline.profile.analyse.slices import Outline, follow, outline
from redline.profile.analyse.stacks import Stacks, read_stacks
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.gpu.records import GpuWindow, windows_of
from redline.profile.reader import Session
from redline.profile.report.html import render_html
from redline.profile.report.page_data import PageBins

__all__ = ["Reading", "advise_here", "find_iteration", "read_session", "render_page"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A session after the walk."""

    session: Session
    outlines: list[Outline]
    summary: Summary
    reader: IterationReader
    stacks: list[Stacks | None]  # per process, with what each sample was in
    windows: list[list[GpuWindow]]  # per process, in which the GPU was observed


def read_session(session: Session, sampled: Session | None = None) -> Reading:
    """Walk through a session once.

    Args:
        session: that was recorded.
        sampled: see `with_shares`.

    Raises:
        ProfileError: if the C extension was not built.
        ConfigError: if `sampled` has nothing to do with it.
    """
    session.look_at_seal()
    entries = Entries(session.processes)
    outlines = outline(session.processes, beside=entries.add)
    windows = [windows_of(process) for process in session.processes]
    reader = IterationReader(session, outlines, entries.found(), windows)
    stacks = [read_stacks(process) for process in session.processes]
    summary = summarize(session, outlines, reader.add, stacks=stacks, windows=windows)
    summary = with_shares(summary, session, sampled, outlines)
    return Reading(session, outlines, summary, reader, stacks, windows)


def find_iteration(reading: Reading) -> Iteration | None:
    """What an env step costs; None where nothing steps an env, or no time is known."""
    try:
        return reading.reader.result(reading.summary, reading.stacks)
    except ProfileError:
        return None


def render_page(reading: Reading) -> tuple[str, Iteration | None]:
    """The HTML page with the advice, and what an env step costs.

    Raises:
        ProfileError: if plotly is not installed.
    """
    bins = PageBins(
        reading.session, reading.summary, reading.outlines, reading.stacks, reading.windows
    )
    follow(reading.outlines, bins.add)
    iteration = find_iteration(reading)
    page = render_html(reading.session, reading.summary, _advice_of(iteration), bins.data())
    return page, iteration


def _advice_of(iteration: Iteration | None) -> dict[str, Any] | None:
    if iteration is None:
        return None
    told, found = advise_here(iteration)
    return advice_to_json(told, found)


def advise_here(iteration: Iteration) -> tuple[Iteration, list[Advice]]:
    """The advice, by what this machine is asked; the iteration says so where it cannot be."""
    rates = measure_rates(iteration.torch_threads)
    if reason := why_not_measured(iteration.torch_threads):
        iteration = replace(iteration, problems=[*iteration.problems, reason])
    return iteration, advise(iteration, rates)
