"""R2D1 on a linear core, where every target can be worked by hand."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos.q_learning import initial_priorities
from redline.algos.r2d1 import R2D1, R2D1Config, mixed_priority
from redline.algos.registry import declaration
from redline.data import Rollout, SequenceBatch
from redline.envs import EnvSettings
from redline.errors import ConfigError
from redline.models import LSTMCore, RecurrentCore, ScalarHead
from redline.policies import QPolicy
from redline.train.presets import preset_config
from redline.train.runs.building import said_at_start
from tests.algos.q_networks import Identity, set_weight

OBS = spaces.Box(-10.0, 10.0, (2,), np.float32)
ACTIONS = spaces.Discrete(2)


class LinearCore(RecurrentCore):
    """h' = x + decay * h."""

    state_names = ("hidden",)
    num_gates = 1

    def _cell(self, projected: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (projected + parts[0] @ self.hidden_weight.t(),)


def linear_policy(decay: float) -> QPolicy:
    """Q(s) is the state h itself."""
    core, head = LinearCore(2, 2), ScalarHead(2, 2)
    with torch.no_grad():
        core.input_weight.copy_(torch.eye(2))
        core.hidden_weight.copy_(decay * torch.eye(2))
    set_weight(head, torch.eye(2))
    return QPolicy(OBS, ACTIONS, torso=Identity(), head=head, core=core)


def config(**settings: Any) -> R2D1Config:
    """gamma = 1/2, windows of two, one row of burn-in and two to learn from."""
    small: dict[str, Any] = {
        "gamma": 0.5,
        "n_step": 2,
        "burn_in": 1,
        "sequence_length": 2,
        "rollout_length": 1,
        "state_interval": 1,
        "dueling": False,
        "value_rescaling": False,
    }
    return R2D1Config(**{**small, **settings})


def hand_algorithm(**settings: Any) -> R2D1:
    """Online decay 1/2, target decay 1."""
    target = linear_policy(1.0)
    algorithm = R2D1(linear_policy(0.5), target, config(**settings), seed=0)
    with torch.no_grad():
        assert target.core is not None
        target.core.hidden_weight.copy_(torch.eye(2))
    return algorithm


def hand_batch() -> SequenceBatch:
    """Three sequences of five rows, from a stored state of (2, 0).

    All see (1, 0), (2, 0), (0, 4), (0, 0), (2, 2), with rewards ., 1, 2, 4 and actions 0.
    Rows 1 and 2 are learned from.

    A goes on: R = 1 + 2/2 = 2 and 2 + 4/2 = 4, D = 1/4, successors rows 3 and 4.
    B terminates at row 1: R = 1, D = 0; row 2 begins an episode: R = 4, D = 1/4.
    C is truncated at row 2 with the true last observation (8, 0):
      row 1: R = 1 + 2/2 = 2, D = 1/4 after two rows; row 2: R = 2, D = 1/2 after one row.
    """
    obs = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 4.0], [0.0, 0.0], [2.0, 2.0]])
    obs = obs.unsqueeze(1).repeat(1, 3, 1)
    next_obs = torch.zeros(5, 3, 2)
    next_obs[1:3, :2] = obs[3:5, :2]
    next_obs[1, 1] = torch.tensor([9.0, 9.0])  # the terminal observation counts for nothing
    next_obs[1:3, 2] = torch.tensor([8.0, 0.0])
    reset = torch.zeros(5, 3, dtype=torch.bool)
    reset[2, 1] = reset[3, 2] = True
    terminated, truncated = torch.zeros_like(reset), torch.zeros_like(reset)
    terminated[1, 1] = truncated[2, 2] = True
    rows = {
        "reward": [[0.0] * 3, [2.0, 1.0, 2.0], [4.0, 4.0, 2.0], [0.0] * 3, [0.0] * 3],
        "discount": [[0.0] * 3, [0.25, 0.0, 0.25], [0.25, 0.25, 0.5], [0.0] * 3, [0.0] * 3],
        "num_steps": [[1] * 3, [2, 1, 2], [2, 2, 1], [1] * 3, [1] * 3],
    }
    steps = {
        "obs": obs,
        "next_obs": next_obs,
        "action": torch.zeros(5, 3, dtype=torch.int64),
        "reset": reset,
        "terminated": terminated,
        "truncated": truncated,
        "valid": torch.ones(5, 3, dtype=torch.bool),
        **{name: torch.tensor(values) for name, values in rows.items()},
    }
    return SequenceBatch(
        steps=TensorDict(steps, batch_size=[5, 3]),
        initial_state={"hidden": torch.tensor([[2.0, 0.0]]).repeat(3, 1)},
        index=torch.arange(3),
        weight=torch.ones(3),
    )


