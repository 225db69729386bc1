"""R2D1: recurrent replay distributed DQN, on one machine.

Kapturowski et al. 2019 (R2D2), "Recurrent Experience Replay in Distributed Reinforcement
Learning", ICLR. Reads top to bottom: `mixed_priority`, `R2D1.update`, `R2D1.target`.

| symbol | shape | meaning |
|---|---|---|
| T' | | burn_in + sequence_length + n_step, rows of a sequence |
| L | | sequence_length, rows that are learned from: burn_in .. burn_in + L - 1 |
| R, D | [L, N] | `reward` and `discount` of each row's n-step window of k rows |
| s' | [L, N, ...] | `next_obs`, the true successor of the window |
| h | | value rescaling, `returns.rescale`; the identity if switched off |

    target = h(R + D h^-1(Q_target(s', argmax_a Q(s', a))))                 (eqs. 1 and 2)

Both networks start from the stored state and run through the burn-in without gradient, with
the resets that acting had. To value s' a network needs the state after the window's last
row, t + k - 1, and takes one step more from there with s' as input. In the middle of an
episode this is the very state and value that the unrolled sequence has at row t + k; at a
truncation, where the true last observation is no row, it is the only way; where the episode
terminated D is 0. So one rule serves all rows, with fixed shapes.

Departs from the paper: actors are the environments of one collector; the loss is the mean over
the learned rows, where the paper's is their sum over time. Adam's epsilon and the gradient's
bound are therefore the paper's 1e-3 and 40 divided by L, which makes the same steps of any
length of sequence. The previous action and reward come with the observations
(`--observe-previous`, on unless switched off).

Cost: one optimizer step per batch; two unrolls of T' - 1 rows. `update` never waits for the
device.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos import presets as named
from redline.algos.algorithm import OffPolicyAlgorithm, clip_gradients, saved_count
from redline.algos.config import (
    OnlyIf,
    OnlyWith,
    require_fraction,
    require_not_negative,
    require_positive,
)
from redline.algos.optimizers import Adam
from redline.algos.q_learning import (
    Exploration,
    QLearningConfig,
    TargetNetwork,
    huber_loss,
    initial_priorities,
    make_q_policy,
)
from redline.data import NestedTensor, Rollout, SequenceBatch, map_leaves, masked_mean
from redline.errors import ConfigError
from redline.models.q_heads import QHead, ScalarHead
from redline.models.recurrent import RecurrentCore
from redline.policies.policy import State
from redline.policies.q_policy import ActionValues, QPolicy, at_action
from redline.returns import rescale, unrescale


@dataclass(frozen=True, slots=True, kw_only=True)
class R2D1Config(QLearningConfig):
    """Hyperparameters of R2D1.

    The defaults are for one machine: short sequences, which a run of a few hundred thousand
    env_steps learns from often enough. The preset `atari` has the lengths and learning rate of
    R2D2 (Kapturowski et al. 2019, table 2); its other settings are for one machine, too.

    Raises:
        ConfigError: if a value is out of range, or two contradict each other.
    """

    only_with: ClassVar[OnlyWith] = {"priority_eta": (OnlyIf("prioritized", (True,)),)}

    num_envs: int = 16
    """B, environments stepped in parallel."""
    rollout_length: int = 20
    """T, env_steps per environment per iteration; a divisor of state_interval."""
    batch_size: int = 32
    """Sequences per update. A smaller batch makes more updates: per env_step there are
    replay_ratio / (batch_size * sequence_length)."""
    gamma: float = 0.997
    """Discount per env_step, in [0, 1]."""
    n_step: int = 5
    """Rewards summed before bootstrapping."""
    replay_size: int = 200_000
    """Transitions kept, over all environments; the oldest make room."""
    replay_ratio: float = 16.0
    """Learned rows consumed by updates per env_step collected: updates per iteration =
    replay_ratio * T * B / (batch_size * sequence_length). What is left over is carried on."""
    prioritized: bool = True
    """Whether sequences are drawn by their priority."""
    priority_alpha: float = 0.9
    """Exponent of the priorities; 0 is uniform."""
    priority_beta: float = 0.6
    """Exponent of the importance weights at the start; it rises to 1 at total_env_steps."""
    priority_eta: float = 0.9
    """Priority of a sequence = eta * greatest + (1 - eta) * mean TD error of its rows."""
    sequence_length: int = 20
    """Rows of a sequence that are learned from."""
    burn_in: int = 10
    """Rows before those, which only warm the recurrent state up."""
    state_interval: int = 20
    """Rows from one sequence's start to the next one's, where the state is stored; a multiple
    of rollout_length."""
    value_rescaling: bool = True
    """Whether Q is learned of h(return), h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which
    takes the place of clipped rewards."""
    double_q: bool = True
    """Whether the online network chooses the action that the target network values
    (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Whether Q is a state value plus advantages less their mean over actions
    (Wang et al. 2016)."""
    huber_threshold: float | None = None
    """TD errors beyond it count linearly. None: squared error."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "linear"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float = 5e-5
    """Adam's epsilon. R2D2's is 1e-3 for a loss that is summed over a sequence; of the mean it is
    1e-3 / sequence_length."""
    max_grad_norm: float = 2.0
    """Gradients are scaled down to this L2 norm; 0 switches clipping off. R2D2's is 40 for a loss
    that is summed over a sequence; of the mean it is 40 / sequence_length."""
    target_update_interval: int = 100
    """Optimizer steps between updates of the target network."""
    epsilon_schedule: Literal["linear", "ape-x"] = "ape-x"
    """linear: one epsilon for all environments, falling with global env_steps.
    ape-x: a constant one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""

    def __post_init__(self) -> None:
        QLearningConfig.__post_init__(self)
        require_positive(sequence_length=self.sequence_length, state_interval=self.state_interval)
        require_not_negative(burn_in=self.burn_in)
        require_fraction(priority_eta=self.priority_eta)
        if self.state_interval % self.rollout_length:
            raise ConfigError(
                f"state_interval={self.state_interval} is no multiple of rollout_length="
                f"{self.rollout_length}, and a rollout carries the recurrent state of its first "
                f"row only. Use {self.rollout_length} or a multiple."
            )
        needed = (self.burn_in + self.sequence_length + self.n_step) * self.num_envs
        if self.replay_size < needed:
            raise ConfigError(
                f"replay_size={self.replay_size} holds no whole sequence: (burn_in + "
                f"sequence_length + n_step) * num_envs = {needed}. Use a larger replay."
            )

    @property
    def samples_per_update(self) -> int:
        """Learned rows that one update consumes, of which the replay ratio speaks."""
        return self.batch_size * self.sequence_length

    def sequence_settings(self) -> dict[str, Any]:
        """Replay gives whole sequences, with the recurrent state at their beginning."""
        return {
            "sequence_length": self.sequence_length,
            "burn_in": self.burn_in,
            "state_interval": self.state_interval,
            "priority_eta": self.priority_eta,
        }


def mixed_priority(error: Tensor, valid: Tensor, eta: float) -> Tensor:
    """Priority of each sequence from the TD errors of its rows.

    Kapturowski et al. 2019, section 2.3: eta * max_t |delta_t| + (1 - eta) * mean_t |delta_t|.

    Args:
        error: [L, N] delta.
        valid: [L, N] bool, rows that count.
        eta: in [0, 1].

    Returns:
        [N]; 0 where no row counts.
    """
    size = torch.where(valid, error.abs(), torch.zeros_like(error))
    mean = size.sum(0) / valid.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1.0 - eta) * mean


class RecurrentValues:
    """A recurrent Q-network over rows of sequences.

    Args:
        policy: the network.
        core: its core.
    """

    def __init__(self, policy: QPolicy, core: RecurrentCore) -> None:
        self._policy, self._core = policy, core

    def unroll(self, steps: TensorDict, state: State) -> State:
        """The states after each row, name -> [R, N, H].

        Args:
            steps: [R, N] with obs and reset.
            state: name -> [N, H] before the first row.
        """
        features = self._policy.features(_side_by_side(steps["obs"]))
        return self._core.states(
            features.unflatten(0, tuple(steps.batch_size)), state, steps["reset"]
        )

    def values(self, states: State, obs: NestedTensor) -> ActionValues:
        """[R * N] values of observations [R, N, ...] that `states` [R, N, H] have taken in."""
        output = states[self._core.state_names[0]].flatten(0, 1)
        return self._policy.values(output, _side_by_side(obs))

    def successor_values(self, states: State, last: Tensor, next_obs: NestedTensor) -> ActionValues:
        """Values one step on from the state after row `last`.

        Args:
            states: name -> [R, N, H] after each row.
            last: [L, N] int64, rows of `states`.
            next_obs: [L, N, ...] what is seen after them.

        Returns:
            The values [L * N].
        """
        state = {
            name: leaf.gather(0, last.unsqueeze(-1).expand(-1, -1, leaf.shape[-1])).flatten(0, 1)
            for name, leaf in states.items()
        }
        flat = _side_by_side(next_obs)
        output, _ = self._core.step(self._policy.features(flat), state)
        return self._policy.values(output, flat)


class R2D1(OffPolicyAlgorithm):
    """A recurrent Q-learner of discrete actions.

    Args:
        policy: the online network, which acts and learns; recurrent.
        target_policy: one of the same make; it becomes equal to the online one.
        config: hyperparameters.
        seed: taken for the sake of one signature; nothing here is drawn at random.

    Raises:
        ConfigError: if the policy is not recurrent.
    """

    name = "r2d1"
    Config = R2D1Config
    defaults = named.R2D1_DEFAULTS
    presets = named.R2D1
    metric_names = ("loss", "q_mean", "target_mean", "grad_norm")

    def __init__(
        self, policy: QPolicy, target_policy: QPolicy, config: R2D1Config, *, seed: int
    ) -> None:
        if policy.core is None or target_policy.core is None:
            raise ConfigError(
                "R2D1 learns from sequences, and its policy has no recurrent core. Give one with "
                "core='lstm' or 'gru', or use dqn."
            )
        self.policy, self.target_policy, self.config = policy, target_policy, config
        self._online_net = RecurrentValues(policy, policy.core)
        self._target_net = RecurrentValues(target_policy, target_policy.core)
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = Adam(self.parameters, config.learning_rate, eps=config.adam_eps)
        self._target = TargetNetwork(
            policy, target_policy, config.target_update_interval, config.tau
        )
        self._exploration = Exploration(config, self.device)
        self._highest_priority = torch.ones((), device=self.device)
        self.updates = 0

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: R2D1Config,
        **network: Any,
    ) -> QPolicy:
        """The network of these settings, drawn from torch's global generator, on the CPU.

        Args:
            observation_space: of one environment.
            action_space: of one environment: Discrete.
            config: hyperparameters, which choose the head.
            network: settings as for `algos.q_learning.make_q_policy`; core="none" is "lstm".

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting does not apply.
        """

        def make_head(features: int, num_actions: int) -> QHead:
            return ScalarHead(
                features,
                num_actions,
                dueling=config.dueling,
                hidden_sizes=config.head_hidden_sizes,
            )

        if network.get("normalize_obs"):
            raise ConfigError(
                "normalize_obs=True is not for r2d1: the recurrent states in replay were made "
                "with the statistics of their time. Leave it out."
            )
        if network.get("core", "none") == "none":
            network["core"] = "lstm"
        return make_q_policy(observation_space, action_space, make_head, **network)

    @classmethod
    def caution(cls, config: Any, changed: frozenset[str], *, clips_reward: bool) -> str | None:
        """Where rewards are clipped and rescaled, and nobody asked for the former."""
        if not (clips_reward and config.value_rescaling) or "clip_reward" in changed:
            return None
        return (
            "rewards are clipped to their sign, and value_rescaling=True, which is to take the "
            "place of that, squeezes their returns again. Give clip_reward=False or "
            "value_rescaling=False."
        )

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: R2D1Config,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> R2D1:
        """R2D1 on a new network; arguments and errors as for `make_policy`."""
        policy = cls.make_policy(observation_space, action_space, config, **network).to(device)
        return cls(policy, copy.deepcopy(policy), config, seed=seed)

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """`epsilon` [B] of the next collection."""
        return {"epsilon": self._exploration(env_steps, total_env_steps, num_envs)}

    def initial_priorities(self, rollout: Rollout) -> Tensor:
        """[T, B] one-step TD errors of what was just collected, which replay mixes."""
        return initial_priorities(
            rollout["reward"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            rollout["q_taken"],
            rollout["q_max"],
            gamma=self.config.gamma,
            highest=self._highest_priority,
            rescaled=self.config.value_rescaling,
            for_sequences=True,
        )

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedule."""
        self.optimizer.set_learning_rate(values.get("learning_rate", self.config.learning_rate))

    def update(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """One optimizer step.

        Args:
            batch: N sequences of T' rows.

        Returns:
            name -> [] metrics, and "priority" [N] of the sequences.
        """
        return self.learn(batch, self.begin_update())

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; whether the target network follows."""
        self.updates += 1
        return (self._target.is_due(self.updates),)

    def learn(self, batch: SequenceBatch, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update; nothing here depends on counts."""
        return self.step(batch, *turns)

    def step(self, batch: SequenceBatch, moves: bool) -> dict[str, Tensor]:
        """The update; nothing here depends on counts.

        Args:
            batch: as for `update`.
            moves: whether the target network follows.
        """
        learned = self._learned(batch)
        states = self._learned_states(batch)
        values = self._online_net.values(states, learned["obs"])
        chosen = at_action(values.q, learned["action"].flatten()).view_as(learned["reward"])
        target = self.target(batch, {name: leaf.detach() for name, leaf in states.items()})
        valid, error = learned["valid"], target - chosen
        losses = batch.weight * huber_loss(error, self.config.huber_threshold)
        loss = masked_mean(losses, valid)
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        if moves:
            self._target.move()
        priority = mixed_priority(error.detach(), valid, self.config.priority_eta)
        torch.maximum(self._highest_priority, priority.amax(), out=self._highest_priority)
        return {
            "loss": loss.detach(),
            "q_mean": masked_mean(chosen.detach(), valid),
            "target_mean": masked_mean(target, valid),
            "grad_norm": grad_norm,
            "priority": priority,
        }

    @torch.no_grad()
    def target(self, batch: SequenceBatch, online_states: State | None = None) -> Tensor:
        """[L, N] what the learned rows should be worth.

        Args:
            batch: N sequences of T' rows.
            online_states: the online network's states after each learned row, name ->
                [L, N, H], if they are known; None computes them.
        """
        learned = self._learned(batch)
        next_obs = learned["next_obs"]
        # The window of row t ends at row t + num_steps - 1; counted from the first learned row.
        last = torch.arange(len(learned), device=self.device).unsqueeze(-1)
        last = last + (learned["num_steps"] - 1).clamp(min=0)
        values = self._target_net.successor_values(self._target_states(batch), last, next_obs)
        best = values.best()
        if self.config.double_q:
            states = self._with_tail(batch, online_states or self._learned_states(batch))
            best = self._online_net.successor_values(states, last, next_obs).best()
        value = at_action(values.q, best).view_as(learned["reward"])
        if not self.config.value_rescaling:
            return learned["reward"] + learned["discount"] * value
        return rescale(learned["reward"] + learned["discount"] * unrescale(value))

    def _learned(self, batch: SequenceBatch) -> TensorDict:
        """The L rows to learn from."""
        first = self.config.burn_in
        return batch.steps[first : first + self.config.sequence_length]

    def _learned_states(self, batch: SequenceBatch) -> State:
        """The online states after the learned rows, name -> [L, N, H]; burn-in has no gradient."""
        first, state = self.config.burn_in, batch.initial_state
        if first:
            with torch.no_grad():
                state = _at(self._online_net.unroll(batch.steps[:first], state), -1)
        return self._online_net.unroll(self._learned(batch), state)

    def _with_tail(self, batch: SequenceBatch, states: State) -> State:
        """Those states and the ones after the n - 1 rows beyond, name -> [L + n - 1, N, H]."""
        if self.config.n_step == 1:
            return states
        first = self.config.burn_in + self.config.sequence_length
        rows = batch.steps[first : first + self.config.n_step - 1]
        tail = self._online_net.unroll(rows, _at(states, -1))
        return {name: torch.cat([leaf, tail[name]]) for name, leaf in states.items()}

    def _target_states(self, batch: SequenceBatch) -> State:
        """The target network's states from the first learned row on, name -> [L + n - 1, N, H]."""
        states = self._target_net.unroll(batch.steps[:-1], batch.initial_state)
        return {name: leaf[self.config.burn_in :] for name, leaf in states.items()}

    def optimizer_steps(self) -> int:
        """Optimizer steps taken."""
        return self.updates

    def state_dict(self) -> dict[str, Any]:
        """Both networks, optimizer state and counts."""
        return {
            "policy": self.policy.state_dict(),
            "target": self.target_policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "highest_priority": self._highest_priority,
            "optimizer_steps": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.target_policy.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._highest_priority.copy_(state["highest_priority"])
        self.updates = saved_count(state, "optimizer_steps")


def _at(states: State, row: int) -> State:
    return {name: leaf[row] for name, leaf in states.items()}


def _side_by_side(tree: NestedTensor) -> Any:
    """[rows, N, ...] leaves as [rows * N, ...]."""
    return map_leaves(lambda leaf: leaf.flatten(0, 1), tree)
