"""Proximal policy optimization (PPO) with the clipped surrogate.

Schulman et al. 2017, arXiv:1707.06347. Reads top to bottom: `PPOConfig`, `clipped_policy_loss`,
`value_loss`, `PPO.update`.

| symbol | shape | meaning |
|---|---|---|
| r | [N] | pi(a|s) / pi_old(a|s) |
| A | [N] | advantage from `returns.gae` |
| epsilon | | `clip_range` |

Data: a `Rollout` [T, B]. A feed-forward policy shuffles all T * B rows into equal
minibatches; a recurrent one shuffles environments and evaluates whole sequences with the
resets that acting had.

Departs from the paper: advantages are normalized per minibatch, gradients are clipped by
norm, and a limit on the KL divergence can stop an iteration's updates early.

Cost: num_epochs * num_minibatches optimizer steps per rollout. `update` never waits for
the device: metrics stay tensors until the logger reads them, and the early stop skips
optimizer steps on the device instead of leaving the loop.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from redline.algos import presets as named
from redline.algos.algorithm import (
    OnPolicyAlgorithm,
    clip_gradients,
    explained_variance,
    normalized,
    saved_count,
)
from redline.algos.config import (
    MOST_EPOCHS,
    OnlyIf,
    OnlyWith,
    require_at_most,
    require_fraction,
    require_noise_color,
    require_not_negative,
    require_positive,
    require_widths,
)
from redline.algos.optimizers import Adam
from redline.data import Rollout, masked_mean
from redline.errors import ConfigError
from redline.generator_states import set_torch_state
from redline.policies.policy import Policy
from redline.returns import gae


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Hyperparameters of PPO; symbols as in Schulman et al. 2017, arXiv:1707.06347.

    Raises:
        ConfigError: if a value is out of range, or a rollout does not split into equal
            minibatches.
    """

    only_with: ClassVar[OnlyWith] = {
        "clip_range_value": (OnlyIf("value_coef", never=(0.0,)),),
        "entropy_coef_schedule": (OnlyIf("entropy_coef", never=(0.0,)),),
        "noise_color": (OnlyIf("actions", ("Box",)),),
        "critic_hidden_sizes": (OnlyIf("layers", ("dense",)),),
    }

    num_envs: int = 8
    """B, environments stepped in parallel."""
    rollout_length: int = 256
    """T, env_steps per environment per iteration."""
    num_epochs: int = 10
    """Passes over each rollout."""
    num_minibatches: int | None = None
    """Equal parts of a rollout (of its environments, for a recurrent policy).
    None: as many as leave at least 64 samples to each; for a recurrent policy at most 4."""
    gamma: float = 0.99
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation, in [0, 1]."""
    clip_range: float = 0.2
    """Epsilon: the ratio is clipped to [1 - epsilon, 1 + epsilon]."""
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    """How clip_range changes with env_steps; linear reaches 0 at total_env_steps."""
    clip_range_value: float | None = None
    """Largest change of the value prediction that the value loss rewards; None: unclipped."""
    normalize_advantage: bool = True
    """Whether advantages get mean 0 and standard deviation 1 in each minibatch."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"] = "constant"
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_kl: float | None = None
    """Skip the rest of an iteration's steps once the KL estimate passes this, in nats.
    None: never."""
    scale_reward: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return, and
    then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float = 0.0
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the value's hidden layers, where it shares none with the policy.
    None: hidden_sizes."""

    def __post_init__(self) -> None:
        require_positive(
            num_envs=self.num_envs,
            rollout_length=self.rollout_length,
            num_epochs=self.num_epochs,
            num_minibatches=1 if self.num_minibatches is None else self.num_minibatches,
            clip_range=self.clip_range,
            learning_rate=self.learning_rate,
            adam_eps=self.adam_eps,
        )
        require_at_most(num_epochs=(self.num_epochs, MOST_EPOCHS))
        require_fraction(gamma=self.gamma, gae_lambda=self.gae_lambda)
        require_not_negative(
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            max_grad_norm=self.max_grad_norm,
        )
        require_noise_color(self.noise_color)
        require_widths(critic_hidden_sizes=self.critic_hidden_sizes)
        if self.target_kl is not None:
            require_positive(target_kl=self.target_kl)
        if self.clip_range_value is not None:
            require_positive(clip_range_value=self.clip_range_value)
        samples = self.num_envs * self.rollout_length
        if self.num_minibatches is not None and samples % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches={self.num_minibatches} does not divide the rollout: num_envs * "
                f"rollout_length = {self.num_envs} * {self.rollout_length} = {samples} samples, "
                f"{samples % self.num_minibatches} left over. Use a divisor of {samples}."
            )

    def minibatches(self, *, recurrent: bool) -> int:
        """Equal parts of a rollout: num_minibatches, or what None stands for.

        Args:
            recurrent: whether the policy learns from whole sequences, so that environments are
                divided rather than samples.
        """
        if self.num_minibatches is not None:
            return self.num_minibatches
        if recurrent:
            return _largest_divisor(self.num_envs, 4)
        samples = self.num_envs * self.rollout_length
        return _largest_divisor(samples, max(samples // 64, 1))


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is not above `limit`."""
    return next(n for n in range(min(limit, number), 0, -1) if number % n == 0)


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    valid: Tensor,
    clip_range: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate, negated so that it is minimized.

    Schulman et al. 2017, eq. 7, with r = exp(log_prob - old_log_prob):
        loss = -mean(min(r * A, clip(r, 1 - eps, 1 + eps) * A))

    Args:
        log_prob: [...] log pi(a|s) of the current policy, in nats; carries gradient.
        old_log_prob: [...] the same under the policy that collected the data.
        advantage: [...] A, normalized by the caller; a constant here.
        valid: [...] bool, the rows to average over.
        clip_range: eps > 0, dimensionless.

    Returns:
        The loss [], and the fraction [] of ratios outside the clip range.
    """
    # Before exp: what a row that does not count holds may overflow, and 0 * inf is no number.
    ratio = (log_prob - old_log_prob).masked_fill(~valid, 0.0).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
    loss = -masked_mean(torch.minimum(ratio * advantage, clipped * advantage), valid)
    outside = ((ratio.detach() - 1.0).abs() > clip_range).to(loss.dtype)
    return loss, masked_mean(outside, valid)


@torch.no_grad()
def approximate_kl(log_prob: Tensor, old_log_prob: Tensor, valid: Tensor) -> Tensor:
    """An estimate of KL(pi_old || pi) from its own samples, never negative.

    Schulman 2020, "Approximating KL divergence", k3 = E[(r - 1) - log r].

    Args:
        log_prob: [...] log pi(a|s), in nats.
        old_log_prob: [...] the same under the policy that collected the data.
        valid: [...] bool, the rows to average over.

    Returns:
        [] in nats.
    """
    log_ratio = (log_prob - old_log_prob).masked_fill(~valid, 0.0)
    return masked_mean(log_ratio.exp() - 1.0 - log_ratio, valid)


def value_loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    valid: Tensor,
    clip_range_value: float | None,
) -> Tensor:
    """Half the mean squared error of the value, optionally with the change clipped.

    Without clipping: mean((V - target)^2) / 2. With it (as in the authors' code), the
    larger of that error and the error of V_old + clip(V - V_old, -eps, eps).

    Args:
        value: [...] V(s) of the current parameters; carries gradient.
        old_value: [...] V(s) when the data were collected.
        target: [...] value target from `returns.gae`.
        valid: [...] bool, the rows to average over.
        clip_range_value: eps > 0 in units of the return; None: no clipping.
    """
    error = (value - target).square()
    if clip_range_value is not None:
        near = old_value + (value - old_value).clamp(-clip_range_value, clip_range_value)
        error = torch.maximum(error, (near - target).square())
    return 0.5 * masked_mean(error, valid)


class PPO(OnPolicyAlgorithm):
    """PPO on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: of the minibatch permutation.

    Raises:
        ConfigError: if a recurrent policy's environments do not split into the minibatches.
    """

    name = "ppo"
    Config = PPOConfig
    presets = named.PPO

    def __init__(self, policy: Policy, config: Any, seed: int = 0) -> None:
        self.policy = policy
        self.config = config
        self.num_minibatches = config.minibatches(recurrent=policy.is_recurrent)
        if policy.is_recurrent and config.num_envs % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches={self.num_minibatches} does not divide num_envs="
                f"{config.num_envs}: a recurrent policy learns from whole sequences, so "
                f"minibatches are made of environments. Use a divisor of {config.num_envs}."
            )
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = Adam(self.parameters, config.learning_rate, eps=config.adam_eps)
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.steps_taken = torch.zeros((), dtype=torch.int64, device=self.device)
        # Tensors: a compiled or captured step sees the schedules change them.
        self._present = {name: self._configured(name) for name in ("clip_range", "entropy_coef")}
        self.clip_range, self.entropy_coef = (
            torch.tensor(value, device=self.device) for value in self._present.values()
        )

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Run num_epochs passes of minibatch updates over one rollout.

        Args:
            rollout: [T, B] with the extras `log_prob` and `value`.

        Returns:
            name -> [] means over the optimizer steps taken.
        """
        return self.learn(rollout, self.begin_update())

    def learn(self, rollout: Rollout, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update, its permutations included; nothing here depends on counts.

        Args:
            rollout: as for `update`.
            turns: (), every part has its turn.
        """
        del turns
        advantage, target = gae(
            rollout["reward"],
            rollout["value"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        return self.optimize(rollout, advantage, target)

    def optimize(self, rollout: Rollout, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        """All optimizer steps from one rollout.

        Args:
            rollout: [T, B] whose log_prob and value are what the update starts from.
            advantage: [T, B].
            target: [T, B] of the value.

        Returns:
            name -> [] means over the optimizer steps taken.
        """
        config, stopped = self.config, torch.zeros((), device=self.device)
        columns = rollout.with_columns(advantage=advantage, target=target)
        data = self.policy.shuffleable(columns, "log_prob", "value", "advantage", "target")
        totals: dict[str, Tensor] = {}
        count = torch.zeros((), device=self.device)
        for _ in range(config.num_epochs):
            for batch in data.minibatches(self.permutation(data.num_envs), self.num_minibatches):
                metrics = self.step(batch, stopped)
                running = 1.0 - stopped
                count += running
                for name, value in metrics.items():
                    totals[name] = totals.get(name, 0.0) + value * running
                if config.target_kl is not None:
                    passed = metrics["approx_kl"] > config.target_kl
                    stopped = torch.maximum(stopped, passed.to(stopped.dtype))
        self.steps_taken += count.to(torch.int64)
        means = {name: total / count for name, total in totals.items()}
        means["explained_variance"] = explained_variance(rollout["value"], target, rollout["valid"])
        if config.target_kl is not None:
            means["stopped_early"] = stopped
        return means

    def step(self, batch: Rollout, stopped: Tensor) -> dict[str, Tensor]:
        """One optimizer step; nothing here depends on counts or generators.

        Args:
            batch: [T, b] sequences or [1, n] rows, with advantage and target.
            stopped: [] where 1, the device skips the step.

        Returns:
            name -> [] metrics of the rows before the step.
        """
        config, valid, advantage = self.config, batch["valid"], batch["advantage"]
        output = self.policy.evaluate_rollout(batch)
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        policy_loss, clip_fraction = clipped_policy_loss(
            output.log_prob, batch["log_prob"], advantage, valid, self.clip_range
        )
        critic_loss = value_loss(
            output.value, batch["value"], batch["target"], valid, config.clip_range_value
        )
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * critic_loss - self.entropy_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self.parameters, config.max_grad_norm)
        if config.target_kl is None:
            self.optimizer.step()
        else:
            self.optimizer.step(skip=stopped)
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": approximate_kl(output.log_prob, batch["log_prob"], valid),
            "clip_fraction": clip_fraction,
            "grad_norm": grad_norm,
        }

    def permutation(self, length: int) -> Tensor:
        """[length] int64 the next random order to make minibatches in."""
        return torch.randperm(length, generator=self.generator, device=self.device)

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate`, `clip_range` and `entropy_coef` from the schedules."""
        self.optimizer.set_learning_rate(values.get("learning_rate", self.config.learning_rate))
        for name, present in self._present.items():
            value = values.get(name, self._configured(name))
            if value != present:  # on a device it is a launch
                self._present[name] = value
                getattr(self, name).fill_(value)

    def _configured(self, name: str) -> float:
        """A config of one's own, for a loss of one's own, may know no entropy bonus."""
        return float(getattr(self.config, name, 0.0))

    def optimizer_steps(self) -> int:
        """Optimizer steps taken, without the skipped ones. Waits for the device."""
        return int(self.steps_taken)

    def steps_on_device(self) -> Tensor:
        """[] optimizer steps taken."""
        return self.steps_taken

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer state, permutation RNG and the count of steps."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "optimizer_steps": self.optimizer_steps(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        set_torch_state(self.generator, state["generator"])
        self.steps_taken.fill_(saved_count(state, "optimizer_steps"))
