"""Diversity is all you need (DIAYN): skills without a reward, on SAC.

Eysenbach et al. 2019, arXiv:1802.06070. Reads top to bottom: `discriminator_loss`,
`skill_reward`, `DIAYN`; policy and critics are SAC's, with the skill as a further input.

| symbol | shape | meaning |
|---|---|---|
| z | [N] | skill, 0 .. K - 1, uniform |
| q(z|s') | [N, K] | discriminator: which skill led to s' |
| r_z | [N] | log q(z|s') - log p(z) = log q(z|s') + log K, in place of the environment's reward |

Maximizing r_z makes skills that can be told apart by where they lead, SAC's entropy makes
them spread out. r_z is computed when a batch is learned from, with the discriminator of that
moment; it is 0 where the discriminator guesses, log K where it is sure and right.

Each environment keeps its skill for `skill_length` env_steps. Which one it has is a function
of seed, environment and env_steps alone, so a resumed run and one with other workers go on
with the same.

Departs from the paper: a skill lasts for a number of env_steps instead of an episode. The
two are the same where all episodes have that length; elsewhere at most one episode per
`skill_length` env_steps sees two skills.

Cost: SAC's, and one step of the discriminator per update.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from redline.algos import presets as named
from redline.algos.algorithm import OffPolicyAlgorithm
from redline.algos.config import require_positive
from redline.algos.critics import network_settings
from redline.algos.optimizers import Adam
from redline.algos.sac import SAC, SACConfig
from redline.data import Rollout, as_tensordict
from redline.errors import ConfigError
from redline.policies.make import make_torso
from redline.policies.masks import MASK_KEY, network_space, without_mask
from redline.policies.skills import SkillPolicy, joined, with_skill


@dataclass(frozen=True, slots=True, kw_only=True)
class DIAYNConfig(SACConfig):
    """Hyperparameters of DIAYN on SAC; Eysenbach et al. 2019, arXiv:1802.06070.

    Raises:
        ConfigError: if a value is out of range.
    """

    num_skills: int = 8
    """K, skills to tell apart."""
    skill_length: int = 200
    """env_steps per environment for which it keeps its skill, rounded up to whole rollouts."""
    alpha: float | None = 0.1
    """Temperature, the weight of the entropy. None: learned."""
    discriminator_learning_rate: float | None = None
    """Adam's step size for the discriminator. None: learning_rate."""

    def __post_init__(self) -> None:
        SACConfig.__post_init__(self)
        require_positive(num_skills=self.num_skills, skill_length=self.skill_length)
        if self.num_skills < 2:
            raise ConfigError("num_skills=1 leaves nothing to tell apart. Use at least 2.")
        if self.discriminator_learning_rate is not None:
            require_positive(discriminator_learning_rate=self.discriminator_learning_rate)
        if self.n_step != 1:
            raise ConfigError(
                f"n_step={self.n_step} sums rewards of the environment, which DIAYN does not see: "
                f"its own are of single transitions. Use n_step=1."
            )
        if self.replay != "plain":
            raise ConfigError(
                f"replay={self.replay!r} computes the environment's reward anew, which DIAYN does "
                f"not see. Use replay='plain'."
            )


_SKILL_STREAM = 5  # keeps the drawing of skills apart from the run's other streams
_INSIDE = "policy."  # what a SkillPolicy puts before the names of the actor's parameters


