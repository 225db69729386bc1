"""The rows of a run as a table."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from redline.errors import MissingExtraError
from redline.train.progress.table import ProgressTable


def test_without_pandas_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="Install it with: pip install pandas"):
        ProgressTable({"env_steps": np.array([64.0])}).to_pandas()


def test_pandas_is_given_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in: pandas itself may be missing here."""
    stand_in = types.ModuleType("pandas")
    stand_in.DataFrame = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    frame = ProgressTable({"env_steps": np.array([64.0, 128.0])}).to_pandas()
    assert frame["env_steps"].tolist() == [64.0, 128.0]
