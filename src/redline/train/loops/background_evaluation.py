"""Evaluation in a process of its own, while learning goes on."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from redline.data import Array, EpisodeRecord
from redline.envs.settings import EnvSettings
from redline.envs.workers.shared_memory import Layout, SharedBlock, spec_of
from redline.envs.workers.supervisor import WorkerGroup, WorkerLink
from redline.errors import ConfigError
from redline.policies.policy import Policy
from redline.profile import marks
from redline.train.loops.evaluate import NO_LIMITS, Evaluation, Limits, evaluate

_EVALUATION = marks.operation("evaluation")
_MAKING_S = 120.0  # that environments may take to be made, as those of workers


class BackgroundEvaluation:
    """Evaluates copies of the learner's policy, one after the other, in another process.

    Args:
        settings: how to make environments.
        policy: the learner's; `start` sends its weights of that moment.
        episodes: of each evaluation.
        limits: in env_steps.
        timeout_s: seconds without a step after which the process counts as hung, once it has made
            its environments and taken the first.
        device: where the copies act.

    Raises:
        WorkerError: if the process does not start; later, if it fails.
    """

    options: ClassVar[tuple[str, ...]] = ("worker_timeout_s",)  # of the run, that it uses

    def __init__(
        self,
        settings: EnvSettings,
        policy: Policy,
        *,
        episodes: int,
        limits: Limits = NO_LIMITS,
        timeout_s: float = 8.0,
        device: str = "cpu",
    ) -> None:
        self._policy = policy
        self._running: int | None = None
        self._memory = SharedBlock()
        arrays = {"returns": np.zeros(episodes, np.float64), "counts": np.zeros(3, np.int64)}
        layout = Layout.of(spec_of(arrays))
        self._memory.resize(layout.nbytes)
        shared = self._memory.arrays(layout)
        # What counts: steps of all evaluations, episodes of this one, and whether it steps yet.
        self._returns, self._counts = shared["returns"], shared["counts"]
        self._progress = Progress(self._counts)
        acting = copy.deepcopy(policy).to("cpu")
        try:
            self._group = WorkerGroup(
                [_Job(settings, acting, episodes, limits, layout, device)],
                titles=["evaluation"],
                memory=self._memory,
                timeout_s=timeout_s,
            )
        except BaseException:
            self._memory.close()
            raise

    @property
    def running(self) -> int | None:
        """What `start` was told of the evaluation under way; None if there is none."""
        return self._running

    def start(self, env_steps: int, seed: int) -> None:
        """Evaluate the policy as it is now.

        Args:
            env_steps: where the run stands, given back by `running`.
            seed: of environments.

        Raises:
            ConfigError: if an evaluation is under way.
        """
        if self._running is not None:
            raise ConfigError("an evaluation is under way; wait() for it first.")
        weights = [leaf.detach().cpu().numpy() for leaf in self._policy.state_dict().values()]
        self._counts[1:] = 0
        self._progress.begin()
        self._group.post("evaluate", [(weights, seed)])
        self._running = env_steps

    def partial(self) -> list[float]:
        """Returns of the episodes that have ended by now."""
        return self._returns[: int(self._counts[1])].tolist()

    def poll(self) -> Evaluation | None:
        """The result if it is there, which ends this evaluation; never waits."""
        if self._running is None:
            return None
        with self._given_up():
            replies = self._group.receive_ready()
        if 0 not in replies:
            return None
        self._running = None
        return replies[0]

    def wait(self) -> Evaluation:
        """Wait for the result; raises WorkerError if the process fails or stands still."""
        if self._running is None:
            raise ConfigError("no evaluation is under way; start() one first.")
        with self._given_up():
            result = self._group.gather("evaluate", heartbeat=lambda _: self._progress.beat())[0]
        self._running = None
        return result

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        """If the process fails, none is under way any more: the run can be saved."""
        try:
            yield
        except BaseException:
            self._running = None
            raise

    def close(self) -> None:
        """End the process; a running evaluation is given up."""
        if self._running is not None:
            self._group.interrupt()
        self._group.close()
        self._memory.close()


class Progress:
    """A number that changes as long as the evaluating process goes on.

    Environments are made one after the other and may take as long as those of workers, so until
    the first step time itself counts, up to a limit.

    Args:
        counts: [3] steps of all evaluations, episodes of this one, whether it steps yet.
        clock: seconds.
    """

    def __init__(self, counts: Array, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts, self._clock = counts, clock
        self._begun_s, self._beats = 0.0, 0

    def begin(self) -> None:
        """An evaluation begins."""
        self._begun_s = self._clock()

    def beat(self) -> int:
        """The number; -1, -2, ... until the first step."""
        if self._counts[2] or self._clock() - self._begun_s > _MAKING_S:
            return int(self._counts[0])
        self._beats += 1
        return -self._beats


@dataclass(frozen=True, slots=True)
class _Job:
    """What the process is sent to begin with."""

    settings: EnvSettings
    policy: Policy
    episodes: int
    limits: Limits
    layout: Layout
    device: str

    def __call__(self, link: WorkerLink) -> _Handler:
        torch.set_num_threads(1)
        if link.memory is None:
            raise ConfigError("the evaluating process was started without shared memory.")
        return _Handler(self, link.memory.arrays(self.layout))


class _Handler:
    """The inside of the process."""

    def __init__(self, job: _Job, shared: dict[str, Array]) -> None:
        self._job, self._policy = job, job.policy.to(job.device)
        self._returns, self._counts = shared["returns"], shared["counts"]

    def handle(self, command: str, payload: tuple[list[Array], int]) -> Any:
        del command  # there is only one
        weights, seed = payload
        own = self._policy.state_dict()
        with torch.no_grad():
            for target, source in zip(own.values(), weights, strict=True):
                target.copy_(torch.as_tensor(source))
        with _EVALUATION:
            return evaluate(
                self._job.settings.make,
                self._policy,
                episodes=self._job.episodes,
                seed=seed,
                limits=self._job.limits,
                on_step=self._note,
            )

    def _note(self, ended: list[EpisodeRecord]) -> None:
        """Let the parent see that it goes on, and which episodes have ended."""
        for record in ended:
            self._returns[self._counts[1]] = record.return_
            self._counts[1] += 1
        self._counts[0] += 1
        self._counts[2] = 1

    def close(self) -> None:
        """Every evaluation closes its own environments."""
