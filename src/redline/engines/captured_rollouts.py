"""All steps of a rollout as one graph, where environments and policy are on one device.

A step of a native game and of a small policy is a hundred launches, each quicker than the host
makes them. As one graph, a rollout of any length is one. What a step replaces (the games' state,
the observations to act on, the recurrent state) begins and ends in memory of the graph's own; rows
are written where the rollout keeps them.

The first rollout is made twice, as it is written and captured, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from redline.collect.acting_loop import ActingLoop
from redline.data import leaves
from redline.devices import exact_device, kind_of
from redline.engines.acting_check import are_close
from redline.engines.cudagraph import CapturedStep, describe, rebuild
from redline.engines.watch import NetworksWatch

MOST_STEPS = 256  # of one graph, whose every operator takes memory


def captured_rollouts(loop: ActingLoop, report: Callable[[str], None]) -> Callable[[], bool] | None:
    """What takes all steps of a rollout at once; None: they are taken one by one.

    Args:
        loop: of environments and a policy.
        report: told one sentence if the two cannot be captured.
    """
    device = loop.memory.device
    parameter = next(loop.policy.parameters(), None)
    near = parameter is not None and parameter.device == exact_device(device)
    if not near or not kind_of(device).captures or loop.env.carried() is None:
        return None
    if loop.memory.rollout_length > MOST_STEPS:
        return None
    return CapturedRollouts(loop, report)


class CapturedRollouts:
    """The steps of an acting loop as a graph; arguments as for `captured_rollouts`.

    Attributes:
        inner: "", no algorithm is inside.
        device: of everything.
        captured: the graph.
    """

    inner = ""

    def __init__(self, loop: ActingLoop, report: Callable[[str], None]) -> None:
        self._loop, self._report = loop, report
        self.device = loop.memory.device
        self._held: list[Tensor] = []
        self._key: Any = None
        self._policy: Any = loop.policy
        self._watch = NetworksWatch(loop.policy)
        self.captured = CapturedStep(self._steps, self, lends=True)
        self._is_captured: bool | None = None  # None: not known yet

    def __call__(self) -> bool:
        """Take all steps of a rollout that has just begun; whether that could be done."""
        loop = self._loop
        if loop.t or loop.episodes.active is not None:
            return False
        if self._policy is not loop.policy:
            self._policy, self._watch = loop.policy, NetworksWatch(loop.policy)
            self.captured.forget()
        elif self._watch.changed():
            self.captured.forget()
            self._is_captured = None
        if self._is_captured is False:
            return False
        self._settle()
        inputs = loop.drawn_noise, dict(loop.conditioning or {})
        if self._is_captured is None:
            self._try_out(inputs)
            if not self._is_captured:
                return False
        self.captured(*inputs)
        loop.have_been_taken()
        return True

    def _steps(self, noise: Tensor, conditioning: dict[str, Tensor]) -> tuple[()]:
        """All steps as they are written; what they replaced is put where it began."""
        self._loop.rewind(noise, conditioning or None)
        self._loop.take_steps()
        self._settle()
        return ()

    def _settle(self) -> None:
        """Let all that a step replaces lie in the graph's memory."""
        loop, present = self._loop, []
        tree = {"env": loop.env.carried(), "obs": loop.last_obs, "state": loop.state}
        key = describe(tree, present)
        if key != self._key:
            self._key, self._held = key, [leaf.clone() for leaf in present]
            self.captured.forget()
        own = {id(leaf) for leaf in self._held}
        moved = [
            (held, leaf.clone() if id(leaf) in own else leaf)
            for held, leaf in zip(self._held, present, strict=True)
            if leaf is not held
        ]
        for held, leaf in moved:
            held.copy_(leaf)
        if moved:
            places = iter(self._held)
            placed = rebuild(tree, lambda _: next(places))
            loop.env.take_carried(placed["env"])
            loop.go_on_from(placed["obs"], placed["state"])

    def _try_out(self, inputs: tuple[Any, ...]) -> None:
        """Make a rollout twice from the same state."""
        before = [leaf.clone() for leaf in self._held]
        self._steps(*inputs)
        wanted = self._found()
        self.load_state_dict(dict(enumerate(before)))
        name = f"{type(self._loop.policy).__name__} in {self._loop.env.env_id}"
        problem = f"changed the rollouts of {name}"
        try:
            self.captured(*inputs)
            self._is_captured = are_close(wanted, self._found())
        except Exception as error:  # noqa: BLE001 - whatever it fails with, steps can be taken
            self._is_captured, problem = False, f"cannot capture {name}: {error}"
        self.load_state_dict(dict(enumerate(before)))
        self._loop.rewind(*inputs)
        if not self._is_captured:
            self._report(
                f"captured acting {problem}. Steps are taken one by one, which is right and slower."
            )

    def _found(self) -> list[Tensor]:
        """The rows, and what the next rollout begins from."""
        rows = [leaf for _, leaf in leaves(self._loop.memory.steps())]
        return [leaf.clone() for leaf in (*rows, *self._held)]

    def state_dict(self) -> dict[Any, Any]:
        """What a rollout changes beside its rows, which the next one writes anew."""
        return dict(enumerate(self._held))

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Put that back."""
        for held, value in zip(self._held, state.values(), strict=True):
            held.copy_(value)
