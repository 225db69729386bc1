"""Whether networks are still what an engine was made for.

Only code of a user's changes them once a run has begun: a callback, or an algorithm of the user's
own. So nothing is looked at before one of these has been called, which `may_have_changed` says: a
look takes some ten microseconds, and small updates take a few hundred.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["NetworksWatch", "QuickLook", "may_have_changed"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = (bool, int, float, str, type(None))
_OTHER = object()
_count = [0]  # of the times that a user's code has run


def may_have_changed() -> None:
    """A user's code has run that may have changed networks."""
    _count[0] += 1


class NetworksWatch:
    """Notices what was replaced, frozen or moved in networks, their modes, hooks and attributes.

    Attributes are plain ones of Redline's and torch's modules, such as a share of dropout,
    and methods that were set on any instance. What a user's module notes of itself while it runs
    would be a change each time.

    Args:
        owner: a network, or an algorithm, whose networks are meant and those of one inside it.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._take()

    def changed(self) -> bool:
        """Whether anything is different from what it was when this was asked last."""
        if self._count == _count[0]:
            return False
        self._count = _count[0]
        if self._look() == self._seen and not (self._may_have_more() and self._found_more()):
            return False
        self._take()
        return True

    def _take(self) -> None:
        """Remember what is there now."""
        self._count = _count[0]
        self._modules = [part for each in _networks(self._owner) for part in each.modules()]
        self._held = [
            held
            for part in self._modules
            for held in (part._modules, part._parameters, part._buffers)
            if held
        ]
        self._parameters = [
            p for part in self._modules for p in part._parameters.values() if p is not None
        ]
        self._buffers = [
            b for part in self._modules for b in part._buffers.values() if b is not None
        ]
        self._own = [vars(part) for part in self._modules]
        self._plain = [
            (vars(part), name) for part in self._modules for name in _plain_attributes(part)
        ]
        self._seen = self._look()
        self._hooks_made, self._lengths = self._marks()
        self._more = self._find_more()

    def _look(self) -> list[Any]:
        """What a layer that was replaced, frozen, moved or set to another mode shows."""
        return [
            *map(id, _networks(self._owner)),
            *map(id, chain.from_iterable(map(dict.values, self._held))),
            *(tensor.data_ptr() for tensor in chain(self._parameters, self._buffers)),
            *(parameter.requires_grad for parameter in self._parameters),
            *(_comparable(own.get(name)) for own, name in self._plain),
        ]

    def _marks(self) -> tuple[int, int]:
        """Hooks that were ever made, and attributes there are: more of them, and one looks."""
        return RemovableHandle.next_id, sum(map(len, self._own))

    def _may_have_more(self) -> bool:
        before = self._hooks_made, self._lengths
        self._hooks_made, self._lengths = self._marks()
        return before != (self._hooks_made, self._lengths)

    def _found_more(self) -> bool:
        return self._find_more() != self._more

    def _find_more(self) -> list[Any]:
        """Hooks, and what covers a method of the class on an instance."""
        hooks = [len(getattr(part, name)) for part in self._modules for name in _HOOKS]
        return [
            *hooks,
            *map(_gradient_hooks, self._parameters),
            *chain.from_iterable(map(_own_methods, self._modules)),
        ]


class QuickLook:
    """Sees in 3 us whether layers and parameters of a network are where they were.

    For whoever acts one observation at a time, with code of a user's between any two. What a hook
    does is not looked at: one more hook anywhere, and the answer is no.

    Args:
        network: to look at, as it is now.
    """

    def __init__(self, network: nn.Module) -> None:
        modules = list(network.modules())
        self._own = [vars(part) for part in modules]
        self._layers = [part._modules.values() for part in modules if part._modules]
        self._parameters = [part._parameters.values() for part in modules if part._parameters]
        has_gaps = None in self._present(self._parameters)
        self._address: Any = _address if has_gaps else Tensor.data_ptr
        self._seen = self._look()

    @staticmethod
    def _present(held: list[Any]) -> list[Any]:
        return list(chain.from_iterable(held))

    def _look(self) -> list[Any]:
        return [
            RemovableHandle.next_id,
            sum(map(len, self._own)),
            self._present(self._layers),
            list(map(self._address, chain.from_iterable(self._parameters))),
        ]

    def is_the_same(self) -> bool:
        """Whether all is as it was when this was made."""
        try:
            return self._look() == self._seen
        except TypeError:  # a parameter is None by now
            return False


def _address(parameter: Tensor | None) -> int:
    return 0 if parameter is None else parameter.data_ptr()


def _networks(owner: Any) -> list[nn.Module]:
    if isinstance(owner, nn.Module):
        return [owner]
    found = [part for part in vars(owner).values() if isinstance(part, nn.Module)]
    inner = getattr(owner, "inner", "")
    return found + (_networks(getattr(owner, inner)) if inner else [])


def _plain_attributes(part: nn.Module) -> list[str]:
    """Names of attributes that say how it computes; its mode is one."""
    if not type(part).__module__.startswith(("redline.", "torch.")):
        return ["training"]
    return [name for name, value in vars(part).items() if _is_plain(value)]


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _comparable(value: Any) -> Any:
    """What has become something else, such as a tensor, need not compare with what it was."""
    return (type(value), value) if _is_plain(value) else _OTHER


def _gradient_hooks(parameter: Any) -> int:
    after = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return len(parameter._backward_hooks or ()) + len(after or ())


def _own_methods(part: nn.Module) -> Iterable[tuple[str, int]]:
    return [(n, id(v)) for n, v in vars(part).items() if callable(v) and hasattr(type(part), n)]
