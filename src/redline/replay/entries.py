"""What a TensorDict held when it was looked at, and whether it holds the same still.

Collectors write every rollout into the same few TensorDicts, and batches are drawn into the same
one: looking their tensors up and checking them is worth doing once, but an entry may be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensordict import TensorDictBase
from torch import Tensor


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
        self._trees: list[tuple[TensorDictBase, str, TensorDictBase]] = []
        self._tensors: list[tuple[TensorDictBase, str, Tensor, int]] = []
        self._sizes: list[tuple[TensorDictBase, int]] = []
        self._remember(tree, keys)

    def _remember(self, tree: TensorDictBase, keys: Iterable[str] | None) -> None:
        if keys is None:
            keys = list(tree.keys())
            self._sizes.append((tree, len(keys)))
        for key in keys:
            value = tree[key]
            if isinstance(value, TensorDictBase):
                self._trees.append((tree, key, value))
                self._remember(value, None)
            else:
                self._tensors.append((tree, key, value, value.data_ptr()))

    def are_held(self) -> bool:
        """Whether every entry is the one it was, where it was: `share_memory_` moves it."""
        for tree, num_keys in self._sizes:
            if len(tree.keys()) != num_keys:
                return False
        try:
            for tree, key, tensor, address in self._tensors:  # `get` takes three times as long
                if tree[key] is not tensor or tensor.data_ptr() != address:
                    return False
            for tree, key, value in self._trees:
                if tree[key] is not value:
                    return False
        except KeyError:
            return False
        return True
