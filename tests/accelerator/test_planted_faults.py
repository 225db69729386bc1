"""Twenty faults that break on CUDA and nowhere else, planted one by one: all of them are caught.

Each is what one careless line does to an update: it waits for the device, mixes devices, or is
written into a graph with the value that it had while it was captured. A fault counts as caught if
the stand-in refuses or counts it, or if the self-check of the captured update reports it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from redline.engines.engine import choose_engine
from redline.engines.self_check import CheckedUpdate
from redline.errors import CaptureError
from tests.accelerator import stand_in
from tests.accelerator.emulated_graph import capturing_on_the_cpu


class Learner:
    """One linear layer and one step of gradient descent; `fault` is a line in the middle."""

    def __init__(self, fault: Callable[[Learner, Tensor], Any] | None, device: str) -> None:
        torch.manual_seed(0)
        self.policy = nn.Linear(3, 1).to(device)
        self.device = torch.device(device)
        self.count, self.rate = 0, torch.tensor(0.1, device=device)
        self.memory = torch.zeros(8, device=device)
        self.hidden = np.random.default_rng(0)
        self.seen: list[Tensor] = []
        self.generator = torch.Generator(device).manual_seed(1)
        self._fault = fault

    def update(self, batch: Tensor) -> dict[str, Tensor]:
        self.count += 1
        return self.step(batch)

    def step(self, batch: Tensor) -> dict[str, Tensor]:
        loss = self.policy(batch).square().mean()
        extra = self._fault(self, batch) if self._fault is not None else None
        if extra is not None:
            loss = loss * extra
        gradients = torch.autograd.grad(loss, list(self.policy.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.policy.parameters(), gradients, strict=True):
                parameter -= self.rate * gradient
        return {"loss": loss.detach()}

    def state_dict(self) -> dict[str, Any]:
        state = {"policy": self.policy.state_dict(), "memory": self.memory, "count": self.count}
        return state | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.memory.copy_(state["memory"])
        self.count = state["count"]
        self.generator.set_state(state["generator"])


def _assign(learner: Learner, name: str, value: Any) -> None:
    setattr(learner, name, value)


def _branch(learner: Learner, batch: Tensor) -> Any:
    return 2.0 if batch.sum() > 0 else 1.0


def _keep(learner: Learner, batch: Tensor) -> Any:
    """An output kept by reference: at the next replay it holds another batch's numbers."""
    learner.seen.append(batch * 2.0)
    return learner.seen[0].mean() if len(learner.seen) > 1 else None


def _wait() -> None:
    torch.standin.synchronize()  # type: ignore[attr-defined]


def _global_seed(learner: Learner, batch: Tensor) -> Any:
    return float(np.random.default_rng(learner.count).random())


_HIDDEN = torch.Generator()
# Each with the device it shows on: what is read or mixed on the stand-in, what is frozen into a
# graph on the CPU, whose numbers are compared.
FAULTS: dict[str, tuple[str, Callable[[Learner, Tensor], Any]]] = {
    "item": ("standin", lambda own, x: x.mean().item()),
    "float": ("standin", lambda own, x: float(x.sum())),
    "branch on a value": ("standin", _branch),
    "cpu": ("standin", lambda own, x: float(x.cpu().sum())),
    "numpy": ("standin", lambda own, x: float(x.cpu().numpy().mean())),
    "tolist": ("standin", lambda own, x: sum(x[0].tolist())),
    "to cpu": ("standin", lambda own, x: x.to("cpu").mean()),
    "copied to the host": ("standin", lambda own, x: torch.empty(4, 3).copy_(x).mean()),
    "boolean indexing": ("standin", lambda own, x: x[x > 0].mean()),
    "masked assignment": ("standin", lambda own, x: x.clone().index_put_((x > 9,), x.sum()).mean()),
    "nonzero": ("standin", lambda own, x: (x > 0).nonzero().float().mean()),
    "unique": ("standin", lambda own, x: x.unique().mean()),
    "masked_select": ("standin", lambda own, x: x.masked_select(x > 0).mean()),
    "host tensor in a loss": ("standin", lambda own, x: (x * torch.ones(4, 3)).mean()),
    "host tensor sent in the update": (
        "standin",
        lambda own, x: torch.from_numpy(np.ones(1, np.float32)).to("standin").sum(),
    ),
    "host generator": (
        "standin",
        lambda own, x: torch.rand(1, device="standin", generator=torch.Generator()).sum(),
    ),
    "wait": ("standin", lambda own, x: _wait()),
    "equal": ("standin", lambda own, x: float(torch.equal(x, x + 1))),
    "count of Python": ("cpu", lambda own, x: 1.0 / own.count),
    "random numbers of numpy": ("cpu", lambda own, x: float(own.hidden.random())),
    "seed from a count": ("cpu", _global_seed),
    "output kept by reference": ("cpu", _keep),
    "state made anew": ("cpu", lambda own, x: _assign(own, "memory", own.memory + x.sum())),
    "generator that nobody knows": ("cpu", lambda own, x: torch.rand(1, generator=_HIDDEN).sum()),
    "rate replaced": ("cpu", lambda own, x: _assign(own, "rate", own.rate * 0.5)),
}


