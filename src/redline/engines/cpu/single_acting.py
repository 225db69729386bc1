"""Kept while `collect.actor` imports it; `actor_for` in the package takes its place."""

from __future__ import annotations

from redline.engines.cpu.acting import RowActor as SingleActor
from redline.engines.cpu.serving import serve_actor
from redline.policies.policy import Policy

__all__ = ["SingleActor", "single_actor"]


def single_actor(policy: Policy) -> SingleActor | None:
    """What acts for this policy with one environment."""
    return serve_actor(policy, 1, 0)
