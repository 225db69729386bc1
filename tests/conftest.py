"""What every test process is told before torch is loaded, and how its workers start."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from tests.tiers import leave_out_long_tests
from tests.warm_workers import WarmSubprocess

# As a run tells its own process (`redline.train.process`): several test processes share the cores,
# and OpenMP's idle threads would keep them from each other for milliseconds at a time.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


# An example may take as long as it likes: on a busy machine it loses its core for 200 ms and more.
hypothesis.settings.register_profile("redline", deadline=None)
hypothesis.settings.load_profile("redline")

ATTACK_SEED = "REDLINE_ATTACK_SEED"


def pytest_configure() -> None:
    """Attacks that have found nothing for long get a new seed; all test processes inherit it."""
    os.environ.setdefault(ATTACK_SEED, str(random.SystemRandom().randrange(2**31)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all`: the long tests, too (tests/long.txt)."""
    parser.addoption("--all", action="store_true", help="run the long tests of tests/long.txt, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out."""
    leave_out_long_tests(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how the attacks of this session are repeated."""
    terminalreporter.write_line(f"attacks: {ATTACK_SEED}={os.environ[ATTACK_SEED]}")


_SIGTERM = signal.getsignal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _own_signals() -> None:
    """Ray puts a handler of its own for SIGTERM into the process that starts a cluster."""
    if signal.getsignal(signal.SIGTERM) != _SIGTERM:
        signal.signal(signal.SIGTERM, _SIGTERM)


@pytest.fixture(scope="session")
def warm_subprocess() -> Iterator[WarmSubprocess]:
    """Starts this test process's workers, from a template that the first of them starts."""
    warm = WarmSubprocess()
    yield warm
    warm.close()


@pytest.fixture(autouse=True)
def _warm_workers(
    request: pytest.FixtureRequest, warm_subprocess: WarmSubprocess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start workers quickly, unless a test is marked `cold_workers` or has no torch."""
    cold = request.node.get_closest_marker("cold_workers") is not None
    if not cold and sys.platform == "linux" and "torch" in sys.modules:
        from redline.envs.workers import worker_process

        warm_subprocess.start()  # now, for tests that compare the processes before and after
        monkeypatch.setattr(worker_process, "subprocess", warm_subprocess)
