"""The only place of hand-written CPU kernels, in Python and in C, behind three doors.

| door | answers |
|---|---|
| `update_for` | how an algorithm's update can be run by the kernels |
| `actor_for` | what acts in place of a policy, one observation at a time or a few images |
| `kernel_instructions` | which instructions the compiled kernels use |

Nothing else of this package is imported from outside. The first two serve exactly known types with
exactly known parts, or not at all (`known_parts`), and neither replaces or hooks anything inside
the algorithm or the policy. Without the package everything runs as written.

| module | holds |
|---|---|
| `serving` | which kernels serve an algorithm or a policy |
| `known_parts` | whether every part is known, and what the kernels need to know of it |
| `mlp`, `distributions`, `parameters` | networks, action distributions, gradients and steps |
| `sac`, `td3`, `dqn`, `ppo`, `policy_gradient` | whole updates; `critics`: of the first two |
| `images` | updates and acting with convolutional networks |
| `acting` | acting with one environment |
| `csrc` | `dense.c`, `convolution.c` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def update_for(algorithm: Any) -> tuple[Callable[[Any], dict[str, Any]] | None, str]:
    """How the kernels run an algorithm's update.

    The callable is a drop-in for `algorithm.update`: it takes the same batch, gives the same
    metrics, draws the same numbers, and changes parameters, optimizer memory, targets and counts of
    the algorithm in place, so that the two can take turns.

    Ask once, when a run starts. The callable notices when parameters are moved to other memory
    (`share_memory`) or frozen, and, once callbacks have been called, when layers were replaced or
    have hooks. Then it is made anew, or calls `algorithm.update`.

    Args:
        algorithm: which learns; it is not changed here.

    Returns:
        The callable, or None; and one sentence saying why.
    """
    from redline.engines.cpu.serving import serve_update

    return serve_update(algorithm)


def kernel_instructions() -> str | None:
    """The vector instructions that the compiled kernels use; None without compiled kernels."""
    from redline.engines.cpu.mlp import instructions_in_use

    return instructions_in_use()


def actor_for(policy: Any, num_envs: int, rollout_length: int) -> Any | None:
    """What acts in place of a policy, or None where the policy acts by itself.

    It has `serves(conditioning)` and `begin(conditioning, noise [T, B, noise_size])`. With
    `is_rowwise`, for one environment, then come `act(t, obs_row, action_row)` for each step, in
    numpy, and `end(obs, action, extras)`. Without, `act(obs, state, noise, conditioning)` is a
    drop-in for `Policy.act`, with the weights as they were at `begin`.

    Args:
        policy: what would act; it is not changed.
        num_envs: B.
        rollout_length: T; for a few steps laying weights out anew does not pay.
    """
    from redline.engines.cpu.serving import serve_actor

    return serve_actor(policy, num_envs, rollout_length)
