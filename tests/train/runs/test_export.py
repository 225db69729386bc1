"""An exported module acts like the original, for any batch size."""

import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import redline
from redline.errors import ConfigError, MissingExtraError, UnknownNameError
from redline.train.runs.export import export_policy


class Network(nn.Module):
    """Nested input, a picture in uint8, a recurrent state, an integer action."""

    input_names = ("obs.camera", "obs.x", "hidden")
    output_names = ("action", "new_hidden")

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Linear(3, 4)
        self.picture = nn.Conv2d(1, 2, 3)
        self.dropout = nn.Dropout(0.5)
        self.core = nn.GRUCell(6, 5)

    def forward(self, obs: dict[str, Tensor], hidden: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.picture(obs["camera"].float() / 255).mean((-2, -1))
        features = self.dropout(torch.cat([torch.tanh(self.vector(obs["x"])), seen], dim=-1))
        hidden = self.core(features, hidden)
        return hidden.argmax(-1), hidden


def inputs(batch_size: int) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(batch_size)
    camera = torch.randint(0, 256, (batch_size, 1, 6, 6), generator=generator).to(torch.uint8)
    x = torch.randn(batch_size, 3, generator=generator)
    return {"camera": camera, "x": x}, torch.randn(batch_size, 5, generator=generator)


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network()


def check(network: Network, run: Any) -> None:
    network.eval()
    for batch_size in (1, 2, 7):
        obs, hidden = inputs(batch_size)
        action, state = network(obs, hidden)
        got_action, got_state = run(obs, hidden)
        np.testing.assert_array_equal(np.asarray(got_action), action.numpy())
        np.testing.assert_allclose(
            np.asarray(got_state), state.detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_onnx_acts_alike_for_any_batch_size(
    network: Network, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    out = export_policy(network, inputs(2), tmp_path / "new" / "policy.onnx")
    session = runtime.InferenceSession(out)
    assert [each.name for each in session.get_inputs()] == list(Network.input_names)
    assert [each.name for each in session.get_outputs()] == list(Network.output_names)
    assert session.get_inputs()[0].shape == ["batch", 1, 6, 6]

    def run(obs: dict[str, Tensor], hidden: Tensor) -> list[Any]:
        fed = {"obs.camera": obs["camera"], "obs.x": obs["x"], "hidden": hidden}
        return session.run(None, {name: leaf.numpy() for name, leaf in fed.items()})

    assert network.training, "the module given is left as it was"
    check(network, run)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["policy.onnx"]
    assert capfd.readouterr().err == ""
    assert logging.getLogger("torch.onnx._internal.exporter._registration").level == 0


@pytest.mark.parametrize("name", ["policy.pt2", "policy"])
def test_torch_program_acts_alike_for_any_batch_size(
    network: Network, tmp_path: Path, name: str
) -> None:
    out = export_policy(network, inputs(3), tmp_path / name, format="torch")
    program: Any = torch.export.load(str(out)) if name.endswith(".pt2") else None
    if program is None:
        with open(out, "rb") as file:
            program = torch.export.load(file)
    check(network, lambda *given: [part.detach() for part in program.module()(*given)])


def test_names_may_be_given(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    out = tmp_path / "policy.onnx"
    example = (torch.zeros(2, 3),)
    export_policy(nn.Linear(3, 2), example, out, input_names=["obs"], output_names=["action"])
    session = runtime.InferenceSession(out)
    assert session.get_inputs()[0].name == "obs"
    assert session.get_outputs()[0].name == "action"


class Branching(nn.Module):
    def forward(self, obs: Tensor) -> Tensor:
        return obs if obs.sum() > 0 else -obs


class OneSize(nn.Module):
    def forward(self, obs: Tensor) -> Tensor:
        return obs + torch.ones(4, 1)


@pytest.mark.parametrize("module", [Branching(), OneSize()])
def test_what_cannot_be_traced_is_refused(tmp_path: Path, module: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"cannot be exported as torch: .*own must be"):
        export_policy(module, (torch.ones(4, 1),), tmp_path / "policy", format="torch")
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(1, 1)
    out = tmp_path / "policy"
    with pytest.raises(UnknownNameError, match=r"'tflite'.*onnx, torch"):
        export_policy(linear, (torch.ones(2, 1),), out, format="tflite")
    with pytest.raises(ConfigError, match="batch size of 2 or more"):
        export_policy(linear, (torch.ones(1, 1),), out, format="torch")
    with pytest.raises(ConfigError, match=r"must be a tensor \[N"):
        export_policy(linear, (torch.tensor(1.0),), out, format="torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'redline\[onnx\]'"):
        export_policy(linear, (torch.ones(2, 1),), out)


class StartsElsewhere(gymnasium.Env[Any, Any]):
    """Numbers that begin at `start`; no step looks at the action."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._steps += 1
        return self.observation_space.sample(), 0.0, self._steps % 10 == 0, False, {}


DISCRETE = (spaces.Discrete(4, start=2), spaces.Discrete(3, start=5))
NESTED = (
    spaces.Dict(d=spaces.Discrete(4, start=2), m=spaces.MultiDiscrete([3, 4], start=[1, -2])),
    spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3], start=[4, 7]))),
)


def trained(native: tuple[Any, Any], out: Path, **settings: Any) -> Any:
    """A run whose policy is far from even, so that its actions follow the observation."""
    run = redline.train(
        "ppo", env=lambda: StartsElsewhere(*native), out=out, preset="default",
        total_env_steps=64, num_envs=2, rollout_length=32, num_minibatches=1, hidden_sizes=(8,),
        learning_rate=0.3, quiet=True, tensorboard=False, **settings,
    )  # fmt: skip
    return run, torch.export.load(run.export(out / "p.pt2", format="torch")).module()


def test_numbers_begin_where_the_spaces_say(tmp_path: Path) -> None:
    """The file answered 0 to 2 where the actions are 5 to 7, and took 0 to 3 for 2 to 5."""
    run, program = trained(DISCRETE, tmp_path)
    policy = run.policy()
    own = np.arange(2, 6)
    counted = policy.act(torch.arange(4), {}).action.numpy()
    got = program(torch.from_numpy(own)).numpy()
    np.testing.assert_array_equal(got, counted + 5)
    np.testing.assert_array_equal(got, policy.predict(own)[0])


def test_numbers_of_nested_spaces_begin_where_these_say(tmp_path: Path) -> None:
    run, program = trained(NESTED, tmp_path)
    policy = run.policy()
    own = {"d": np.array([2, 5, 3]), "m": np.array([[1, -2], [3, 1], [2, 0]])}
    carried = {"d": torch.tensor([0, 3, 1]), "m": torch.tensor([[0, 0], [2, 3], [1, 2]])}
    counted = policy.act(carried, {}).action
    got = program({name: torch.from_numpy(leaf) for name, leaf in own.items()})
    np.testing.assert_array_equal(got["0"], counted["0"] + 5)
    np.testing.assert_array_equal(got["1"], counted["1"] + torch.tensor([4, 7]))
    for part, wanted in zip(got.values(), policy.predict(own)[0], strict=True):
        np.testing.assert_array_equal(part, wanted)


def test_numbers_beside_the_action_before_begin_where_the_space_says(tmp_path: Path) -> None:
    run, program = trained(DISCRETE, tmp_path, core="gru", core_size=4, observe_previous=True)
    policy = run.policy()
    previous = {"previous_action": torch.zeros(4, 3), "previous_reward": torch.zeros(4, 1)}
    counted = policy.act({"observed": torch.arange(4), **previous}, policy.initial_state(4))
    got, _ = program({"observed": torch.arange(2, 6), **previous}, torch.zeros(4, 4))
    np.testing.assert_array_equal(got, counted.action + 5)
    np.testing.assert_array_equal(got, policy.predict(np.arange(2, 6))[0])


def test_numbers_beside_a_skill_begin_where_the_space_says(tmp_path: Path) -> None:
    """DIAYN puts the observation beside the skill."""
    native = DISCRETE[0], spaces.Box(-1, 1, (2,))
    run = redline.train(
        "diayn", env=lambda: StartsElsewhere(*native), out=tmp_path / "run", quiet=True,
        total_env_steps=64, learning_starts=16, batch_size=8, hidden_sizes=(8,), tensorboard=False,
    )  # fmt: skip
    program = torch.export.load(run.export(tmp_path / "p.pt2", format="torch")).module()
    inner: Any = run.policy()
    skill = torch.zeros(4, dtype=torch.int64)
    counted = inner.policy.act({"observation": torch.arange(4), "skill": skill}, {}).action
    got = program({"observation": torch.arange(2, 6), "skill": skill})
    wanted = inner.env_action(counted.detach().numpy())
    np.testing.assert_allclose(got.detach().numpy(), wanted, atol=1e-5)


def test_onnx_numbers_begin_where_the_spaces_say(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    run, program = trained(DISCRETE, tmp_path)
    session = runtime.InferenceSession(str(run.export(tmp_path / "p.onnx")))
    own = np.arange(2, 6)
    got = session.run(["action"], {"obs": own})[0]
    np.testing.assert_array_equal(got, program(torch.from_numpy(own)))
