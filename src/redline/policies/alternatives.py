"""Which of the built-in algorithms act in a space: what the refusal of another one ends with."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

_WRAP = "Wrap the environment to a Box or a Discrete action space."


def algorithms_for(space: spaces.Space[Any]) -> str:
    """A sentence that names algorithms for this action space, or another way out.

    Args:
        space: of one environment, that the algorithm in question does not serve.
    """
    if isinstance(space, spaces.Discrete):
        return "Use dqn, sac or ppo."
    if isinstance(space, spaces.Box):
        if space.dtype not in (np.float32, np.float64) or int(np.prod(space.shape)) == 0:
            return _WRAP
        bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
        return "Use sac, td3 or ppo." if bounded and (space.low <= space.high).all() else "Use ppo."
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return "Use ppo."
    parts: Any = getattr(space, "spaces", ())
    parts = list(parts.values()) if isinstance(parts, dict) else list(parts)
    served = parts and all("ppo" in algorithms_for(part) for part in parts)
    return "Use ppo." if served else _WRAP
