"""The stand-in accelerator, for every test of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.accelerator import emulated_graph, stand_in

# At collection: autograd counts the devices at the process's first backward pass.
stand_in.install()


@pytest.fixture(autouse=True)
def accelerator() -> Iterator[stand_in.StandInDevice]:
    """The stand-in with counts of this test's own."""
    with emulated_graph.installed(), stand_in.counted() as device:
        yield device
