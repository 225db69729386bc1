"""What a TensorDict held when it was looked at, and whether it holds the same still.

Collectors write every rollout into the same few TensorDicts, and batches are drawn into the same
one: looking their tensors up and checking them is worth doing once, but an entry may be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tensordict import TensorDictBase


class Entries:
    """Entries of a TensorDict, remembered by identity and by where they lie in memory.

    Args:
        tree: the TensorDict; it and its entries are kept alive, so no other can be taken for them.
        keys: the entries that matter, with all that is below them. None: all, and that there are
            no more.

    Raises:
        KeyError: if one is missing.
    """

    def __init__(self, tree: TensorDictBase, keys: Iterable[str] | None = None) -> None:
        self._trees: list[tuple[TensorDictBase, list[tuple[str, Any, int | None]], int | None]] = []
        self._remember(tree, keys)

    def _remember(self, tree: TensorDictBase, keys: Iterable[str] | None) -> None:
        size = None
        if keys is None:
            keys = list(tree.keys())
            size = len(keys)
        entries: list[tuple[str, Any, int | None]] = []
        self._trees.append((tree, entries, size))
        for key in keys:
            value = tree[key]
            if isinstance(value, TensorDictBase):
                entries.append((key, value, None))
                self._remember(value, None)
            else:
                entries.append((key, value, value.data_ptr()))

    def are_held(self) -> bool:
        """Whether every entry is the one it was, where it was: `share_memory_` moves it."""
        for tree, entries, size in self._trees:
            held = _mapping(tree)
            if size is not None and len(held) != size:
                return False
            for key, value, address in entries:
                if held.get(key) is not value:
                    return False
                if address is not None and value.data_ptr() != address:
                    return False
        return True


def _mapping(tree: TensorDictBase) -> Mapping[str, Any]:
    """What a TensorDict holds: by its own dict, where it has one, in a fifteenth of the time."""
    own = getattr(tree, "_tensordict", None)
    return own if isinstance(own, dict) else dict(tree.items())