def discriminator_loss(logits: Tensor, skill: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of the skill that was acted with: -mean(w * log q(z|s')).

    Args:
        logits: [N, K] of q, before softmax; carries gradient.
        skill: [N] int64 z.
        weight: [N] importance weights w.

    Returns:
        The loss [], in nats.
    """
    return (weight * nn.functional.cross_entropy(logits, skill, reduction="none")).mean()


def skill_reward(logits: Tensor, skill: Tensor) -> Tensor:
    """The reward for being where the skill can be told.

    Eysenbach et al. 2019, eq. 3, p uniform: r = log q(z|s') - log p(z).

    Args:
        logits: [N, K] of q, before softmax.
        skill: [N] int64 z.

    Returns:
        [N] in nats, at most log K.
    """
    log_q = logits.log_softmax(dim=1).gather(1, skill.unsqueeze(1)).squeeze(1)
    return log_q + np.log(logits.shape[1])


class Discriminator(nn.Module):
    """Logits [N, K] of the skill, from observations [N, ...].

    Args:
        torso: observations without an action mask -> features [N, F].
        features: F.
        num_skills: K.
        has_mask: whether the observations hold an action mask, which is no input.
    """

    def __init__(
        self, torso: nn.Module, features: int, num_skills: int, *, has_mask: bool = False
    ) -> None:
        super().__init__()
        self.torso, self.head = torso, nn.Linear(features, num_skills)
        self.has_mask = has_mask

    def forward(self, obs: Any) -> Tensor:
        """[N, K]."""
        return self.head(self.torso(without_mask(obs) if self.has_mask else obs))


class DIAYN(OffPolicyAlgorithm):
    """DIAYN on SAC, for the action spaces of SAC.

    Args:
        sac: on observations with a skill; kept, its actor is the one inside `policy`.
        policy: acts with a skill.
        discriminator: on the observations of the environment; kept.
        config: hyperparameters.
        seed: of the skills.

    Attributes:
        sac: the SAC inside, whose `step` is what `accelerate` makes faster.
    """

    name = "diayn"
    inner = "sac"
    Config = DIAYNConfig
    defaults = named.WIDE
    presets = named.DIAYN
    saved_parameters = ("policy", "critic", "discriminator", "log_alpha")
    metric_names = (
        *SAC.metric_names,
        "discriminator_loss",
        "discriminator_accuracy",
        "skill_reward",
    )

    def __init__(
        self,
        sac: SAC,
        policy: SkillPolicy,
        discriminator: Discriminator,
        config: DIAYNConfig,
        *,
        seed: int = 0,
    ) -> None:
        self.policy, self.discriminator, self.config = policy, discriminator, config
        self.sac, self._seed = sac, seed
        self._nested = isinstance(policy.observation_space, spaces.Dict)
        self.device = next(discriminator.parameters()).device
        self._optimizer = Adam(
            discriminator.parameters(), config.discriminator_learning_rate or config.learning_rate
        )
        self._skills: tuple[int, Tensor] | None = None  # of which period

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: DIAYNConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> Self:
        """DIAYN with fresh networks, their weights drawn from torch's global generator.

        Args:
            observation_space: of one environment.
            action_space: as for `SAC.make`.
            config: hyperparameters.
            seed: of everything that updates draw, and of the skills.
            device: where to act and learn.
            network: settings of the networks, as for `algos.critics.network_settings`.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting of the network is not for DIAYN.
        """
        if network.get("normalize_obs"):
            raise ConfigError(
                "normalize_obs=True is not for diayn: the discriminator and the skills' policy "
                "see what the environment gives. Leave it out."
            )
        settings = network_settings("diayn", **network)
        space = with_skill(observation_space, config.num_skills)
        sac = SAC.make(space, action_space, config, seed=seed, device=device, **network)
        policy = SkillPolicy(sac.policy, observation_space, config.num_skills)
        torso, features = make_torso(
            network_space(observation_space),
            settings.encoder,
            settings.hidden_sizes,
            settings.activation,
            orthogonal=False,
        )
        discriminator = Discriminator(
            torso, features, config.num_skills, has_mask=MASK_KEY in space.spaces
        )
        return cls(sac, policy, discriminator.to(device), config, seed=seed)

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: DIAYNConfig,
        **network: Any,
    ) -> SkillPolicy:
        """Only the policy, on the CPU; arguments as for `make`."""
        space = with_skill(observation_space, config.num_skills)
        actor = SAC.make_policy(space, action_space, config, **network)
        return SkillPolicy(actor, observation_space, config.num_skills)

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """What SAC acts with, and "skill" [B] int64."""
        period = env_steps // num_envs // self.config.skill_length
        if self._skills is None or self._skills[0] != period:
            drawn = [
                np.random.default_rng([self._seed, _SKILL_STREAM, period, i]).integers(
                    self.config.num_skills
                )
                for i in range(num_envs)
            ]
            self._skills = (period, torch.tensor(drawn, dtype=torch.int64, device=self.device))
        others = self.sac.conditioning(env_steps, total_env_steps, num_envs)
        return {**others, "skill": self._skills[1]}

    def initial_priorities(self, rollout: Rollout) -> Tensor | None:
        """As SAC: None, the highest that replay has seen."""
        return self.sac.initial_priorities(rollout)

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of the discriminator, and one of SAC on its rewards.

        Args:
            batch: [N] transitions, with the keys in `data/rollout.py` and "skill" [N]; their
                rewards are not looked at.

        Returns:
            SAC's metrics and its "priority" [N]; the discriminator's loss and accuracy in
            telling the batch's skills, and the mean of r_z, all [] and from before its step.
        """
        inputs, found = self._learn_discriminator(batch)
        return self.sac.update(inputs) | found

    def begin_update(self) -> tuple[bool, ...]:
        """SAC's; the discriminator always has its turn."""
        return self.sac.begin_update()

    def learn(self, batch: Any, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update, what is random included; nothing here depends on counts.

        Args:
            batch: as for `update`.
            turns: as `begin_update` gave.
        """
        inputs, found = self._learn_discriminator(batch)
        return self.sac.learn(inputs, turns) | found

    def reported(self, found: dict[str, Any]) -> dict[str, Any]:
        """See `SAC.reported`."""
        return self.sac.reported(found)

    def carried_metrics(self) -> dict[str, Tensor]:
        """See `SAC.carried_metrics`."""
        return self.sac.carried_metrics()

    def _learn_discriminator(self, batch: Any) -> tuple[TensorDict, dict[str, Tensor]]:
        """One step of the discriminator; SAC's batch with its rewards, and its metrics."""
        skill = batch["skill"].long()
        logits = self.discriminator(batch["next_obs"])
        loss = discriminator_loss(logits, skill, batch["weight"])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        logits = logits.detach()
        reward = skill_reward(logits, skill)
        rows = tuple(batch.batch_size)
        fields = {name: batch[name] for name in ("action", "discount", "weight")}
        for name in ("obs", "next_obs"):
            fields[name] = as_tensordict(joined(batch[name], skill, self._nested), rows)
        return TensorDict({**fields, "reward": reward}, batch_size=rows), {
            "discriminator_loss": loss.detach(),
            "discriminator_accuracy": (logits.argmax(dim=1) == skill).float().mean(),
            "skill_reward": reward.mean(),
        }

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedules; that of the discriminator scales with it."""
        config = self.config
        self.sac.set_hyperparameters(values)
        scale = values.get("learning_rate", config.learning_rate) / config.learning_rate
        own = config.discriminator_learning_rate or config.learning_rate
        self._optimizer.set_learning_rate(scale * own)

    def optimizer_steps(self) -> int:
        """Steps of the critics, which are as many as those of the discriminator."""
        return self.sac.optimizer_steps()

    def state_dict(self) -> dict[str, Any]:
        """SAC's, with the policy's parameters by its own names, and the discriminator's."""
        return self.sac.state_dict() | {
            "policy": self.policy.state_dict(),
            "discriminator": self.discriminator.state_dict(),
            "discriminator_optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        actor = {name.removeprefix(_INSIDE): leaf for name, leaf in state["policy"].items()}
        self.sac.load_state_dict({**state, "policy": actor})
        self.discriminator.load_state_dict(state["discriminator"])
        self._optimizer.load_state_dict(state["discriminator_optimizer"])
