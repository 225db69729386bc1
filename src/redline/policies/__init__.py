"""Policies: observation to distribution to action, log-probability and value."""

from redline.policies.action_heads import ActionHead, make_action_head
from redline.policies.actor_critic import ActorCritic, resets
from redline.policies.actors import CategoricalActor, DeterministicActor, SquashedGaussianActor
from redline.policies.device_check import DeviceCheck
from redline.policies.make import make_actor, make_policy
from redline.policies.normalizer import ObservationNormalizer
from redline.policies.policy import (
    ActionEvaluation,
    ActOutput,
    Conditioning,
    Policy,
    State,
    reset_state,
)
from redline.policies.q_policy import ActionValues, QPolicy
from redline.policies.skills import SkillPolicy, with_skill

__all__ = [
    "ActOutput",
    "ActionEvaluation",
    "ActionHead",
    "ActionValues",
    "ActorCritic",
    "CategoricalActor",
    "Conditioning",
    "DeterministicActor",
    "DeviceCheck",
    "ObservationNormalizer",
    "Policy",
    "QPolicy",
    "SkillPolicy",
    "SquashedGaussianActor",
    "State",
    "make_action_head",
    "make_actor",
    "make_policy",
    "reset_state",
    "resets",
    "with_skill",
]
