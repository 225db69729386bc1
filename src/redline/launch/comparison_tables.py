"""A comparison as tables for a terminal."""

from __future__ import annotations

from typing import Any

from redline.launch.comparison import Comparison
from redline.plain_text import printable

_MOST_PAIRS = 20


def tables(compared: Comparison) -> list[Any]:
    """Tables for rich to print: a line per environment and group, and the probabilities."""
    from rich.table import Table

    title = f"{compared.score} score of {compared.column}, [95% bootstrap interval]"
    scores = Table(title=title, title_justify="left")
    longest = max((len(each.env) for each in compared.summaries), default=0)
    scores.add_column("environment", overflow="fold", min_width=min(15, longest))
    scores.add_column("group", overflow="fold", min_width=5)
    for name in ("runs", "mean", "IQM"):
        scores.add_column(name, justify="right", no_wrap=True)
    last = ""
    for each in compared.summaries:
        if last and each.env != last:
            scores.add_section()
        scores.add_row(
            _plain(each.env) if each.env != last else "",
            _plain(each.group),
            f"{each.runs} ({each.unfinished} unfinished)" if each.unfinished else str(each.runs),
            _interval(each.runs, each.mean, each.mean_low, each.mean_high),
            _interval(each.runs, each.iqm, each.iqm_low, each.iqm_high),
        )
        last = each.env
    if not compared.improvements:
        return [scores]
    pairs = Table(title="probability of improvement", title_justify="left")
    for name in ("first", "second", "P(first > second)"):
        pairs.add_column(name, justify="right" if name.startswith("P") else "left")
    order = {group: number for number, group in enumerate(r.group for r in compared.runs)}
    shown = [each for each in compared.improvements if order[each.first] < order[each.second]]
    for each in shown[:_MOST_PAIRS]:
        cell = f"{each.probability:.2f} [{each.low:.2f}, {each.high:.2f}]"
        pairs.add_row(_plain(each.first), _plain(each.second), cell)
    if len(shown) > _MOST_PAIRS:
        pairs.add_row(f"... and {len(shown) - _MOST_PAIRS} more in improvement.csv", "", "")
    return [scores, pairs]


def _plain(words: str) -> Any:
    """Words of a run as they are: no escape sequence, and no markup of rich's."""
    from rich.text import Text

    return Text(printable(words))


def _interval(runs: int, value: float, low: float, high: float) -> str:
    size = abs(value)  # a table of 80 characters holds it; the files have every digit
    digits = 3 if size < 10 else 1 if size < 100 else 0
    if runs == 1:
        return f"{value:,.{digits}f}"  # of one run there is no interval
    return f"{value:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"
