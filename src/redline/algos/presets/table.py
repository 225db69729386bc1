"""The shape of a table of presets."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]
Presets = dict[str, Settings]
