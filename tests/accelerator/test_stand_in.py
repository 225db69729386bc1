"""The stand-in refuses and counts what a CUDA device would refuse and wait for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from tests.accelerator.stand_in import StandInDevice

READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x[0]),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "numpy": lambda x: x.numpy(force=True),
    "copy_": lambda x: torch.zeros(3).copy_(x),
    "mask": lambda x: x[x > 0],
    "masked_assignment": lambda x: x.__setitem__(x > 0, 0.0),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "equal": lambda x: torch.equal(x, x + 1),
    "synchronize": lambda x: torch.standin.synchronize(),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("name", READS)
def test_every_wait_of_the_host_is_counted_with_its_line(
    name: str, accelerator: StandInDevice
) -> None:
    x = torch.tensor([1.0, 0.0, 2.0]).to("standin")
    assert not accelerator.read_backs
    READS[name](x)
    assert len(accelerator.read_backs) >= 1
    assert "test_stand_in.py" in accelerator.read_backs[0].where


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: nn.functional.mse_loss(x, torch.ones(3)),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: nn.Linear(3, 1)(x),
        lambda x: x.normal_(generator=torch.Generator()),
    ],
)
def test_what_lies_elsewhere_is_refused(mix: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"same device|device type"):
        mix(torch.ones(3, device="standin"))


def test_a_number_of_the_host_may_stand_beside_a_tensor(accelerator: StandInDevice) -> None:
    x = torch.ones(3, device="standin")
    assert (x * torch.tensor(2.0) + 1).device.type == "standin"
    assert not accelerator.read_backs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_give_the_numbers_of_the_cpu(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4)
    there = copy.deepcopy(layer).to("standin")
    x = torch.randn(5, 2, 3)
    wanted, _ = layer(x)
    found, _ = there(x.to("standin"))
    wanted.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(found.detach().cpu(), wanted.detach())
    for own, other in zip(there.parameters(), layer.parameters(), strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.cpu(), other.grad)


def test_a_shape_changed_in_place_is_the_tensors(accelerator: StandInDevice) -> None:
    x = torch.arange(3.0).to("standin").unsqueeze(0)
    accelerator.reset()
    assert x.t_().shape == (3, 1)
    assert x.unsqueeze_(0).shape == (1, 3, 1)
    assert x.transpose_(0, 1).shape == (3, 1, 1)
    assert x.squeeze_().shape == (3,)
    assert accelerator.num_launches() == 0
    assert x.tolist() == [0.0, 1.0, 2.0]
    square = torch.ones(2, 2).to("standin").t_()
    assert square.stride() == (1, 2)


def test_a_number_copied_into_a_tensor_is_a_copy(accelerator: StandInDevice) -> None:
    x = torch.zeros(2, device="standin")
    accelerator.reset()
    number: Any = 0.5
    assert x.copy_(number).tolist() == [0.5, 0.5]
    assert accelerator.copied_bytes == 4 + 8  # the number there, and the list back
    assert accelerator.launches == {"copy": 2}


@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (4, 3, 2, 2)])
def test_orthogonal_weights_are_made_on_the_device(shape: tuple[int, ...]) -> None:
    """Of fewer rows than columns, they are turned in place."""
    torch.manual_seed(0)
    made = nn.init.orthogonal_(torch.empty(shape, device="standin"))
    torch.manual_seed(0)
    wanted = nn.init.orthogonal_(torch.empty(shape))
    assert made.shape == shape
    assert made.tolist() == wanted.tolist()


def test_generators_tensordicts_and_launches(accelerator: StandInDevice) -> None:
    generator = torch.Generator("standin").manual_seed(3)
    assert generator.device.type == "standin"
    first = torch.randn(4, device="standin", generator=generator)
    generator.manual_seed(3)
    assert (
        first.cpu().tolist() == torch.randn(4, device="standin", generator=generator).cpu().tolist()
    )
    accelerator.reset()
    batch = TensorDict({"x": torch.ones(2, 8)}, batch_size=[2]).to("standin")
    assert batch["x"].device.type == "standin"
    assert accelerator.copied_bytes == 64
    accelerator.reset()
    (batch["x"].view(4, 4)[:2] * 2.0).sum()  # a view launches nothing
    assert accelerator.launches == {"mul": 1, "sum": 1}
