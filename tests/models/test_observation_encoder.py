"""Encoders of nested observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from redline.data import as_tensordict
from redline.errors import SpaceError, UnknownNameError
from redline.models import NatureCNN, ObservationEncoder, image_shape, leaf_spaces, zero_observation
from redline.models.observation_encoder import image_layout


def test_leaves_are_coded_by_kind_and_concatenated_in_order() -> None:
    """Box, Discrete from 5, MultiDiscrete from (0, 1), MultiBinary, in a Tuple in a Dict."""
    space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 1)),
            "pair": spaces.Tuple(
                (spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3], start=[0, 1]))
            ),
            "tail": spaces.MultiBinary(2),
        }
    )
    obs = {
        "box": torch.tensor([[[0.5], [-2.0]]]),
        "pair": {"0": torch.tensor([6]), "1": torch.tensor([[1, 3]])},
        "tail": torch.tensor([[1, 0]], dtype=torch.int8),
    }
    expected = torch.tensor([[0.5, -2.0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0]])
    encoder = ObservationEncoder(space)
    assert encoder.out_features == 12
    assert torch.equal(encoder(obs), expected)
    assert torch.equal(encoder(as_tensordict(obs, (1,))), expected)


def test_zero_rows_of_a_space_that_starts_above_zero_do_no_harm() -> None:
    """Rows that are not valid are zero, whatever the space says."""
    encoder = ObservationEncoder(spaces.Discrete(3, start=5))
    assert torch.equal(encoder(torch.tensor([0, 7])), torch.tensor([[0.0, 0, 0], [0, 0, 1]]))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), (4, 84, 84)),
        (spaces.Box(0, 255, (96, 80, 3), np.uint8), (3, 96, 80)),
        (spaces.Box(0, 255, (3, 96, 3), np.uint8), None),
        (spaces.Box(0, 255, (84, 72), np.uint8), (1, 84, 72)),
        (spaces.Box(0, 1, (10, 10, 10), np.uint8), (10, 10, 10)),
        (spaces.Box(0, 1, (10, 10, 4), np.bool_), (4, 10, 10)),
        (spaces.Box(0, 255, (128,), np.uint8), None),
        (spaces.Box(0, 1, (3, 84, 84), np.float32), None),
        (spaces.Discrete(3), None),
    ],
)
def test_what_counts_as_an_image(space: Any, expected: tuple[int, ...] | None) -> None:
    assert image_shape(space) == expected


def test_channels_may_come_last() -> None:
    image = torch.randint(0, 256, (2, 40, 44, 3), dtype=torch.uint8)
    encoder = ObservationEncoder(spaces.Box(0, 255, (40, 44, 3), np.uint8))
    network = encoder.leaves[0].network
    assert isinstance(network, NatureCNN)
    expected = network(image.permute(0, 3, 1, 2).contiguous())
    torch.testing.assert_close(encoder(image), expected, rtol=1e-4, atol=1e-5)


def test_gray_images_need_no_channel() -> None:
    encoder = ObservationEncoder(spaces.Box(0, 255, (40, 40), np.uint8), "impala")
    assert encoder(torch.zeros(2, 40, 40, dtype=torch.uint8)).shape == (2, 256)


def test_the_size_of_the_image_chooses_the_network() -> None:
    small = ObservationEncoder(spaces.Box(0, 1, (4, 10, 10), np.uint8))
    large = ObservationEncoder(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    assert (small.out_features, large.out_features) == (128, 512)
    assert small.image_only
    assert large.image_only


def test_pixels_of_zero_and_one_are_not_scaled() -> None:
    for dtype in (np.uint8, np.bool_):
        flat = ObservationEncoder(spaces.Box(0, 1, (1, 8, 8), dtype), "mlp")
        ones = torch.ones(1, 1, 8, 8, dtype=torch.uint8 if dtype == np.uint8 else torch.bool)
        assert torch.equal(flat(ones), torch.ones(1, 64))


def test_vectors_of_bytes_are_divided_by_255_without_touching_the_input() -> None:
    """Elsewhere the observation was scaled in place."""
    encoder = ObservationEncoder(spaces.Box(0, 255, (2,), np.uint8))
    ram = torch.tensor([[255, 51]], dtype=torch.uint8)
    torch.testing.assert_close(encoder(ram), torch.tensor([[1.0, 0.2]]))
    assert ram.tolist() == [[255, 51]]


def test_scalars_are_vectors_of_one() -> None:
    encoder = ObservationEncoder(spaces.Box(-1, 1, ()))
    assert torch.equal(encoder(torch.tensor([0.5, 2.0])), torch.tensor([[0.5], [2.0]]))


def test_images_beside_vectors() -> None:
    space = spaces.Dict(
        camera=spaces.Box(0, 255, (3, 40, 40), np.uint8), speed=spaces.Box(-1, 1, (2,))
    )
    encoder = ObservationEncoder(space)
    features = encoder(zero_observation(space, 3))
    assert features.shape == (3, 514)
    assert not encoder.image_only


def test_zero_observation_has_the_dtypes_that_travel() -> None:
    space = spaces.Dict(
        a=spaces.Box(-1, 1, (2,), np.float64),
        b=spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,), np.uint8))),
    )
    obs: Any = zero_observation(space, 3)
    assert (obs["a"].dtype, obs["a"].shape) == (torch.float32, (3, 2))
    assert (obs["b"]["0"].dtype, obs["b"]["0"].shape) == (torch.int64, (3,))
    assert obs["b"]["1"].dtype == torch.uint8


def test_leaf_spaces_names_tuples_by_number() -> None:
    space = spaces.Tuple((spaces.Discrete(2), spaces.Dict(x=spaces.Discrete(3))))
    assert [path for path, _ in leaf_spaces(space)] == [("0",), ("1", "x")]


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"Text.*key 'note'"):
        ObservationEncoder(spaces.Dict(note=spaces.Text(3), x=spaces.Discrete(2)))
    with pytest.raises(SpaceError, match="encoder='nature' needs an image"):
        ObservationEncoder(spaces.Box(-1, 1, (4,)), "nature")
    with pytest.raises(UnknownNameError, match="Did you mean 'nature'"):
        ObservationEncoder(spaces.Box(-1, 1, (4,)), "natur")
    with pytest.raises(SpaceError, match="no numbers"):
        ObservationEncoder(spaces.Box(-1, 1, (0,)))


@pytest.mark.parametrize(
    ("space", "served"),
    [
        (spaces.Box(0, 255, (4, 40, 44), np.uint8), True),
        (spaces.Box(0, 255, (40, 44, 4), np.uint8), False),  # as wanted already
        (spaces.Box(0, 255, (40, 44), np.uint8), False),
        (spaces.Box(0, 255, (4, 10, 10), np.uint8), False),  # small images keep their layout
        (spaces.Box(-1, 1, (4,), np.float32), False),
        (spaces.Dict({"image": spaces.Box(0, 255, (4, 40, 44), np.uint8)}), True),
        (
            spaces.Dict(
                {"a": spaces.Box(0, 255, (4, 40, 44), np.uint8), "b": spaces.Box(-1, 1, (2,))}
            ),
            False,
        ),
    ],
)
def test_images_alone_are_laid_out_beforehand(space: spaces.Space[Any], served: bool) -> None:
    encoder = ObservationEncoder(space)
    layout = image_layout(nn.Sequential(encoder))
    assert (layout is not None) == served
    if layout is not None and isinstance(space, spaces.Box):
        image = torch.from_numpy(np.stack([space.sample() for _ in range(3)]))
        laid = layout(image)
        assert torch.equal(laid, image)
        assert laid.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(encoder(laid), encoder(image))