# Target network, h' = x + h: the state after rows 0 .. 4 is
#   A: (3, 0), (5, 0), (5, 4), (5, 4), (7, 6)
#   B: (3, 0), (5, 0), (0, 4), (0, 4), (2, 6)
#   C: as A up to row 2; then one step more with (8, 0): (13, 4)
# Online network, h' = x + h / 2, after rows 0 .. 4:
#   A: (2, 0), (3, 0), (1.5, 4), (0.75, 2), (2.375, 3)
#   B: (2, 0), (3, 0), (0, 4), (0, 2), (2, 3)
#   C: as A up to row 2; then (8.75, 2)
# The double choice is action 1 for A and B, 0 for C; the target network's own is 0, 1, 0.
BOOTSTRAP_DOUBLE = [[4.0, 0.0, 13.0], [6.0, 6.0, 13.0]]
BOOTSTRAP_SINGLE = [[5.0, 0.0, 13.0], [7.0, 6.0, 13.0]]
TARGET_DOUBLE = [[3.0, 1.0, 5.25], [5.5, 5.5, 8.5]]
TARGET_SINGLE = [[3.25, 1.0, 5.25], [5.75, 5.5, 8.5]]


@pytest.mark.parametrize("double_q", [False, True])
def test_target_by_hand(double_q: bool) -> None:
    """R + D Q'(s', a*): 2 + 4/4, 1, 2 + 13/4; 4 + 6/4, 4 + 6/4, 2 + 13/2."""
    algorithm = hand_algorithm(double_q=double_q)
    assert algorithm.target(hand_batch()).tolist() == (TARGET_DOUBLE if double_q else TARGET_SINGLE)


def test_rescaled_target_by_hand() -> None:
    """h(R + D h^-1(Q')), with the inverse in the paper's own closed form."""

    def squash(x: float) -> float:
        return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x

    def unsquash(y: float) -> float:
        root = math.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3))
        return math.copysign(((root - 1) / 2e-3) ** 2 - 1, y)

    batch = hand_batch()
    target = hand_algorithm(value_rescaling=True).target(batch)
    for t, n in itertools.product(range(2), range(3)):
        reward = batch.steps["reward"][t + 1, n].item()
        discount = batch.steps["discount"][t + 1, n].item()
        expected = squash(reward + discount * unsquash(BOOTSTRAP_DOUBLE[t][n]))
        assert target[t, n].item() == pytest.approx(expected, rel=1e-5)


def test_loss_and_priorities_by_hand() -> None:
    """Q(s, a) = 3, 1.5 for A and C; 3, 0 for B. Errors 0, 4; -2, 5.5; 2.25, 7.

    Half the squares, weights 1, 1, 2, six rows:
    (0 + 16 + 4 + 30.25 + 2 (5.0625 + 49)) / 12 = 158.375 / 12.
    Priorities 0.9 max + 0.1 mean: 3.6 + 0.2, 4.95 + 0.375, 6.3 + 0.4625.
    """
    batch = hand_batch()
    batch.weight[2] = 2.0
    metrics = hand_algorithm().update(batch)
    assert metrics["loss"].item() == pytest.approx(158.375 / 12)
    assert metrics["priority"].tolist() == pytest.approx([3.8, 5.325, 6.7625])
    assert metrics["q_mean"].item() == pytest.approx(12.0 / 6)
    assert metrics["target_mean"].item() == pytest.approx(28.75 / 6)


def test_rows_that_are_not_valid_count_for_nothing() -> None:
    """Row 2 of B is a filler: errors 0, 4; -2; 2.25, 7 and B's priority is 2."""
    batch = hand_batch()
    batch.steps["valid"][2, 1] = False
    for name in ("reward", "discount", "num_steps", "obs", "next_obs"):
        batch.steps[name][2, 1] = 0
    metrics = hand_algorithm().update(batch)
    assert metrics["loss"].item() == pytest.approx((16 + 4 + 5.0625 + 49) / 10)
    assert metrics["priority"].tolist() == pytest.approx([3.8, 2.0, 6.7625])


