"""Greedy policies for torch.export and ONNX."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.algos.dqn import DQN, DQNConfig
from redline.data import leaves
from redline.policies import make_policy
from redline.policies.export import GreedyPolicy
from tests.policies.rollouts import act_out, sampled

VECTOR = spaces.Box(-1, 1, (3,))
NESTED = spaces.Dict(
    action_mask=spaces.MultiBinary(3),
    camera=spaces.Box(0, 1, (2, 10, 10), np.uint8),
    item=spaces.Discrete(4, start=2),
    x=VECTOR,
)
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "discrete": (VECTOR, spaces.Discrete(3), {}),
    "clipped": (VECTOR, spaces.Box(-0.01, 0.01, (2,)), {"normalize_obs": True}),
    "squashed": (VECTOR, spaces.Box(-2, 5, (2,)), {"distribution": "squashed", "core": "lstm"}),
    "transformer": (VECTOR, spaces.Discrete(3), {"core": "transformer", "core_window": 4}),
    "image": (spaces.Box(0, 255, (4, 36, 36), np.uint8), spaces.Discrete(3), {}),
    "nested": (NESTED, spaces.Discrete(3), {"core": "gru", "normalize_obs": True}),
    "nested_action": (
        VECTOR,
        spaces.Dict(a=spaces.MultiDiscrete([2, 3]), b=spaces.MultiBinary(2)),
        {},
    ),
}


def trained(case: str) -> tuple[Any, Any]:
    """A policy whose actions and statistics are not the initial ones, and its space."""
    torch.manual_seed(0)
    space, action_space, options = CASES[case]
    policy = make_policy(space, action_space, core_size=8, **options)
    with torch.no_grad():
        policy.policy_head.weight.mul_(100)
    policy.update_normalizer(act_out(policy, space, 6, 3))
    return policy, space


def dynamic(tree: Any, batch: Any) -> Any:
    if isinstance(tree, dict):
        return {key: dynamic(sub, batch) for key, sub in tree.items()}
    return {0: batch}


def inputs_for(module: GreedyPolicy, space: Any, batch_size: int) -> tuple[Any, ...]:
    obs = sampled(space, np.random.default_rng(batch_size), batch_size)
    _, *state = module.example_inputs(batch_size)
    return (obs, *(torch.randn_like(part) for part in state))


def flat(outputs: Any) -> list[torch.Tensor]:
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    return [leaf for part in parts for _, leaf in leaves(part)]


@pytest.mark.parametrize("case", CASES)
def test_export_module_acts_like_the_policy(case: str) -> None:
    policy, space = trained(case)
    module = policy.export_module()
    obs, *parts = inputs_for(module, space, 4)
    state = dict(zip(policy.initial_state(1), parts, strict=True))
    expected = policy.act(obs, state)
    received = policy.env_action(expected.action)
    for got, wanted in zip(
        flat(module(obs, *parts)), [*flat(received), *expected.state.values()], strict=True
    ):
        torch.testing.assert_close(got, wanted)
    assert policy.training
    assert not module.policy.training


@pytest.mark.parametrize("case", CASES)
def test_torch_export_with_any_batch_size(case: str) -> None:
    policy, space = trained(case)
    module = policy.export_module()
    example = module.example_inputs(3)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        module, example, dynamic_shapes=tuple(dynamic(part, batch) for part in example)
    )
    for batch_size in (1, 5):
        inputs = inputs_for(module, space, batch_size)
        for got, wanted in zip(flat(program.module()(*inputs)), flat(module(*inputs)), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("values", ["none", "categorical", "quantile", "implicit"])
def test_torch_export_of_every_kind_of_values(values: str) -> None:
    """Implicit quantiles made the batch of the example the only one."""
    config = DQNConfig(value_distribution=values)
    policy = DQN.make(VECTOR, spaces.Discrete(3), config, seed=0, hidden_sizes=(8,)).policy
    module = policy.export_module()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        module, module.example_inputs(3), dynamic_shapes=({0: batch},)
    ).module()
    for batch_size in (1, 5):
        obs = torch.randn(batch_size, 3)
        assert torch.equal(program(obs), policy.act(obs, {}).action)


@pytest.mark.parametrize("case", ["squashed", "nested"])
def test_onnx_with_any_batch_size(case: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    policy, space = trained(case)
    module = policy.export_module()
    example = module.example_inputs(3)
    batch = torch.export.Dim("batch", min=1)
    path = tmp_path / "policy.onnx"
    with warnings.catch_warnings():
        # The exporter's own use of what torch and onnxscript deprecate.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            path,
            dynamo=True,
            dynamic_shapes=tuple(dynamic(part, batch) for part in example),
            input_names=list(module.input_names),
            output_names=list(module.output_names),
            verbose=False,
        )
    session = runtime.InferenceSession(path)
    assert [each.name for each in session.get_inputs()] == list(module.input_names)
    for batch_size in (1, 5):
        inputs = inputs_for(module, space, batch_size)
        fed = dict(zip(module.input_names, (t.numpy() for t in flat(inputs)), strict=True))
        results = session.run(list(module.output_names), fed)
        for got, wanted in zip(results, flat(module(*inputs)), strict=True):
            np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
