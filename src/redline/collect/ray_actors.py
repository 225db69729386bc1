"""Ray actors that act, supervised: one that dies is replaced, and its commands are given again.

`ActorGroup` answers to the same calls as `WorkerGroup` of worker processes. What goes wrong:

| in the actor | in the learner |
|---|---|
| a RedlineError is raised | the same error, once all have answered; the group goes on |
| anything else is raised | WorkerError with the traceback |
| its environment hangs | WorkerError with the stack of each thread |
| it dies, or does not answer at all | another one takes its place, with new environments |
| all are dead at once | WorkerError |
| its replacements die, too | WorkerError, after three in a row |
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from redline.collect.acting_worker import ActingHandler, ActingJob, CollectRequest
from redline.collect.buffer import RolloutBuffer
from redline.data import map_leaves
from redline.envs.workers.hang_timeout import HangTimeout
from redline.envs.workers.supervisor import WorkerLink, killed_while_closing, pickled
from redline.envs.workers.worker_main import FAILED, REFUSED, guarded
from redline.errors import ClusterError, RedlineError, WorkerError

_START_S = 240.0  # making environments, on a node that must perhaps load the program first
_LOOK_S = 0.5
_PROBE_S = 2.0  # for an actor that lives to say so
_END_S = 2.0
_DEATHS_IN_A_ROW = 3
_SEED_STEP = 15_485_863  # keeps the environments of a replacement apart from those it replaces
_WATCH = "watch"


class RemoteHandler(ActingHandler):
    """Acts with buffers of its own, and gives their rows away.

    Arguments as for `ActingHandler`.
    """

    def _attach(self, layout: Any) -> None:
        rollout_length, num_envs = layout
        job = self._job
        self._buffer = RolloutBuffer.create(
            rollout_length,
            job.end - job.begin,
            self._env.observation_space,
            self._env.action_space,
            job.policy.extras_spec,
        )
        self._use([self._buffer], np.zeros(8, np.int64), alone=num_envs == 1)

    def _collect(self, request: CollectRequest) -> Any:
        part = super()._collect(dataclasses.replace(request, slot=0))
        fields = self._buffer.fields
        # True last observations are there only where an episode ended: the rest stays here.
        at = np.nonzero(fields["terminated"] | fields["truncated"])
        final = map_leaves(lambda leaf: leaf[at], fields["final_obs"])
        return part, {n: f for n, f in fields.items() if n != "final_obs"}, at, final

    def _published(self, request: CollectRequest) -> Sequence[Tensor]:
        import ray

        # A copy: what lies in the object store cannot be written, which torch warns of.
        return [torch.from_numpy(np.array(leaf)) for leaf in ray.get(request.weights)]

    @property
    def steps(self) -> int:
        """Steps taken so far; 0 before there is a loop."""
        return int(self._progress[0]) if hasattr(self, "_progress") else 0


class ActingActor:
    """What Ray runs somewhere in the cluster.

    Commands are answered one after the other. `steps` and `stack` are asked in a thread of
    their own, so they answer while an environment steps, or hangs.
    """

    def __init__(self) -> None:
        self._handler: RemoteHandler | None = None

    def begin(self, payload: bytes) -> tuple[str, Any]:
        """Make the environments of a pickled `ActingJob`."""

        def make() -> None:
            job: ActingJob = cloudpickle.loads(payload)
            self._handler = RemoteHandler(job, job.make_envs(), WorkerLink(0, None))

        return guarded(make)

    def handle(self, command: str, payload: Any) -> tuple[str, Any]:
        """(ok, the answer), or the kind of failure with what to tell the learner."""
        return guarded(lambda: self._made.handle(command, payload))

    def close(self) -> None:
        """Close the environments."""
        if self._handler is not None:
            self._handler.close()

    def steps(self) -> int:
        """A number that changes as long as environments step."""
        return 0 if self._handler is None else self._handler.steps

    def stack(self) -> str:
        """Where each thread is."""
        frames = sys._current_frames().values()
        return "\n".join("".join(traceback.format_stack(frame)[-6:]) for frame in frames)

    @property
    def _made(self) -> RemoteHandler:
        if self._handler is None:
            raise RuntimeError("the actor was asked before it had begun")
        return self._handler


@dataclasses.dataclass(slots=True)
class _Member:
    """One place in the group, whichever actor has it."""

    title: str
    job: ActingJob
    actor: Any = None
    pending: deque[tuple[str, Any, Any]] = dataclasses.field(default_factory=deque)
    num_replaced: int = 0
    deaths_in_a_row: int = 0
    beat: int = 0
    beat_ref: Any = None
    asked_at_s: float = 0.0


class ActorGroup:
    """Ray actors, one per job; the module docstring says what becomes of those that fail.

    Args:
        ray: the package, connected.
        jobs: what each begins with.
        titles: what each works on, for messages.
        timeout_s: seconds without a step after which an environment counts as hung.
        set_up: number of an actor -> commands that bring a new one to where the others are.
        replaced: called with the number of an actor and why it was lost, before another one
            takes its place.

    Raises:
        ClusterError: if the cluster has no room for them.
        WorkerError: if one does not begin.
    """

    def __init__(
        self,
        ray: Any,
        jobs: Sequence[ActingJob],
        *,
        titles: Sequence[str],
        timeout_s: float,
        set_up: Callable[[int], list[tuple[str, Any]]],
        replaced: Callable[[int, str], None],
    ) -> None:
        self._ray, self._timeout_s = ray, timeout_s
        self._set_up, self._replaced = set_up, replaced
        self._is_closed = False
        self._kind = ray.remote(num_cpus=1, max_restarts=0, concurrency_groups={_WATCH: 1})(
            ActingActor
        )
        self._members = [_Member(*each) for each in zip(titles, jobs, strict=True)]
        try:
            begun = [self._begun(member, member.job) for member in self._members]
            for member, ref in zip(self._members, begun, strict=True):
                self._checked(member, self._got(ref))
        except ray.exceptions.RayError as error:
            self._kill()
            raise WorkerError(f"an actor died while it began: {_first_line(error)}") from error
        except BaseException:
            self._kill()
            raise

    @property
    def num_workers(self) -> int:
        """How many actors there are."""
        return len(self._members)

    # -- commands -------------------------------------------------------------------------

    def call(
        self, command: str, payloads: Sequence[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        """Give all actors a command and wait for all answers; as `WorkerGroup.call`."""
        self.post(command, payloads)
        return self.gather(command, timeout_s)

    def post(self, command: str, payloads: Sequence[Any] | None = None) -> None:
        """Give all actors a command and go on; several may be under way."""
        for index, member in enumerate(self._members):
            payload = None if payloads is None else payloads[index]
            ref = member.actor.handle.remote(command, payload)
            member.pending.append((command, payload, ref))

    def gather(
        self,
        command: str,
        timeout_s: float | None = None,
        take: Callable[[int, Any], Any] = lambda worker, answer: answer,
    ) -> list[Any]:
        """Every actor's answer to the oldest command that was posted.

        Args:
            command: it, for messages.
            timeout_s: for the whole command; the group's own, where that is longer.
            take: (actor, answer) -> what is kept of it; called as soon as it is there.

        Raises:
            RedlineError: the first that a handler raised.
            WorkerError: if one raised anything else or hangs, or if all are lost.
        """
        replies: dict[int, Any] = {}
        refusals: dict[int, RedlineError] = {}
        waiting = set(range(len(self._members)))
        timeout = self._timeout(waiting, timeout_s)
        while waiting:
            refs = {self._members[index].pending[0][2]: index for index in waiting}
            look_s = min(_LOOK_S, max(0.0, timeout.next_check_s(waiting)))
            ready, _ = self._ray.wait(list(refs), timeout=look_s)
            for index in [refs[ref] for ref in ready]:
                try:
                    answer = self._answer(index)
                except self._ray.exceptions.RayError as error:
                    self._replace(index, _first_line(error))
                    timeout = self._timeout(waiting, timeout_s)
                    continue
                except WorkerError:
                    raise
                except RedlineError as error:
                    refusals[index] = error
                else:
                    replies[index] = take(index, answer)
                waiting.discard(index)
            if not ready:
                for index in timeout.hung(waiting):
                    self._replace_unless_hung(index, command, timeout_s)
                    timeout = self._timeout(waiting, timeout_s)
        if refusals:
            raise refusals[min(refusals)]
        return [replies[index] for index in sorted(replies)]

    def _timeout(self, waiting: set[int], timeout_s: float | None) -> HangTimeout:
        if timeout_s is not None:
            return HangTimeout(waiting, max(timeout_s, self._timeout_s), None)
        return HangTimeout(waiting, self._timeout_s, self._beat)

    def _answer(self, index: int) -> Any:
        """The answer to an actor's oldest command, which is there."""
        member = self._members[index]
        found = self._ray.get(member.pending[0][2])
        member.pending.popleft()
        member.deaths_in_a_row = 0
        return self._checked(member, found)

    def _checked(self, member: _Member, found: tuple[str, Any]) -> Any:
        kind, answer = found
        if kind == FAILED:
            self._kill()
            raise WorkerError(f"the actor of {member.title} raised:\n{answer}")
        if kind == REFUSED:
            error, text = answer
            error.add_note(f"Raised in the actor of {member.title}:\n{text}")
            raise error
        return answer

    def _beat(self, index: int) -> int:
        """The steps that an actor has last told of; asks again if that is a while ago."""
        member, now = self._members[index], time.monotonic()
        if member.beat_ref is not None:
            ready, _ = self._ray.wait([member.beat_ref], timeout=0)
            if ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    member.beat = self._ray.get(member.beat_ref)
                member.beat_ref = None
        elif now - member.asked_at_s > _LOOK_S:
            member.asked_at_s = now
            member.beat_ref = self._watched(member, "steps")
        return member.beat

    def _watched(self, member: _Member, method: str) -> Any:
        return getattr(member.actor, method).options(concurrency_group=_WATCH).remote()

    # -- losses ---------------------------------------------------------------------------

    def _begun(self, member: _Member, job: ActingJob) -> Any:
        payload = pickled(job)
        member.actor = self._kind.remote()
        return member.actor.begin.remote(payload)

    def _got(self, ref: Any) -> Any:
        try:
            return self._ray.get(ref, timeout=_START_S)
        except self._ray.exceptions.GetTimeoutError as error:
            free = self._ray.available_resources().get("CPU", 0)
            raise ClusterError(
                f"an actor of {self.num_workers} has not begun within {_START_S:g} s: the Ray "
                f"cluster has {free:g} CPUs free, and each actor takes one. Give fewer "
                f"--num-workers, or wait for others to end."
            ) from error

    def _replace_unless_hung(self, index: int, command: str, timeout_s: float | None) -> None:
        """Replace an actor that says nothing at all.

        Raises:
            WorkerError: if it answers, so that it is its environment that hangs.
        """
        member = self._members[index]
        try:
            stack = self._ray.get(self._watched(member, "stack"), timeout=_PROBE_S)
        except self._ray.exceptions.RayError:
            self._replace(index, f"it did not answer {command!r} or anything else")
            return
        self._kill()
        limit_s = max(timeout_s or 0.0, self._timeout_s)
        raise WorkerError(
            f"the actor of {member.title} took no step in {command!r} within {limit_s:g} s; all "
            f"actors were ended. Raise worker_timeout_s above that if it may take longer. The "
            f"Python stack was:\n{stack}"
        )

    def _replace(self, index: int, reason: str) -> None:
        """Put another actor in the place of one that is lost, and give it the same commands.

        Raises:
            WorkerError: if all are lost, or this place has lost several in a row.
        """
        member = self._members[index]
        if self._is_closed:
            raise WorkerError("the actors were ended while a rollout was under way.")
        self._raise_if_all_lost(index, reason)
        while True:
            member.deaths_in_a_row += 1
            if member.deaths_in_a_row > _DEATHS_IN_A_ROW:
                self._kill()
                raise WorkerError(
                    f"the actor of {member.title} was lost {member.deaths_in_a_row} times in a row "
                    f"without an answer in between; the last time: {reason}. Does its environment "
                    f"crash, or run out of memory?"
                )
            self._end(member)
            self._replaced(index, reason)
            member.num_replaced += 1
            seed = member.job.seed + _SEED_STEP * member.num_replaced
            job = dataclasses.replace(member.job, seed=seed)
            try:
                self._checked(member, self._got(self._begun(member, job)))
                for command, payload in self._set_up(index):
                    self._checked(member, self._got(member.actor.handle.remote(command, payload)))
            except self._ray.exceptions.RayError as error:
                reason = _first_line(error)
                continue
            break
        member.beat, member.beat_ref = 0, None
        member.pending = deque(
            (command, payload, member.actor.handle.remote(command, payload))
            for command, payload, _ in member.pending
        )

    def _raise_if_all_lost(self, index: int, reason: str) -> None:
        others = [m for i, m in enumerate(self._members) if i != index]
        asked = [self._watched(member, "steps") for member in others]
        if asked:
            self._ray.wait(asked, num_returns=len(asked), timeout=_PROBE_S)
        if all(self._has_failed(ref) for ref in asked):
            self._kill()
            raise WorkerError(
                f"all {self.num_workers} actors of this run are lost; of the actor of "
                f"{self._members[index].title} Ray says: {reason}. Look with `ray status`, then go "
                f"on from the last checkpoint with: redline train --resume RUN"
            )

    def _has_failed(self, ref: Any) -> bool:
        try:
            self._ray.get(ref, timeout=0)
        except self._ray.exceptions.GetTimeoutError:
            return False  # it may be busy
        except self._ray.exceptions.RayError:
            return True
        return False

    # -- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Let every actor close its environments, and end it; as `WorkerGroup.close`."""
        if self._is_closed:
            return
        busy: list[Any] = []
        late: list[Any] = []
        limit_s = max(_END_S, self._timeout_s)
        with contextlib.suppress(self._ray.exceptions.RayError):
            closing = {member.actor.close.remote(): member for member in self._members}
            late = self._late(list(closing), _END_S)
            busy = [ref for ref in late if self._is_busy(closing[ref])]
            late = self._late([ref for ref in late if ref not in busy], limit_s - _END_S)
        self._kill()
        names = [[f"the actor of {closing[ref].title}" for ref in refs] for refs in (busy, late)]
        limits_s = _END_S, limit_s
        told = killed_while_closing("ended", names[0], names[1], limits_s, "worker_timeout_s")
        sys.stderr.write(told)

    def _late(self, refs: list[Any], timeout_s: float) -> list[Any]:
        """Those whose answers are not there after so long."""
        if not refs:
            return []
        return self._ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[1]

    def _is_busy(self, member: _Member) -> bool:
        """Whether it still is at work on a command."""
        return bool(member.pending) and bool(self._late([member.pending[-1][2]], 0.0))

    def interrupt(self) -> None:
        """End the actors while another thread waits for them: it gets a WorkerError."""
        self._kill()

    def _kill(self) -> None:
        self._is_closed = True
        for member in self._members:
            self._end(member)

    def _end(self, member: _Member) -> None:
        if member.actor is not None:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(member.actor)


def _first_line(error: BaseException) -> str:
    """What Ray says of a loss, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[-1] if lines[0].startswith("ray::") else lines[0]  # a traceback ends with it
    return line.strip().rstrip(".")
