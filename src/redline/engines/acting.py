"""What acts in a policy's place, where a kernel for the CPU can."""

from __future__ import annotations

from typing import Any

from redline.policies.policy import Policy


def describe_acting(policy: Policy, num_envs: int, rollout_length: int) -> str:
    """What `actor_for` gives, in a few words; arguments as for that one."""
    actor = actor_for(policy, num_envs, rollout_length)
    if actor is None:
        return "the policy as it is written"
    if getattr(actor, "is_rowwise", False):
        return "CPU kernels, row by row"
    return "the policy, its weights laid out once per rollout"


def actor_for(policy: Policy, num_envs: int, rollout_length: int) -> Any:
    """What acts in place of `policy`; None: the policy itself.

    A function of a module, so that it can be sent to worker processes.

    Args:
        policy: may be on any device.
        num_envs: B.
        rollout_length: T.

    Returns:
        For one environment and a plain network on vectors, an actor that goes row by row
        (`is_rowwise`); for image networks and long rollouts, one that replaces `Policy.act`.
    """
    parameter = next(policy.parameters(), None)
    if parameter is not None and parameter.device.type != "cpu":
        return None
    try:
        from redline.engines.cpu import actor_for as ask_kernels
    except ImportError:  # left out: everything runs as it is written
        return None
    return ask_kernels(policy, num_envs, rollout_length)
