"""Recurrent cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from redline.errors import ConfigError, UnknownNameError
from redline.models import GRUCore, LSTMCore, RecurrentCore, make_core


def randomized(core: RecurrentCore) -> RecurrentCore:
    """The core with biases that are not zero."""
    for parameter in core.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return core


def test_lstm_step_equals_torch() -> None:
    """torch orders the gates i, f, g, o; here they are i, f, o, g."""
    core = randomized(LSTMCore(3, 5))
    reference = nn.LSTMCell(3, 5)
    order = torch.cat([torch.arange(0, 10), torch.arange(15, 20), torch.arange(10, 15)])
    with torch.no_grad():
        reference.weight_ih.copy_(core.input_weight[order])
        reference.weight_hh.copy_(core.hidden_weight[order])
        reference.bias_ih.copy_(core.bias[order])
        reference.bias_hh.zero_()
    x, hidden, cell = torch.randn(4, 3), torch.randn(4, 5), torch.randn(4, 5)
    y, state = core.step(x, {"hidden": hidden, "cell": cell})
    expected_hidden, expected_cell = reference(x, (hidden, cell))
    torch.testing.assert_close(y, expected_hidden)
    torch.testing.assert_close(state["hidden"], expected_hidden)
    torch.testing.assert_close(state["cell"], expected_cell)


def test_gru_step_equals_torch() -> None:
    core = randomized(GRUCore(3, 5))
    assert isinstance(core, GRUCore)
    reference = nn.GRUCell(3, 5)
    with torch.no_grad():
        reference.weight_ih.copy_(core.input_weight)
        reference.weight_hh.copy_(core.hidden_weight)
        reference.bias_ih.copy_(core.bias)
        reference.bias_hh.zero_()
        reference.bias_hh[10:].copy_(core.candidate_bias)
    x, hidden = torch.randn(4, 3), torch.randn(4, 5)
    y, state = core.step(x, {"hidden": hidden})
    torch.testing.assert_close(y, reference(x, hidden))
    assert state["hidden"] is y


def stepped(
    core: RecurrentCore, x: Tensor, state: dict[str, Tensor], reset: Tensor
) -> list[Tensor]:
    """One step at a time, one environment at a time, with fresh states at resets."""
    columns = []
    for b in range(x.shape[1]):
        own = {name: part[b : b + 1] for name, part in state.items()}
        outputs = []
        for t in range(x.shape[0]):
            if reset[t, b]:
                own = core.initial_state(1)
            y, own = core.step(x[t, b : b + 1], own)
            outputs.append(y)
        columns.append(torch.cat(outputs))
    return [torch.stack(columns, dim=1), *own.values()]


@pytest.mark.parametrize("name", ["lstm", "gru"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), length=st.integers(1, 6), batch=st.integers(1, 4))
def test_sequence_equals_stepping_with_resets(
    name: str, seed: int, length: int, batch: int
) -> None:
    torch.manual_seed(seed)
    core = randomized(make_core(name, 3, 4))
    x = torch.randn(length, batch, 3)
    state = {part: torch.randn(batch, 4) for part in core.state_names}
    reset = torch.rand(length, batch) < 0.3
    y, last = core.sequence(x, state, reset)
    expected, *expected_state = stepped(core, x, state, reset)
    torch.testing.assert_close(y, expected)
    for part, own in zip(last.values(), expected_state, strict=True):
        torch.testing.assert_close(part[-1:], own)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_nothing_flows_across_a_reset(name: str) -> None:
    """Elsewhere the previous episode stayed visible to the next one (salina, rlpyt).

    Neither values, also where they are NaN, nor gradients reach steps after the reset.
    """
    core = make_core(name, 2, 3)
    x = torch.randn(4, 1, 2, requires_grad=True)
    reset = torch.tensor([False, False, True, False]).unsqueeze(1)
    y, _ = core.sequence(x, core.initial_state(1), reset)
    (gradient,) = torch.autograd.grad(y[2:].sum(), x)
    assert not gradient[:2].any()
    assert gradient[2:].abs().min() > 0

    spoiled = x.detach().clone()
    spoiled[:2] = torch.nan
    after, _ = core.sequence(spoiled, core.initial_state(1), reset)
    assert torch.equal(after[2:], y[2:])


def test_initial_weights_are_orthogonal_in_each_gate() -> None:
    core = LSTMCore(7, 4)
    for gate in core.hidden_weight.detach().chunk(4):
        torch.testing.assert_close(gate @ gate.t(), torch.eye(4), atol=1e-5, rtol=0)
    assert not core.bias.detach().any()


def test_state_is_batch_first_and_zero() -> None:
    state = LSTMCore(2, 3).initial_state(5)
    assert {name: tuple(part.shape) for name, part in state.items()} == {
        "hidden": (5, 3),
        "cell": (5, 3),
    }
    assert not any(np.any(part.numpy()) for part in state.values())


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'lstm'"):
        make_core("lstmm", 2, 3)
    with pytest.raises(ConfigError, match="size 0"):
        make_core("gru", 2, 0)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_states_are_those_of_a_sequence_at_every_row(name: str) -> None:
    """The output is the first part; a sequence cut at any row ends in that row's state."""
    core = randomized(make_core(name, 3, 4))
    x, reset = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    reset[2, 1] = True
    start = {key: torch.randn_like(leaf) for key, leaf in core.initial_state(2).items()}
    states = core.states(x, start, reset)
    outputs, _ = core.sequence(x, start, reset)
    assert torch.equal(states[core.state_names[0]], outputs)
    for rows in range(1, 6):
        _, last = core.sequence(x[:rows], start, reset[:rows])
        for key in core.state_names:
            torch.testing.assert_close(states[key][rows - 1], last[key])
