"""A warning about pixels whose axes are not those of an image as networks take them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from redline.train.config_files import GivenSettings, config_of
from redline.train.runs.building import said_of_images


def said(space: Any, **settings: Any) -> list[str]:
    config = config_of(GivenSettings(), algorithm="ppo", env="Some-v0", **settings)
    env: Any = SimpleNamespace(observation_space=space)
    return said_of_images(config, env)


def pixels(*shape: int, kind: Any = np.uint8) -> spaces.Box:
    return spaces.Box(0, 255 if kind == np.uint8 else 1, shape, kind)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (pixels(84, 84, 12), "84 channels of 84 x 12 pixels. If the 12 are the channels, put them"),
        (pixels(96, 80, 9), "96 channels of 80 x 9 pixels"),
        (pixels(10, 10, 7, kind=np.bool_), "10 channels of 10 x 7 pixels"),
        (pixels(84, 84, 2), "they are 14112 separate numbers. If the 2 are the channels"),
        (pixels(4, 84, 84, 3), "84672 separate numbers. If they are stacked images, make one"),
        (spaces.Dict(eye=pixels(84, 84, 12)), "of uint8 at key 'eye' are taken for 84 channels"),
    ],
)
def test_pixels_in_another_order_are_told(space: Any, expected: str) -> None:
    """Four stacked RGB frames went through convolutions over 84 channels, without a word."""
    (sentence,) = said(space)
    assert expected in sentence
    assert "gymnasium.wrappers" in sentence
    assert said(space, encoder="mlp") == []  # flattened, as asked for


@pytest.mark.parametrize(
    "space",
    [
        pixels(12, 84, 84),
        pixels(84, 84, 3),
        pixels(4, 84, 80),
        pixels(10, 10, 10),
        pixels(7, 7, 3),
        pixels(84, 84),
        pixels(128),
        pixels(6, 6, 5),
        pixels(4, 3, 3, 2),
        spaces.Box(0, 1, (84, 84, 12), np.float32),
        spaces.Discrete(3),
    ],
)
def test_of_what_is_clear_nothing_is_said(space: Any) -> None:
    assert said(space) == []