def test_the_stored_state_is_used() -> None:
    """From (0, 0) the target network's A is (1, 0), (3, 0), (3, 4), (3, 4), (5, 6): still
    4 and 6 for action 1; from (0, 8) they are 12 and 14 and the targets 5 and 7.5."""
    batch = hand_batch()
    batch.initial_state["hidden"][0] = torch.tensor([0.0, 8.0])
    assert hand_algorithm().target(batch)[:, 0].tolist() == [5.0, 7.5]


def test_gradient_comes_from_the_learned_rows_only() -> None:
    """None through burn-in (nor the stored state), none from the rows to bootstrap from."""
    batch = hand_batch()
    obs = batch.steps["obs"].clone().requires_grad_()
    state = batch.initial_state["hidden"].requires_grad_()
    batch.steps["obs"] = obs
    hand_algorithm().update(batch)
    assert state.grad is None
    assert obs.grad is not None
    size = obs.grad.abs().sum((1, 2))
    assert (size > 0).tolist() == [False, True, True, False, False]


def test_without_burn_in_the_stored_state_is_where_learning_begins() -> None:
    """Row 0 is learned from: online state (1 + 2/2, 0), so Q(s, 0) = 2."""
    batch = hand_batch()
    batch.steps = batch.steps[1:]
    batch.initial_state["hidden"] = torch.tensor([[3.0, 0.0]]).repeat(3, 1)
    target = hand_algorithm(burn_in=0).target(batch)
    assert target.tolist() == TARGET_DOUBLE


