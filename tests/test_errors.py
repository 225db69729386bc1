"""The exception tree: one root, and messages that survive the trip from a worker."""

from __future__ import annotations

import inspect
import pickle

from redline import errors


def test_every_error_is_in_the_tree_and_in_its_picture() -> None:
    picture = inspect.getdoc(errors) or ""
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.RedlineError)
        assert name in picture


def test_a_missing_extra_names_the_command_and_can_be_pickled() -> None:
    error = errors.MissingExtraError("mujoco", "mujoco", "MuJoCo environments")
    assert "pip install 'redline[mujoco]'" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.extra == "mujoco"
