"""The contract's own helpers."""

from __future__ import annotations

import torch

from redline.policies import reset_state


def test_reset_state_zeroes_only_the_ended_rows() -> None:
    """Elsewhere what an episode left behind was cleared in one collector and not in another."""
    state = {"hidden": torch.ones(3, 2), "memory": torch.full((3, 2, 2), torch.nan)}
    got = reset_state(state, torch.tensor([True, False, True]))
    assert got["hidden"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert not got["memory"][[0, 2]].any()
    assert got["memory"][1].isnan().all()
    assert state["hidden"].all()
