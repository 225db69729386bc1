"""How long the tensor library's idle threads keep a core to themselves.

A thread of GNU's OpenMP that has done its share looks for more in a loop before it sleeps: by
default 300,000 times where each has a core, which takes 5 ms on an AMD EPYC. While environments
step in threads of their own, such as EnvPool's, it keeps a core from them through most of a step.
"""

from __future__ import annotations

import os
import sys

_NAME = "GOMP_SPINCOUNT"
_LOOKS = "10000"  # 0.2 ms: longer than what mostly lies between two operations of an update
_OWN_SETTINGS = (_NAME, "OMP_WAIT_POLICY")


def let_idle_threads_sleep() -> bool:
    """Have this process's OpenMP threads sleep after a fifth of a millisecond without work.

    The library reads the environment once, when torch is loaded, and so do processes that are
    started from this one.

    Returns:
        Whether that was asked for; only GNU's OpenMP knows it. False, and nothing is changed,
        where torch is loaded already, and where the environment holds a setting of the user's
        (`GOMP_SPINCOUNT`, `OMP_WAIT_POLICY`).
    """
    if "torch" in sys.modules or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    os.environ[_NAME] = _LOOKS
    return True
