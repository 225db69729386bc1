"""A network or actor of one's own learns as eager autograd has it, with every engine."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import redline
import redline.train
from redline.algos.registry import find_algorithm
from redline.engines.engine import choose_engine
from redline.policies import SquashedGaussianActor
from tests.engines.learners import BOX, CHOICE, OBS, batch, differing, distance, parameters, says
from tests.engines.test_engine import COMPILING
from tests.engines.test_own_updates import OFF_POLICY_RUN, ON_POLICY_RUN

WIDTH = 4  # that of the observations: any layer can take the place of any other
# Observations need no gradient, and torch says so of every backward hook on a first layer.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

# -- networks ---------------------------------------------------------------------------------


class Residual(nn.Sequential):
    """A Sequential by type, and no sequence: each layer adds to what came before."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = x + torch.tanh(layer(x))
        return x


class Block(nn.Module):
    """A residual block within a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).relu()


class OnlyNamed(nn.Sequential):
    """A subclass that changes nothing."""


def first(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, WIDTH), *layers)


def tied() -> nn.Module:
    shared = nn.Linear(WIDTH, WIDTH)
    return first(nn.Tanh(), shared, nn.Tanh(), shared)


def tied_weights() -> nn.Module:
    one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    other.weight = one.weight
    return first(nn.Tanh(), one, nn.Tanh(), other)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: first(nn.Tanh()),
    "subclass": lambda: OnlyNamed(nn.Linear(4, WIDTH), nn.Tanh()),
    "residual sequential": lambda: first(Residual(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))),
    "residual blocks": lambda: first(Block(), Block()),
    "tied layers": tied,
    "tied weights": tied_weights,
    "dropout": lambda: first(nn.ReLU(), nn.Dropout(0.3)),
    "lazily built": lambda: nn.Sequential(nn.LazyLinear(WIDTH), nn.Tanh(), nn.LazyLinear(WIDTH)),
    "lazy layer alone": lambda: nn.LazyLinear(WIDTH),
    "elu": lambda: first(nn.ELU(0.5)),
    "layer norm": lambda: first(nn.LayerNorm(WIDTH), nn.GELU()),
    "no bias": lambda: nn.Sequential(nn.Linear(4, WIDTH, bias=False), nn.ReLU()),
    "negative slope": lambda: first(nn.LeakyReLU(0.2)),
}

# -- what is done to layers that are there ----------------------------------------------------


def own_forward(layer: Any) -> None:
    layer.forward = lambda x: nn.functional.linear(x, 2.0 * layer.weight, layer.bias)


def scaled_backward(layer: Any) -> None:
    layer.register_full_backward_hook(
        lambda _, given, __: tuple(2.0 * g for g in given if g is not None) or None
    )


def clipped_weight(layer: Any) -> None:
    layer.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


EDITS: dict[str, Callable[[Any], None]] = {
    "nothing": lambda layer: None,
    "frozen": lambda layer: layer.requires_grad_(False),
    "frozen bias": lambda layer: layer.bias.requires_grad_(False),
    "forward hook": lambda layer: layer.register_forward_hook(lambda *a: 1.5 * a[2]) and None,
    "forward pre-hook": lambda layer: (
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 0.1,)) and None
    ),
    "backward hook": scaled_backward,
    "gradient hook": clipped_weight,
    "spectral norm": lambda layer: parametrizations.spectral_norm(layer) and None,
    "weight norm": lambda layer: parametrizations.weight_norm(layer) and None,
    "own forward": own_forward,
}


def residual(body: Any) -> None:
    body.__class__ = Residual


def renamed(body: Any) -> None:
    body.__class__ = OnlyNamed


def tied_layer(body: Any) -> None:
    body[2] = body[0]


def tied_weight(body: Any) -> None:
    body[2].weight = body[0].weight


def with_dropout(body: Any) -> None:
    body[1] = nn.Dropout(0.3)


BODY_EDITS: dict[str, Callable[[Any], None]] = {
    "residual body": residual,
    "body of a subclass": renamed,
    "tied layers in the body": tied_layer,
    "tied weights in the body": tied_weight,
    "dropout in the body": with_dropout,
}
"""Of the dense layers that the library makes: Linear, activation, Linear, activation."""

# -- what an actor may do otherwise -----------------------------------------------------------


def own_method(owner: Any, name: str, change: Callable[[Any], Any], *, on_class: bool) -> None:
    """Override a method in a subclass, or on the object alone."""
    kind = type(owner)
    inherited = getattr(kind, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return change(inherited(self, *args, **kwargs))

    if on_class:
        owner.__class__ = type(f"My{kind.__name__}", (kind,), {name: method})
    else:
        setattr(owner, name, types.MethodType(method, owner))


ACTORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sac": ("sample", lambda found: (0.5 * found[0], 2.0 * found[1])),
    "td3": ("forward", lambda action: 0.5 * action),
    "ddpg": ("outputs", lambda outputs: outputs + 0.3),
    "dqn": ("evaluate", lambda values: values._replace(outputs=2.0 * values.outputs)),
    "ppo": ("evaluate_rollout", lambda e: e._replace(log_prob=0.5 * e.log_prob)),
    "a2c": ("evaluate_rollout", lambda e: e._replace(value=e.value + 1.0)),
}

# -- learners of these ------------------------------------------------------------------------

KINDS = tuple(ACTORS)


def build(
    algorithm: str, network: str | None, edit: str, place: int, actor: str, *, on_class: bool
) -> Any:
    """A learner with one's own network, a layer edited, and an actor's method overridden."""
    torch.manual_seed(0)
    kind: Any = find_algorithm(algorithm)
    sizes = {"num_envs": 4, "rollout_length": 8} if algorithm in ("ppo", "a2c") else {}
    if algorithm == "ppo":
        sizes |= {"num_epochs": 1, "num_minibatches": 2}
    settings: dict[str, Any] = {"hidden_sizes": (WIDTH, WIDTH)}
    if network is not None:
        settings["encoder"] = lambda space: NETWORKS[network]()
    config = kind.Config(**sizes)
    space = CHOICE if algorithm in ("dqn", "a2c") else BOX
    make_policy = kind.make_policy

    class Edited(kind):
        @classmethod
        def make_policy(cls, *args: Any, **kwargs: Any) -> Any:
            policy = make_policy(*args, **kwargs)
            layers = [m for m in policy.modules() if type(m) is nn.Linear]
            if edit in EDITS:
                EDITS[edit](layers[place % len(layers)])
            elif network is None:
                BODY_EDITS[edit](policy.torso[1])
            if actor == "own method":
                name, change = ACTORS[algorithm]
                own_method(policy, name, change, on_class=on_class)
            elif actor == "own act":
                own_method(policy, "act", lambda output: output, on_class=on_class)
            return policy

    learner = Edited.make(OBS, space, config, seed=0, **settings)
    # Of exactly the built-in type: nothing but its parts are one's own.
    learner.__class__ = kind
    return learner


def data_for(algorithm: str, learner: Any, seed: int) -> Any:
    return batch({"ppo": "ppo-box"}.get(algorithm, algorithm), learner, seed)


def follows_eager(case: tuple[Any, ...], mode: str, backend: str = "inductor") -> tuple[str, str]:
    """Two updates, by eager autograd and by the engine; the engine's name and reason."""
    algorithm, network, edit, place, actor, on_class = case
    eager, run = (
        build(algorithm, network, edit, place, actor, on_class=on_class) for _ in range(2)
    )
    engine = choose_engine(run, mode, backend=backend)
    assert engine.reason
    start = parameters(eager)
    for seed in range(2):
        rows = data_for(algorithm, eager, seed)
        torch.manual_seed(seed)
        wanted = eager.update(rows)
        torch.manual_seed(seed)
        metrics = engine.update(rows)
        assert wanted.keys() == metrics.keys()
    if engine.name == "eager":
        assert not differing(eager.state_dict(), run.state_dict())
    else:
        goal = parameters(eager)
        assert distance(parameters(run), goal) <= 0.01 * distance(start, goal) + 1e-6
    return engine.name, engine.reason


