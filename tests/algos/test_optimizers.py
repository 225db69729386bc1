"""The updates' Adam and RMSprop against those of `torch.optim`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from redline.algos.optimizers import Adam, RMSprop


def parameters(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)]


def random_grads(step: int) -> list[Tensor]:
    return [p.sin() for p in parameters(step + 1)]


def step_of_torch(
    optimizer: torch.optim.Optimizer, changed: list[Tensor], grads: list[Tensor]
) -> None:
    for p, g in zip(changed, grads, strict=True):
        p.grad = g
    optimizer.step()


def take_step(optimizer: Adam | RMSprop, grads: list[Tensor], **skip: Tensor) -> None:
    for parameter, gradient in zip(optimizer.parameters, grads, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step(**skip)


def test_first_step_by_hand() -> None:
    """The first step goes lr * g / (|g| + eps) against the gradient, whatever its size."""
    p = torch.tensor([1.0, 1.0])
    take_step(Adam([p], 0.5), [torch.tensor([3.0, -0.01])])
    torch.testing.assert_close(p, torch.tensor([0.5, 1.5]), rtol=1e-5, atol=1e-5)


def test_steps_and_step_sizes_are_those_of_torch() -> None:
    """Bit for bit."""
    ours, theirs = parameters(), [p.requires_grad_() for p in parameters()]
    adam, reference = (
        Adam(ours, 1e-2, eps=1e-5),
        torch.optim.Adam(theirs, 1e-2, eps=1e-5, fused=True),
    )
    for step in range(5):
        if step == 3:
            adam.set_learning_rate(3e-4)
            reference.param_groups[0]["lr"] = 3e-4
        grads = random_grads(step)
        take_step(adam, grads)
        step_of_torch(reference, theirs, grads)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_gradients_are_taken_from_the_parameters_that_have_one() -> None:
    ours, given = parameters(), parameters()
    adam = Adam([p.requires_grad_() for p in ours], 1e-2)
    grads = random_grads(0)
    ours[0].grad = grads[0]
    adam.step()
    take_step(Adam([given[0]], 1e-2), [grads[0]])
    assert torch.equal(ours[0], given[0])
    assert torch.equal(ours[1], given[1])
    adam.zero_grad()
    assert all(p.grad is None for p in ours)


def test_a_skipped_step_leaves_no_trace() -> None:
    """Two steps with a skipped one between them are two steps."""
    ours, wanted = parameters(), parameters()
    adam, reference = Adam(ours, 1e-2), Adam(wanted, 1e-2)
    for step, skip in ((0, 0.0), (1, 1.0), (2, 0.0)):
        take_step(adam, random_grads(step), skip=torch.tensor(skip))
        if not skip:
            take_step(reference, random_grads(step), skip=torch.tensor(0.0))
    assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))
    assert adam.state_dict()["0"]["step"].item() == 2.0


def test_state_goes_on_bit_for_bit_and_an_empty_one_is_a_fresh_start() -> None:
    ours = parameters()
    adam = Adam(ours, 1e-2)
    take_step(adam, random_grads(0))
    state = {k: {n: t.clone() for n, t in v.items()} for k, v in adam.state_dict().items()}
    copies = [p.clone() for p in ours]
    other = Adam(copies, 1e-2)
    take_step(other, random_grads(9))
    for p, q in zip(copies, ours, strict=True):
        p.copy_(q)
    other.load_state_dict(state)
    take_step(adam, random_grads(1))
    take_step(other, random_grads(1))
    assert all(torch.equal(a, b) for a, b in zip(ours, copies, strict=True))
    other.load_state_dict({})
    assert not any(t.any() for moments in other.state_dict().values() for t in moments.values())


def test_first_step_of_rmsprop_by_hand() -> None:
    """v = 0.1 g^2: a step of lr / (sqrt(0.1) + eps / |g|), with eps / |g| = 1/3 and 100."""
    p = torch.tensor([1.0, 1.0])
    take_step(RMSprop([p], 0.5, smoothing=0.9, eps=1.0), [torch.tensor([3.0, -0.01])])
    root = 0.1**0.5
    wanted = [1.0 - 0.5 / (root + 1.0 / 3.0), 1.0 + 0.5 / (root + 100.0)]
    torch.testing.assert_close(p, torch.tensor(wanted))


def test_steps_of_rmsprop_are_those_of_torch() -> None:
    ours, theirs = parameters(), [p.requires_grad_() for p in parameters()]
    rmsprop = RMSprop(ours, 1e-2, eps=1e-5)
    reference = torch.optim.RMSprop(theirs, 1e-2, alpha=0.99, eps=1e-5)
    for step in range(5):
        if step == 3:
            rmsprop.set_learning_rate(3e-4)
            reference.param_groups[0]["lr"] = 3e-4
        grads = random_grads(step)
        take_step(rmsprop, grads)
        step_of_torch(reference, theirs, grads)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-7)


def test_rmsprop_takes_the_gradients_there_are_and_goes_on_from_its_state() -> None:
    ours = [p.requires_grad_() for p in parameters()]
    rmsprop = RMSprop(ours, 1e-2)
    ours[1].grad = random_grads(0)[1]
    rmsprop.step()
    assert torch.equal(ours[0], parameters()[0])
    state = {k: {n: t.clone() for n, t in v.items()} for k, v in rmsprop.state_dict().items()}
    copies = [p.detach().clone() for p in ours]
    other = RMSprop(copies, 1e-2)
    other.load_state_dict(state)
    take_step(rmsprop, random_grads(1))
    take_step(other, random_grads(1))
    assert all(torch.equal(a, b) for a, b in zip(ours, copies, strict=True))
    other.load_state_dict({})
    assert not any(t.any() for moments in other.state_dict().values() for t in moments.values())


@pytest.mark.parametrize(("left", "taken"), [(Adam, RMSprop), (RMSprop, Adam)])
def test_another_optimizers_state_counts_as_empty(
    left: type[Adam | RMSprop], taken: type[Adam | RMSprop]
) -> None:
    one, other = left(parameters(), 1e-2), taken(parameters(), 1e-2)
    take_step(one, random_grads(0))
    take_step(other, random_grads(1))
    other.load_state_dict(one.state_dict())
    assert not any(t.any() for moments in other.state_dict().values() for t in moments.values())


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_state_of_torchs_optimizers_goes_on(name: str) -> None:
    """Checkpoints of A2C and REINFORCE once held such."""
    theirs = [p.requires_grad_() for p in parameters()]
    settings = {"lr": 1e-2, "eps": 1e-5}
    reference: torch.optim.Optimizer = (
        torch.optim.Adam(theirs, **settings, fused=True)
        if name == "adam"
        else torch.optim.RMSprop(theirs, **settings, alpha=0.99)
    )
    step_of_torch(reference, theirs, random_grads(0))
    ours = [p.detach().clone() for p in theirs]
    kind = Adam if name == "adam" else RMSprop
    optimizer = kind(ours, 1e-2, eps=1e-5)
    saved = reference.state_dict()["state"]
    optimizer.load_state_dict({str(index): moments for index, moments in saved.items()})
    take_step(optimizer, random_grads(1))
    step_of_torch(reference, theirs, random_grads(1))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-7)


def test_a_parameter_whose_gradients_begin_late_starts_as_torchs_does() -> None:
    """Each parameter counts its own steps: one count for all made late ones leap."""
    ours, theirs = ([p.requires_grad_() for p in parameters()] for _ in range(2))
    adam, reference = Adam(ours, 1e-2), torch.optim.Adam(theirs, 1e-2, fused=True)
    for step in range(4):
        for changed in (ours, theirs):
            grads = random_grads(step)
            changed[0].grad = grads[0]
            changed[1].grad = grads[1] if step >= 2 else None
        adam.step()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert [count.item() for count in adam.counts] == [4.0, 2.0]