def refused_or_waited_for(fault: Callable[[Learner, Tensor], Any] | None) -> list[str]:
    """What the stand-in says of eager and captured updates."""
    learner = Learner(fault, "standin")
    engine = choose_engine(learner, "cudagraph")
    batches = [torch.randn(4, 3).to("standin") for _ in range(3)]
    said: list[str] = []
    for update in (learner.update, engine.update):
        with stand_in.counted() as counts:
            try:
                for batch in batches:
                    update(batch)
            except (RuntimeError, CaptureError) as error:
                said.append(str(error))
            said += [str(each) for each in counts.read_backs]
    return said


def reported(fault: Callable[[Learner, Tensor], Any] | None) -> list[str]:
    """What the self-check says of four captured updates."""
    said: list[str] = []
    with capturing_on_the_cpu():
        learner = Learner(fault, "cpu")
        engine = replace(choose_engine(learner, "cudagraph"), checked_at=(0, 1, 2, 3))
        checked = CheckedUpdate(learner, engine, said.append)
        for _ in range(4):
            checked(torch.randn(4, 3))
    return said


def _run(fault: Callable[[Learner, Tensor], Any] | None, device: str) -> list[str]:
    return reported(fault) if device == "cpu" else refused_or_waited_for(fault)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    device, fault = FAULTS[name]
    assert _run(fault, device) != []


@pytest.mark.parametrize("device", ["cpu", "standin"])
def test_an_update_without_faults_is_not_complained_of(device: str) -> None:
    assert _run(None, device) == []


@pytest.mark.parametrize(
    ("overload", "draw"),
    [
        ("Tensor_Tensor", lambda own, x: torch.normal(x, x.exp()).mean()),
        ("float_Tensor", lambda own, x: torch.normal(0.0, x.exp()).mean()),
        ("Tensor_Tensor", lambda own, x: Normal(x, x.exp(), validate_args=False).sample().mean()),
    ],
)
def test_an_operator_that_waits_inside_is_named_with_its_line(
    overload: str, draw: Callable[[Learner, Tensor], Any]
) -> None:
    """Its kernel reads whether all deviations are positive; no operator shows that it does.

    The capture failed then, which names neither the operator nor the line.
    """
    said: list[str] = []
    with capturing_on_the_cpu():
        learner = Learner(draw, "cpu")
        CheckedUpdate(learner, choose_engine(learner, "cudagraph"), said.append)(torch.ones(4, 3))
    assert len(said) == 1
    assert f"aten::normal.{overload} waits for the device inside" in said[0]
    assert "test_planted_faults.py" in said[0]


def test_draws_that_do_not_wait_are_captured() -> None:
    """Beside those: of a mean, a scaled unit normal, a Categorical; their checks do not wait."""

    def draw(own: Learner, x: Tensor) -> Any:
        torch.distributions.Categorical(logits=x, validate_args=False).sample()
        return (torch.normal(x, 1.0) + torch.randn_like(x) * x.exp()).mean() * 0.0 + 1.0

    assert reported(draw) == []


def test_the_message_names_the_algorithm_the_operator_and_the_line() -> None:
    learner, said = Learner(FAULTS["item"][1], "standin"), []
    checked = CheckedUpdate(learner, choose_engine(learner, "cudagraph"), said.append)
    eager = copy.deepcopy(learner.policy.state_dict())
    checked(torch.ones(4, 3).to("standin"))
    assert len(said) == 1
    assert "cannot capture Learner: aten::_local_scalar_dense reads a number back" in said[0]
    assert "test_planted_faults.py" in said[0]
    assert "goes on in eager mode" in said[0]
    assert any(
        bool((eager[name] != value).any()) for name, value in learner.policy.state_dict().items()
    )