CASES = st.tuples(
    st.sampled_from(KINDS),
    st.none() | st.sampled_from(sorted(NETWORKS)),
    st.sampled_from(sorted(EDITS | BODY_EDITS)),
    st.integers(0, 3),
    st.sampled_from(("built-in", "own method", "own act")),
    st.booleans(),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(CASES, st.sampled_from(("cpu", "auto")))
def test_random_networks_and_actors_learn_as_eager_autograd_has_it(
    case: tuple[Any, ...], mode: str
) -> None:
    name, _ = follows_eager(case, mode)
    _, network, edit, _, actor, _ = case
    # A lazily built layer is a plain one from its first input on.
    known = (None, "plain", "elu", "no bias", "layer norm", "negative slope", "lazily built",
             "lazy layer alone")  # fmt: skip
    edited = edit in EDITS or network is None
    if network not in known or (edit != "nothing" and edited) or actor == "own method":
        assert name == "eager"


# Each compiles in seconds, whatever its size: every edit once, over the algorithms.
@pytest.mark.filterwarnings(*COMPILING)
@pytest.mark.parametrize(
    ("algorithm", "network", "edit", "actor"),
    [
        ("a2c", "residual sequential", "forward hook", "built-in"),
        ("a2c", "tied layers", "frozen", "own method"),
        ("dqn", "lazily built", "own forward", "built-in"),
        ("dqn", None, "spectral norm", "own method"),
        ("dqn", "dropout", "weight norm", "built-in"),
        ("a2c", None, "residual body", "built-in"),
    ],
)
def test_compiled_networks_of_ones_own_learn_as_eager_autograd_has_it(
    algorithm: str, network: str | None, edit: str, actor: str
) -> None:
    torch._dynamo.reset()
    name, _ = follows_eager((algorithm, network, edit, 0, actor, True), "compile", "aot_eager")
    assert name == "compile"


@pytest.mark.parametrize("algorithm", KINDS)
@pytest.mark.parametrize("hook", ["backward hook", "gradient hook"])
def test_hooks_on_gradients_are_not_compiled(algorithm: str, hook: str) -> None:
    """The compiler leaves out those of parameters, and fails on those of modules."""
    case = (algorithm, None, hook, 0, "built-in", True)
    name, reason = follows_eager(case, "compile", "aot_eager")
    assert name == "eager"
    assert f"has a {hook}, which torch.compile does not trace" in reason


# -- the four cases that another network than the one that acts had been learned in ----------


@pytest.mark.parametrize("mode", ["cpu", "auto"])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
@pytest.mark.parametrize(
    ("network", "edit", "actor", "named"),
    [
        (None, "residual body", "built-in", "Residual"),
        ("residual sequential", "nothing", "built-in", ""),
        (None, "tied layers in the body", "built-in", "torso"),
        (None, "tied weights in the body", "built-in", "torso"),
        (None, "forward hook", "built-in", "hook"),
        (None, "nothing", "own method", "My"),
        (None, "frozen", "built-in", "frozen"),
        (None, "spectral norm", "built-in", ""),
    ],
)
def test_fifty_updates_learn_what_eager_ones_do(
    algorithm: str, network: str | None, edit: str, actor: str, named: str, mode: str
) -> None:
    """The loss that is reported, too: it had fallen while the true one rose."""
    case = (algorithm, network, edit, 0, actor)
    eager, run = (build(*case, on_class=True) for _ in range(2))
    engine = choose_engine(run, mode)
    assert engine.name == "eager"
    assert says(engine.reason, named)
    for seed in range(50):
        rows = data_for(algorithm, eager, seed % 5)
        assert not differing(eager.update(rows), engine.update(rows))
    assert not differing(eager.state_dict(), run.state_dict())


@pytest.mark.parametrize("mode", ["eager", "cpu", "auto"])
@pytest.mark.parametrize("edit", ["frozen", "spectral norm", "forward hook"])
@pytest.mark.parametrize(
    ("algorithm", "options"), [("ppo", ON_POLICY_RUN), ("sac", OFF_POLICY_RUN)], ids=["ppo", "sac"]
)
def test_a_run_with_a_network_of_ones_own(
    algorithm: str, options: dict[str, Any], edit: str, mode: str, tmp_path: Path
) -> None:
    """Frozen and spectrally normalized layers had ended every run in a KeyError."""

    def network(space: Any) -> nn.Module:
        layers = nn.Sequential(nn.Linear(space.shape[0], WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        EDITS[edit](layers[0])
        return layers

    # The network takes the place of PPO's dense layers; SAC's critics have theirs behind it.
    options = {k: v for k, v in options.items() if algorithm == "sac" or k != "hidden_sizes"}
    run = redline.train(
        algorithm, network=network, out=tmp_path / "run", accelerate=mode, **options
    )
    assert run.exit_code == 0


def test_the_actors_of_this_file_are_of_the_library() -> None:
    learner = build("sac", None, "nothing", 0, "own method", on_class=True)
    assert type(learner.policy) is not SquashedGaussianActor
    assert isinstance(learner.policy, SquashedGaussianActor)
