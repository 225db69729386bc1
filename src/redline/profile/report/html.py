"""One self-contained HTML page: opens with no network, runs no script but its own.

The plotting library, the style, the page's program and the session's data are all inside. The data
is JSON in an element that browsers do not execute, with `<`, `>` and `&` escaped, and the page
writes names as text only. A Content-Security-Policy allows the page's own scripts by their hash and
no request at all, so that nothing in a session can run or call out.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import import_module
from importlib.resources import files
from typing import Any

from redline.errors import ProfileError
from redline.plain_text import printable
from redline.profile.analyse.summary import Summary, without_nan
from redline.profile.reader import Session
from redline.profile.report.page_data import page_data

__all__ = ["embed_json", "render_html"]


def render_html(
    session: Session,
    summary: Summary,
    advice: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
) -> str:
    """The page as text, some 5 MB.

    Args:
        session: that was recorded.
        summary: of the same session.
        advice: of `redline advise`, as plain data; None leaves it out.
        data: of `page_data`, where it is known.

    Raises:
        ProfileError: if plotly is not installed.
        ProfileError: if the C extension was not built.
    """
    plotly, program = _plotly(), _part("page.js")
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src {_hash(plotly)} {_hash(program)}"
    )
    parts = {
        "policy": policy,
        "title": html.escape(printable(f"Profile of {summary.session}")),
        "style": _part("page.css"),
        "data": embed_json({**(data or page_data(session, summary)), "advice": advice}),
        "plotly": plotly,
        "program": program,
    }
    # One pass: what is put in is never searched for places itself.
    return re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], _part("page.html"))


def embed_json(value: Any) -> str:
    """JSON that may stand inside a script element: no `<`, `>` or `&`, so that nothing ends it."""
    # A manifest's own values are a stranger's: NaN would be no JSON, and end the page's program.
    text = json.dumps(without_nan(value), separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _part(name: str) -> str:
    return (files("redline.profile.report") / "page" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        offline: Any = import_module("plotly.offline")  # which has no types
    except ImportError as error:
        raise ProfileError(
            "the HTML report draws with plotly, which is not installed. pip install plotly"
        ) from error
    return offline.get_plotlyjs()


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
