"""Acting for environments of the host as one graph: three launches for a step, in place of thirty.

| launch | what |
|---|---|
| a copy | observations and noise, side by side in pinned memory |
| a graph | the policy's step; its recurrent state stays in the graph's memory |
| a copy | actions and extras, side by side; the only wait of a step |

The numbers are those of `Policy.act`, which the first step is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from redline.collect.acting_loop import ActingLoop, ActorFor, FastActor
from redline.devices import kind_of
from redline.engines.acting_check import are_close
from redline.engines.captured_rollouts import captured_rollouts
from redline.engines.cudagraph import CapturedStep, describe, rebuild
from redline.engines.staged_copies import StagedCopies, places_in
from redline.engines.watch import NetworksWatch
from redline.policies.policy import ActOutput, Policy, State


class CapturedActing:
    """Gives what acts in a policy's place on a device that captures; an `ActorFor`.

    Args:
        otherwise: asked for policies elsewhere; None: they act by themselves.
        captures: whether to; else `otherwise` is asked for all.

    Attributes:
        captures: as given.
        report: told one sentence if a policy cannot be captured, which then acts by itself.
    """

    def __init__(self, otherwise: ActorFor | None, *, captures: bool) -> None:
        self._otherwise, self.captures = otherwise, captures
        self.report: Callable[[str], None] = lambda _: None

    def __call__(self, policy: Policy, num_envs: int, rollout_length: int) -> FastActor | None:
        """See `ActorFor`."""
        parameter = next(policy.parameters(), None)
        if self.captures and parameter is not None and kind_of(parameter.device).captures:
            return CapturedActor(policy, num_envs, self._tell)
        if self._otherwise is None:
            return None
        return self._otherwise(policy, num_envs, rollout_length)

    def rollouts(self, loop: ActingLoop) -> Callable[[], bool] | None:
        """What takes all steps of a rollout at once, where environments are near the policy."""
        return captured_rollouts(loop, self._tell) if self.captures else None

    def _tell(self, problem: str) -> None:
        self.report(problem)


class CapturedActor:
    """A policy's step as a graph; see `FastActor`.

    Args:
        policy: on a device that captures.
        num_envs: B.
        report: told one sentence if the policy cannot be captured.

    Attributes:
        is_rowwise: false: it acts in the place of `Policy.act`.
        takes_arrays: true: observations and noise are given as they lie on the host, and actions
            and extras come back there; they hold until the next step.
        inner: "", no algorithm is inside.
        device: of the policy.
        captured: the graphs.
        watch: says whether the policy is still what was captured.
    """

    is_rowwise, takes_arrays, inner = False, True, ""

    def __init__(self, policy: Policy, num_envs: int, report: Callable[[str], None]) -> None:
        self._policy, self._report = policy, report
        self.watch = NetworksWatch(policy)
        self.device = next(policy.parameters()).device
        # Every step waits for its actions, and so for what it was given.
        self._staged = StagedCopies(self.device, is_awaited=True)
        with torch.inference_mode(False):
            fresh = policy.initial_state(num_envs)
            self._state = {name: leaf.to(self.device) for name, leaf in fresh.items()}
        self._conditioning: dict[str, Tensor] = {}
        self._present: dict[str, tuple[Tensor, int]] = {}
        self._structure: Any = None
        self._order: list[int] = []
        self._host = torch.empty(0)
        self.captured = CapturedStep(self._step, self, borrows=True, lends=True)
        self._is_captured: bool | None = None  # None: not known yet
        self._launch: tuple[Any, Any, Callable[[], Any]] | None = None

    def serves(self, conditioning: Mapping[str, Tensor] | None) -> bool:
        """Whatever the policy understands; nothing, once it has proved that it cannot."""
        del conditioning
        return self._is_captured is not False

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Any) -> None:
        """Take the conditioning of the next rollout; weights are read where they are."""
        del noise
        conditioning = conditioning or {}
        if conditioning.keys() != self._conditioning.keys():
            with torch.inference_mode(False):
                self._conditioning = {
                    name: torch.empty_like(value, device=self.device)
                    for name, value in conditioning.items()
                }
            self._present = {}
        for name, value in conditioning.items():
            present, version = self._present.get(name, (None, -1))
            now = -2 if value.is_inference() else value._version  # such a tensor has none
            if value is not present or version != now:
                self._conditioning[name].copy_(value)
                self._present[name] = value, -1 if value.is_inference() else now

    def act(
        self, obs: Any, state: State, noise: Tensor, conditioning: Mapping[str, Tensor] | None
    ) -> ActOutput:
        """See `Policy.act`; the state is the actor's own memory."""
        del conditioning  # `begin` took it
        for name, memory in self._state.items():
            if state[name] is not memory:
                memory.copy_(state[name])
        placed = self._staged({"obs": obs, "noise": noise})
        if self._is_captured is None:
            self._try_out(placed)
        if self._is_captured:
            block = self._launched(placed)
        else:
            block = self._step(placed, self._conditioning)
        self._host.copy_(block)
        action, extras = self._structure
        return ActOutput(action, extras, self._state)

    def _launched(self, placed: dict[str, Any]) -> Tensor:
        """What a captured step gives; one in the same memory as the last is not looked at."""
        known, conditioning = self._launch, self._conditioning
        if known is None or known[0] is not placed or known[1] is not conditioning:
            launch = self.captured.launcher(placed, conditioning)
            known = self._launch = placed, conditioning, launch
        return known[2]()

    def _step(self, placed: dict[str, Any], conditioning: dict[str, Tensor]) -> Tensor:
        """Act, keep the state, and put the rest side by side: [bytes] uint8."""
        output = self._policy.act(placed["obs"], self._state, placed["noise"], conditioning or None)
        for name, memory in self._state.items():
            memory.copy_(output.state[name])
        tensors: list[Tensor] = []
        given = (output.action, output.extras)
        describe(given, tensors)
        if self._structure is None:
            self._make_room(given, tensors)
        in_order = [tensors[i] for i in self._order]
        return torch.cat([t.contiguous().view(-1).view(torch.uint8) for t in in_order])

    def _make_room(self, given: Any, tensors: list[Tensor]) -> None:
        # The widest first: so each lies at a multiple of its own width.
        self._order = sorted(range(len(tensors)), key=lambda i: -tensors[i].dtype.itemsize)
        starts, size = [0] * len(tensors), 0
        for i in self._order:
            starts[i] = size
            size += tensors[i].nbytes
        self._host = kind_of(self.device).pinned(torch.empty(size, dtype=torch.uint8))
        back = iter(places_in(self._host, starts, tensors))
        self._structure = rebuild(given, lambda _: next(back))

    def _try_out(self, placed: dict[str, Any]) -> None:
        """Make the first step twice, as it is written and captured, from the same state."""
        before = {name: memory.clone() for name, memory in self._state.items()}
        wanted = self._given(self._step(placed, self._conditioning))
        self.load_state_dict(before)
        name = type(self._policy).__name__
        try:
            found = self._given(self.captured(placed, self._conditioning))
        except Exception as error:  # noqa: BLE001 - whatever it fails with, the policy can act
            problem = f"cannot capture {name}.act: {error}"
        else:
            if are_close(wanted, found):
                self._is_captured = True
                self.load_state_dict(before)
                return
            problem = f"changed what {name}.act gives"
        self._is_captured = False
        self.load_state_dict(before)
        self._report(f"captured acting {problem}. The policy acts as it is written, and slower.")

    def state_dict(self) -> dict[str, Any]:
        """What a step changes."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put that back."""
        for name, memory in self._state.items():
            memory.copy_(state[name])

    def _given(self, block: Tensor) -> list[Tensor]:
        """Actions and extras of a step, and the state, on the host."""
        self._host.copy_(block)
        tensors: list[Tensor] = []
        describe(self._structure, tensors)
        return [t.to("cpu", copy=True) for t in (*tensors, *self._state.values())]
