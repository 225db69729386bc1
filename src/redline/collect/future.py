"""A rollout that is being made while the caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable

from redline.data import Rollout


class RolloutFuture:
    """What `Collector.collect_async` gives.

    Args:
        make: makes the rollout, or waits for it; runs in a thread of its own.
        look: a copy of what the rollout holds by now.
    """

    def __init__(self, make: Callable[[], Rollout], look: Callable[[], Rollout]) -> None:
        self._make, self._look = make, look
        self._rollout: Rollout | None = None
        self._error: BaseException | None = None
        # A daemon: a program that ends does not wait for a rollout that nobody wants.
        self._thread = threading.Thread(target=self._run, name="redline-collect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rollout = self._make()
        except BaseException as error:  # noqa: BLE001 (raised again in `result`)
            self._error = error

    @property
    def done(self) -> bool:
        """Whether the rollout is complete, or has failed; never waits."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done, or for `timeout_s` seconds; whether it is done then."""
        self._thread.join(timeout_s)
        return self.done

    def result(self) -> Rollout:
        """Wait for the rollout, which holds until the collector's next call.

        Raises:
            RedlineError: what `Collector.collect` would have raised.
        """
        self._thread.join()
        if self._rollout is None:
            if self._error is None:
                raise RuntimeError("the collecting thread ended without a result")
            raise self._error
        return self._rollout

    def partial(self) -> Rollout:
        """A copy of the rows that are complete by now; never waits.

        It has the shape of the whole rollout. Rows that are still to come are zero and not
        valid. Where the copy ends in the middle of an episode there is no bootstrap value
        yet, and of a single environment the policy's own outputs may come with the last row: it
        is for looking at, not for learning from.
        """
        return self._look()
