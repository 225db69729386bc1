"""The colors of figures and pages."""

from __future__ import annotations

LEVEL_COLORS = {
    "python": "#4477AA",
    "backend": "#EE6677",
    "compiled": "#AA3377",
    "simulator": "#228833",
    "cuda_api": "#CCBB44",
    "waiting": "#BBBBBB",
    "unattributed": "#66CCEE",
    "ready": "#DDDDDD",
}
SERIES_COLORS = (
    *("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"),
    *("#7A7A7A", "#994F00"),
)
