"""Whether networks are still what an engine was made for.

Only code of a user's changes them once a run has begun, and the only such code that gets hold of
them is a callback. So nothing is looked at before callbacks have been called, which say so by
`may_have_changed`: a look takes microseconds, and small updates take a few hundred.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from torch import nn

__all__ = ["NetworksWatch", "may_have_changed"]

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_count = [0]  # of the times that a user's code has run


def may_have_changed() -> None:
    """A user's code has run that may have changed networks."""
    _count[0] += 1


class NetworksWatch:
    """Notices layers that were replaced or frozen, hooks, and methods set on an instance.

    Args:
        owner: a network, or an algorithm, whose networks are meant and those of one inside it.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._count = _count[0]
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether anything is different from what it was when this was asked last."""
        if self._count == _count[0]:
            return False
        self._count = _count[0]
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> list[Any]:
        modules = [part for network in _networks(self._owner) for part in network.modules()]
        parameters = [p for part in modules for p in part._parameters.values() if p is not None]
        hooks = [len(getattr(part, name)) for part in modules for name in _HOOKS]
        hooks += [_gradient_hooks(parameter) for parameter in parameters]
        return [
            *map(id, modules),
            *map(id, parameters),
            *(parameter.data_ptr() for parameter in parameters),
            *(parameter.requires_grad for parameter in parameters),
            *hooks,
            *chain.from_iterable(_own_methods(part) for part in modules),
        ]


def _networks(owner: Any) -> list[nn.Module]:
    if isinstance(owner, nn.Module):
        return [owner]
    found = [part for part in vars(owner).values() if isinstance(part, nn.Module)]
    inner = getattr(owner, "inner", "")
    return found + (_networks(getattr(owner, inner)) if inner else [])


def _gradient_hooks(parameter: Any) -> int:
    after = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return len(parameter._backward_hooks or ()) + len(after or ())


def _own_methods(part: nn.Module) -> list[tuple[str, int]]:
    """What covers a method of the class on this instance."""
    return [(n, id(v)) for n, v in vars(part).items() if callable(v) and hasattr(type(part), n)]
