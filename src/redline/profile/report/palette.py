"""Colors that the page and the figures share; told apart by the color-blind, too (Paul Tol)."""

from __future__ import annotations

__all__ = ["LEVEL_COLORS", "SERIES_COLORS"]

LEVEL_COLORS = {
    "python": "#4477AA",
    "backend": "#EE6677",
    "compiled": "#AA3377",
    "simulator": "#228833",
    "cuda_api": "#CCBB44",
    "waiting": "#BBBBBB",
    "unattributed": "#66CCEE",
}
SERIES_COLORS = (
    *("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"),
    *("#7A7A7A", "#994F00"),
)