def test_mixed_priority_by_hand() -> None:
    """eta = 3/4 of |-4| and |2|: 3 + 3/4; one valid row of 1: 1; none: 0."""
    error = torch.tensor([[-4.0, 1.0, 9.0], [2.0, 9.0, 9.0]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    assert mixed_priority(error, valid, 0.75).tolist() == [3.75, 1.0, 0.0]


def random_batch(seed: int, settings: R2D1Config, policy: QPolicy, count: int = 4) -> SequenceBatch:
    """Sequences in mid-episode: each successor is the row n_step further on."""
    generator = torch.Generator().manual_seed(seed)
    rows = settings.burn_in + settings.sequence_length + settings.n_step
    shape = (rows, count)
    obs = torch.randn(*shape, 2, generator=generator)
    ends = torch.zeros(settings.n_step, count, 2)
    steps = {
        "obs": obs,
        "next_obs": torch.cat([obs[settings.n_step :], ends]),
        "action": torch.randint(0, 2, shape, generator=generator),
        "reward": torch.randn(shape, generator=generator),
        "discount": torch.full(shape, settings.gamma**settings.n_step),
        "num_steps": torch.full(shape, settings.n_step),
        "valid": torch.ones(shape, dtype=torch.bool),
        "reset": torch.zeros(shape, dtype=torch.bool),
    }
    state = policy.initial_state(count)
    return SequenceBatch(
        steps=TensorDict(steps, batch_size=list(shape)),
        initial_state={
            name: torch.randn(leaf.shape, generator=generator) for name, leaf in state.items()
        },
        index=torch.arange(count),
        weight=torch.rand(count, generator=generator),
    )


def make(settings: R2D1Config, **network: Any) -> R2D1:
    torch.manual_seed(3)
    return R2D1.make(OBS, ACTIONS, settings, seed=0, hidden_sizes=(6,), core_size=5, **network)


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_in_mid_episode_successors_are_the_sequences_own_rows(core: str, n_step: int) -> None:
    """Reference: run each network over all T' rows once and read row t + n."""
    settings = config(n_step=n_step, burn_in=2, sequence_length=3, double_q=True)
    algorithm = make(settings, core=core)
    with torch.no_grad():
        for parameter in algorithm.target_policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = random_batch(0, settings, algorithm.policy)

    def values(policy: QPolicy) -> Tensor:
        assert policy.core is not None
        features = policy.features(batch.steps["obs"].flatten(0, 1))
        outputs, _ = policy.core.sequence(
            features.unflatten(0, (-1, 4)), batch.initial_state, batch.steps["reset"]
        )
        return policy.values(outputs.flatten(0, 1), {}).q.unflatten(0, (-1, 4))

    rows = slice(2 + n_step, 5 + n_step)
    best = values(algorithm.policy)[rows].argmax(-1, keepdim=True)
    bootstrap = values(algorithm.target_policy)[rows].gather(-1, best).squeeze(-1)
    expected = batch.steps["reward"][2:5] + 0.5**n_step * bootstrap
    torch.testing.assert_close(algorithm.target(batch), expected.detach())


@pytest.mark.parametrize(
    ("double_q", "dueling", "rescaling"), list(itertools.product((False, True), repeat=3))
)
def test_every_combination_trains(double_q: bool, dueling: bool, rescaling: bool) -> None:
    settings = config(double_q=double_q, dueling=dueling, value_rescaling=rescaling, n_step=3)
    algorithm = make(settings, core="gru")
    before = [p.detach().clone() for p in algorithm.policy.parameters()]
    metrics = algorithm.update(random_batch(0, settings, algorithm.policy))
    priority = metrics.pop("priority")
    assert set(metrics) == set(R2D1.metric_names)
    assert all(value.shape == () and value.isfinite() for value in metrics.values())
    assert priority.shape == (4,)
    after = list(algorithm.policy.parameters())
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_nested_masked_observations_train_and_forbidden_actions_are_not_bootstrapped() -> None:
    """With action 0 forbidden everywhere the targets are those of action 1: C gets 4 for 13."""
    space = spaces.Dict({"x": OBS, "action_mask": spaces.MultiBinary(2)})
    algorithm = hand_algorithm()
    for policy in (algorithm.policy, algorithm.target_policy):
        policy.observation_space, policy.has_mask = space, True
    batch = hand_batch()
    mask = torch.tensor([0, 1], dtype=torch.int8).expand(5, 3, 2)
    for name in ("obs", "next_obs"):
        nested = {"x": batch.steps[name], "action_mask": mask}
        batch.steps[name] = TensorDict(nested, batch_size=[5, 3])
    assert algorithm.target(batch).tolist() == [[3.0, 1.0, 3.0], [5.5, 5.5, 4.0]]
    assert algorithm.update(batch)["loss"].isfinite()


def test_continuing_from_a_saved_state_is_exact() -> None:
    settings = config(dueling=True, value_rescaling=True, target_update_interval=2)
    first, second = make(settings), make(settings)
    for seed in range(3):
        first.update(random_batch(seed, settings, first.policy))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for seed in range(3, 6):
        batch = random_batch(seed, settings, first.policy)
        one, two = first.update(batch), second.update(batch)
        for name, value in one.items():
            assert torch.equal(value, two[name]), name
    fresh = R2D1.make_policy(OBS, ACTIONS, settings, hidden_sizes=(6,), core_size=5)
    fresh.load_state_dict(second.state_dict()["policy"])
    assert second.optimizer_steps() == 6


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e4])
def test_a_step_of_the_defaults_is_that_of_the_papers_summed_loss(size: float) -> None:
    """Kapturowski et al. 2019: the loss is summed over time, Adam has eps 1e-3, the norm is at
    most 40. The mean over L rows has gradients L times smaller: with both divided by L the step
    is the same, small gradients and clipped ones included.

    Reference: torch's Adam on the same gradients times L.
    """
    defaults = R2D1Config()
    length = defaults.sequence_length
    settings = R2D1Config(rollout_length=1, state_interval=1, burn_in=0, n_step=1)
    algorithm = make(settings)
    batch = random_batch(0, settings, algorithm.policy)
    batch.weight = batch.weight * size
    twin = copy.deepcopy(algorithm.policy)
    reference = torch.optim.Adam(twin.parameters(), defaults.learning_rate, eps=1e-3)
    algorithm.update(batch)
    fresh = R2D1(copy.deepcopy(twin), copy.deepcopy(twin), settings, seed=0)
    gradients = unclipped_gradients(fresh, batch)
    for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
        parameter.grad = gradient * length
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 40.0)
    reference.step()
    for mine, theirs in zip(algorithm.policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def unclipped_gradients(algorithm: R2D1, batch: SequenceBatch) -> list[Tensor]:
    """Of the loss, before anything is done with them."""
    seen: list[Tensor] = []

    class Recorder:
        def zero_grad(self) -> None:
            assert all(parameter.grad is None for parameter in algorithm.parameters)

        def step(self) -> None:
            seen.extend(p.grad.clone() for p in algorithm.parameters if p.grad is not None)

    algorithm.config = dataclasses.replace(algorithm.config, max_grad_norm=0.0)
    algorithm.optimizer = Recorder()
    algorithm.update(batch)
    return seen


def test_the_core_is_an_lstm_unless_another_is_named() -> None:
    assert isinstance(make(config(), core="none").policy.core, LSTMCore)
    assert make(config()).policy.is_recurrent
    policy = linear_policy(0.5)
    policy.core = None
    with pytest.raises(ConfigError, match="core"):
        R2D1(policy, linear_policy(0.5), config(), seed=0)


def test_samples_are_counted_in_learned_rows() -> None:
    assert config(batch_size=8, sequence_length=20).samples_per_update == 160


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_length": 3, "state_interval": 4}, "state_interval=4"),
        ({"replay_size": 79, "num_envs": 16}, "replay_size=79"),
        ({"burn_in": -1}, "burn_in"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"priority_eta": 1.5}, "priority_eta"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_initial_priorities_are_in_rescaled_units() -> None:
    """gamma = 1/2, h(3) = 1.003: row 0 has |h(1.5 + 3/2) - 0.5| = 0.503; the last row, whose
    successor is not known, gets the mean of the known ones, 0.503 too."""
    row = torch.zeros(2, 1)
    none = torch.zeros(2, 1, dtype=torch.bool)
    fields = {
        "reward": torch.tensor([[1.5], [0.0]]),
        "terminated": none,
        "truncated": none,
        "valid": ~none,
        "q_taken": row + 0.5,
        "q_max": row + 1.003,
    }
    rollout = Rollout(steps=TensorDict(fields, batch_size=[2, 1]), initial_state={}, last_obs={})
    priorities = hand_algorithm(value_rescaling=True).initial_priorities(rollout)
    assert priorities.flatten().tolist() == pytest.approx([0.503, 0.503], rel=1e-5)


def test_a_sequence_of_small_errors_ranks_below_one_of_large_ones() -> None:
    """Though the last row of each is not known and the highest priority so far is 5.

    Errors of environment 0 are 0.01, of environment 1 they are 2; replay mixes the rows.
    """

    none = torch.zeros(4, 2, dtype=torch.bool)
    priority = initial_priorities(
        reward=torch.tensor([[0.01, 2.0]] * 4),
        terminated=none,
        truncated=none,
        valid=~none,
        q_taken=torch.zeros(4, 2),
        q_max=torch.zeros(4, 2),
        gamma=0.9,
        highest=torch.tensor(5.0),
        for_sequences=True,
    )
    mixed = mixed_priority(priority, ~none, 0.9)
    assert mixed.tolist() == pytest.approx([0.01, 2.0])


def test_a_transformer_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="its whole window"):
        R2D1.make_policy(OBS, ACTIONS, config(), hidden_sizes=(6,), core="transformer")


def test_rewards_that_are_clipped_and_rescaled_are_spoken_of_at_the_start() -> None:
    """The presets of ALE clip rewards unless told otherwise; rescaling stands in its place."""
    none: frozenset[str] = frozenset()
    said = R2D1.caution(R2D1Config(), none, clips_reward=True)
    assert said is not None
    assert "Give clip_reward=False or value_rescaling=False." in said
    assert R2D1.caution(R2D1Config(), none, clips_reward=False) is None
    assert R2D1.caution(R2D1Config(), frozenset(["clip_reward"]), clips_reward=True) is None
    assert R2D1.caution(R2D1Config(value_rescaling=False), none, clips_reward=True) is None


def test_the_default_preset_on_ale_clips_and_rescales() -> None:
    """The preset "atari" turns clipping off, "default" leaves it as ALE's protocol has it."""
    for preset, warned in (("default", 1), ("atari", 0)):
        config = preset_config(declaration("r2d1"), "ALE/Pong-v5", preset)
        settings = EnvSettings(env="ALE/Pong-v5", clip_reward=config.run.clip_reward)
        with settings.make(1) as env:
            said = said_at_start(config, env, R2D1, frozenset())
        assert len(said) == warned
