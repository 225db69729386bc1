"""Policies that are told, environment by environment, which of K skills to act with.

The skill is conditioning: it comes with every collection, may change at each, and is kept in
the rollout, so that learning sees what acting saw. Any policy can be made to take one: it is
built on the observation space of `with_skill`, and wrapped.

    space = with_skill(observation_space, 8)
    policy = SkillPolicy(make_policy(space, action_space), observation_space, 8)
    collector.collect({"skill": torch.tensor([0, 3, 7, 3])})
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor, Rollout, as_tensordict, map_leaves
from redline.errors import ConfigError, SpaceError
from redline.models import ObservationEncoder
from redline.policies.policy import (
    ActionEvaluation,
    ActOutput,
    Conditioning,
    Policy,
    PolicyWrapper,
    State,
    require_tensors,
)

SKILL = "skill"
PLAIN = "observation"  # the entry of an observation that is not a Dict itself


class SkillSpace(spaces.Dict):
    """A space that `with_skill` made of a Dict, whose entries lie beside the skill."""


class PlainSkillSpace(SkillSpace):
    """One of a space that is no Dict, which lies in the entry `PLAIN`."""


def with_skill(space: spaces.Space[Any], num_skills: int) -> SkillSpace:
    """The observation space with a skill beside: what a policy inside a `SkillPolicy` sees.

    Args:
        space: of one environment's observations; a Dict keeps its entries where they are.
        num_skills: K.

    Raises:
        ConfigError: if there are fewer than 2 skills.
        SpaceError: if the observation has an entry called "skill".
    """
    if num_skills < 2:
        raise ConfigError(f"num_skills={num_skills} leaves nothing to choose from. Use at least 2.")
    nested = isinstance(space, spaces.Dict)
    entries = dict(space.spaces) if nested else {PLAIN: space}
    if SKILL in entries:
        raise SpaceError(
            f"the observation has an entry {SKILL!r} of its own, where the policy's skill would "
            f"go. Rename it, for example with gymnasium.wrappers.TransformObservation."
        )
    kind = SkillSpace if nested else PlainSkillSpace
    return kind({**entries, SKILL: spaces.Discrete(num_skills)})


def without_skill(space: SkillSpace) -> spaces.Space[Any]:
    """The space that `with_skill` was given, or what was left of it."""
    if isinstance(space, PlainSkillSpace):
        return space[PLAIN]
    return spaces.Dict({key: sub for key, sub in space.spaces.items() if key != SKILL})


class SkillBesideFeatures(nn.Module):
    """Features of an observation, then its skill, one-hot.

    Args:
        torso: observations [N, ...] without the skill -> features [N, F].
        space: of the observations with it.

    Attributes:
        torso: as given.
        num_skills: K.
    """

    def __init__(self, torso: nn.Module, space: SkillSpace) -> None:
        super().__init__()
        self.torso = torso
        self._is_plain = isinstance(space, PlainSkillSpace)
        self._skill = ObservationEncoder(space[SKILL])
        self.num_skills = self._skill.out_features

    def forward(self, obs: Any) -> Tensor:
        """[N, F + K] float32; `obs` [N, ...] in the structure of `with_skill`."""
        parts: Any = {key: obs[key] for key in obs.keys()}  # noqa: SIM118 (a TensorDict's rows)
        skill = self._skill(parts.pop(SKILL))
        features = self.torso(parts[PLAIN] if self._is_plain else parts)
        return torch.cat([features, skill], dim=1)


def joined(obs: NestedTensor, skill: Tensor, nested: bool) -> dict[str, Any]:
    """Observations and skills in the structure of `with_skill`.

    Args:
        obs: [..., *] observations.
        skill: [...] int64.
        nested: whether the observation space is a Dict.
    """
    if nested:
        return {**map_leaves(lambda leaf: leaf, obs), SKILL: skill}
    return {PLAIN: map_leaves(lambda leaf: leaf, obs), SKILL: skill}


class SkillPolicy(PolicyWrapper):
    """A policy that acts with the skill it is told; without being told it refuses to act.

    Args:
        policy: on the observations of `with_skill`; kept, not copied.
        observation_space: of one environment.
        num_skills: K.

    Attributes:
        policy: as given.
        num_skills: K.
    """

    def __init__(
        self, policy: Policy, observation_space: spaces.Space[Any], num_skills: int
    ) -> None:
        super().__init__(policy)
        self.observation_space = observation_space
        self.num_skills = num_skills
        self.conditioning_names = (SKILL,)
        self.conditioning_bounds = {SKILL: (0.0, num_skills - 1.0)}
        self.extras_spec = {**policy.extras_spec, SKILL: ()}
        self._nested = isinstance(observation_space, spaces.Dict)

    def act(
        self,
        obs: NestedTensor,
        state: State,
        noise: Tensor | None = None,
        conditioning: Conditioning | None = None,
    ) -> ActOutput:
        """Choose actions for B environments, each with its skill.

        Args:
            obs: [B, ...] observations.
            state: the recurrent state, already reset where an episode began.
            noise: [B, noise_size]; None acts greedily everywhere.
            conditioning: "skill" [B] int64 in 0 .. K - 1, also of environments that are idle;
                everything else is for the policy inside.

        Returns:
            As the policy inside, with the extra "skill" [B] float32.

        Raises:
            ConfigError: if there is no skill.
        """
        require_tensors(obs)
        skill, others = self._split(conditioning)
        inside = self.policy.act(joined(obs, skill, self._nested), state, noise, others)
        return inside._replace(extras={**inside.extras, SKILL: skill.to(torch.float32)})

    def value(
        self, obs: NestedTensor, state: State, conditioning: Conditioning | None = None
    ) -> Tensor:
        """[B] value of the observations with the skill that `conditioning` names."""
        skill, others = self._split(conditioning)
        return self.policy.value(joined(obs, skill, self._nested), state, others)

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        """Evaluate with the skills that the rollout was collected with."""
        return self.policy.evaluate_rollout(self._joined(rollout))

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the valid observations into the statistics of the policy inside."""
        self.policy.update_normalizer(self._joined(rollout))

    def evaluation_conditioning(self, num_envs: int) -> dict[str, Tensor]:
        """Every skill in turn, environment by environment."""
        return {SKILL: torch.arange(num_envs) % self.num_skills}

    def _joined(self, rollout: Rollout) -> Rollout:
        obs = joined(rollout["obs"], rollout[SKILL].long(), self._nested)
        shape = (rollout.rollout_length, rollout.num_envs)
        # Shallow: other readers of the rollout must not see the joined observations.
        steps = rollout.steps.copy()
        steps["obs"] = as_tensordict(obs, shape)
        return Rollout(
            steps=steps,
            initial_state=rollout.initial_state,
            last_obs={},
            version=rollout.version,
        )

    def _split(self, conditioning: Conditioning | None) -> tuple[Tensor, Conditioning | None]:
        """The skills [B] int64, and what is left for the policy inside."""
        if not conditioning or SKILL not in conditioning:
            raise ConfigError(
                f"the policy has {self.num_skills} skills and was not told which to act with. Give "
                f"conditioning={{'skill': ...}}, [B] int64 in 0 .. {self.num_skills - 1}."
            )
        others = {name: leaf for name, leaf in conditioning.items() if name != SKILL}
        return conditioning[SKILL].long(), others or None
