"""The transformer core: acting with kept keys and values, and a whole sequence at once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from redline.errors import ConfigError
from redline.models import TransformerCore


def randomized(core: TransformerCore) -> TransformerCore:
    """The core with biases that are not zero, and layers that are far from the identity."""
    with torch.no_grad():
        for name, parameter in core.named_parameters():
            if parameter.dim() == 1 or name.endswith("distance_bias"):
                parameter.normal_(0.0, 0.5)
            if "_out.weight" in name:
                parameter.mul_(10)
    return core


def stepped(
    core: TransformerCore, x: Tensor, state: dict[str, Tensor], reset: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step at a time, with zeros at resets, as a collector does it."""
    outputs = []
    for row, ended in zip(x, reset, strict=True):
        state = {
            name: part.masked_fill(ended.view(-1, *[1] * (part.dim() - 1)), 0.0)
            for name, part in state.items()
        }
        y, state = core.step(row, state)
        outputs.append(y)
    return torch.stack(outputs), state


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 9),
    batch=st.integers(1, 3),
    window=st.integers(2, 6),
    layers=st.integers(1, 3),
    steps_before=st.integers(0, 7),
    data=st.data(),
)
def test_a_sequence_equals_stepping_wherever_episodes_end(
    seed: int, length: int, batch: int, window: int, layers: int, steps_before: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Outputs, and the state to go on from; the state before comes from steps of acting."""
    torch.manual_seed(seed)
    core = randomized(TransformerCore(3, 4, window=window, layers=layers, heads=2))
    flags = st.lists(st.booleans(), min_size=length * batch, max_size=length * batch)
    reset = torch.tensor(data.draw(flags)).view(length, batch)
    with torch.no_grad():
        before = torch.randn(steps_before, batch, 3)
        start = core.initial_state(batch)
        for row in before:
            _, start = core.step(row, start)
        x = torch.randn(length, batch, 3)
        y, state = core.sequence(x, start, reset)
        expected, expected_state = stepped(core, x, start, reset)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    for name, part in expected_state.items():
        torch.testing.assert_close(state[name], part, rtol=1e-4, atol=1e-5)


def test_a_long_sequence_is_cut_into_parts_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs and gradients are those of one pass, also where a window spans a cut."""
    torch.manual_seed(0)
    core = randomized(TransformerCore(3, 8, window=5, layers=2, heads=2))
    x, reset = torch.randn(11, 2, 3, requires_grad=True), torch.rand(11, 2) < 0.2
    whole, state = core.sequence(x, core.initial_state(2), reset)
    (gradient,) = torch.autograd.grad(whole.square().sum(), x)
    monkeypatch.setattr("redline.models.transformer._ROWS_AT_ONCE", 3)
    parts, parts_state = core.sequence(x, core.initial_state(2), reset)
    (parts_gradient,) = torch.autograd.grad(parts.square().sum(), x)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts_gradient, gradient, rtol=1e-4, atol=1e-5)
    for name, part in state.items():
        torch.testing.assert_close(parts_state[name], part, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("window", "layers"), [(2, 1), (4, 1), (3, 2), (4, 3)])
def test_a_step_sees_its_window_and_nothing_older(window: int, layers: int) -> None:
    """layers * (window - 1) + 1 inputs: the gradient on each is not zero, on all others it is."""
    torch.manual_seed(0)
    core = randomized(TransformerCore(3, 4, window=window, layers=layers, heads=2))
    x = torch.randn(14, 1, 3, requires_grad=True)
    reset = torch.zeros(14, 1, dtype=torch.bool)
    y, _ = core.sequence(x, core.initial_state(1), reset)
    seen = layers * (window - 1) + 1
    (gradient,) = torch.autograd.grad(y[-1].square().sum(), x)
    reached = gradient.abs().sum(dim=(1, 2)) > 0
    assert reached.tolist() == [False] * (14 - seen) + [True] * seen

    changed = x.detach().clone()
    changed[: 14 - seen] = torch.randn_like(changed[: 14 - seen])
    with torch.no_grad():
        _, state = stepped(core, changed[:-1], core.initial_state(1), reset[:-1])
        again, _ = core.step(changed[-1], state)
    torch.testing.assert_close(again, y[-1].detach(), rtol=1e-4, atol=1e-5)


