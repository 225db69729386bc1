"""Steps that belong to one learner."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from redline.errors import RedlineError


class OwnStep:
    """An accelerated step, which works in the memory of one learner.

    A copy would go on with the original's parameters, or with some that nobody else sees.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        del protocol
        raise RedlineError(
            f"a {type(self).__name__} cannot be copied or pickled: what was accelerated works in "
            "the memory it has. Copy a learner before it is accelerated, or make another one, load "
            "this one's state_dict() and accelerate that."
        )
