"""Where every microsecond of a PyTorch reinforcement-learning program went.

Works alone: it imports no other room of Redline, and torch and gymnasium only when the profiled
program has.

In a program, all of them free of charge until a session records:

    with profile.operation("inference"):    # nested; the innermost wins; also a decorator
        action = policy(obs)
    with profile.phase("warm-up"): ...      # a stretch of the whole process
    profile.step()                          # one step of the program
    profile.progress(env_steps, 1_000_000)
    profile.process_name("learner")
    profile.metadata(env="Hopper-v5")

    with profile.session("profile-dir"):    # record this block
        train()

In a script with an argument parser `profile.add_arguments(parser)` and
`profile.start_from(arguments)` do the latter where `--profile DIR` is given.

From outside, for a program that knows nothing of it: `redline profile -- python program.py`.

`overlap` is the exact interval sweep that the analysis rests on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redline.profile.marks import metadata, operation, phase, process_name, progress, step

if TYPE_CHECKING:
    from redline.profile.analyse.overlap import overlap
    from redline.profile.arguments import add_arguments, start_from
    from redline.profile.record.recorder import session

__all__ = [
    "add_arguments",
    "metadata",
    "operation",
    "overlap",
    "phase",
    "process_name",
    "progress",
    "session",
    "start_from",
    "step",
]

_HOMES = {
    "add_arguments": "redline.profile.arguments",
    "overlap": "redline.profile.analyse.overlap",
    "session": "redline.profile.record.recorder",
    "start_from": "redline.profile.arguments",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