def test_nothing_flows_across_a_reset() -> None:
    """Neither values, also where they are NaN, nor gradients reach steps after the reset."""
    core = randomized(TransformerCore(2, 4, window=8, layers=2, heads=2))
    x = torch.randn(5, 1, 2, requires_grad=True)
    reset = torch.tensor([False, False, True, False, False]).unsqueeze(1)
    y, _ = core.sequence(x, core.initial_state(1), reset)
    (gradient,) = torch.autograd.grad(y[2:].square().sum(), x)
    assert not gradient[:2].any()
    assert gradient[2:].abs().min() > 0

    spoiled = x.detach().clone()
    spoiled[:2] = torch.nan
    after, state = core.sequence(spoiled, core.initial_state(1), reset)
    torch.testing.assert_close(after[2:], y[2:])
    assert after[:2].isnan().all()
    assert all(part.isfinite().all() for part in state.values())


def test_an_infinite_step_is_seen_in_its_own_episode() -> None:
    """Values that are not finite count as 0 in the sum, which must not make them harmless."""
    core = randomized(TransformerCore(2, 4, window=4, layers=1, heads=2))
    x = torch.randn(4, 1, 2)
    x[1] = torch.inf
    y, _ = core.sequence(x, core.initial_state(1), torch.zeros(4, 1, dtype=torch.bool))
    assert y[0].isfinite().all()
    assert not y[1:].isfinite().any()


def test_attention_by_hand() -> None:
    """One layer, one head, D = 2; all norms, projections and perceptron made trivial.

    The inputs (1, -1) and (-1, 1) are their own normalized forms. With keys, queries and
    values equal to them, times 1 / sqrt(2) the scores of step 1 are -2 / sqrt(2) on step 0
    plus its bias of log 3 at distance 1, and 2 / sqrt(2) on itself.
    """
    core = TransformerCore(2, 2, window=2, layers=1, heads=1)
    (layer,) = core.layers
    with torch.no_grad():
        core.embedding.weight.copy_(torch.eye(2))
        layer.projection.weight.copy_(torch.cat([torch.eye(2)] * 3))  # type: ignore[operator]
        layer.attention_out.weight.copy_(torch.eye(2))  # type: ignore[operator]
        layer.hidden_out.weight.zero_()  # type: ignore[operator]
        layer.distance_bias.copy_(torch.tensor([[0.0, math.log(3.0)]]))  # type: ignore[operator]
    core.norm = nn.Identity()  # type: ignore[assignment]
    x = torch.tensor([[[1.0, -1.0]], [[-1.0, 1.0]]])
    y, _ = core.sequence(x, core.initial_state(1), torch.zeros(2, 1, dtype=torch.bool))
    past, self_ = 3.0 * math.exp(-math.sqrt(2.0)), math.exp(math.sqrt(2.0))
    share = past / (past + self_)
    attended = share * 1.0 - (1.0 - share) * 1.0  # first component: 1 in the past, -1 now
    torch.testing.assert_close(y[0, 0], torch.tensor([2.0, -2.0]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        y[1, 0], torch.tensor([-1.0 + attended, 1.0 - attended]), rtol=1e-4, atol=1e-4
    )


def test_the_state_is_batch_first_and_zero() -> None:
    state = TransformerCore(3, 8, window=5, layers=2).initial_state(7)
    assert {name: tuple(part.shape) for name, part in state.items()} == {
        "keys": (7, 2, 4, 8),
        "values": (7, 2, 4, 8),
        "filled": (7, 4),
    }
    assert not any(part.any() for part in state.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 1}, "core_window=1"),
        ({"heads": 3}, "core_heads=3 does not divide core_size=8"),
        ({"layers": 0}, "0 layers"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TransformerCore(3, 8, **options)
