"""Updates and acting with convolutional networks: what is written, on the kernels' layers.

No loss is written again here. An update runs the algorithm's own `update` on a twin, which shares
all state with the algorithm and differs in its networks: copies on the same parameters and buffers,
in which known layers compute by `convolution`. Acting likewise runs the policy's own `act` on a
copy.

oneDNN computes with weights in an order of its own, and reorders plain ones at every pass. With a
batch to learn from that does not show. With the few images that are acted on at a time it takes a
third as long as the products. So a copy that acts keeps its weights in that order for a rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from redline.algos.a2c import A2C
from redline.algos.appo import APPO
from redline.algos.ddpg import DDPG
from redline.algos.dqn import DQN
from redline.algos.impala import Impala
from redline.algos.ppo import PPO
from redline.algos.r2d1 import R2D1, RecurrentValues
from redline.algos.reinforce import Reinforce
from redline.algos.sac import SAC, DiscreteSAC
from redline.algos.td3 import TD3
from redline.data import Array
from redline.engines.cpu import convolution
from redline.engines.cpu.convolution import affine, dense, is_large, prefers_onednn, rectified
from redline.engines.cpu.known_parts import (
    VECTOR_PARTS,
    NotServedError,
    require_modules,
    require_type,
)
from redline.engines.engine import twin
from redline.engines.watch import NetworksWatch
from redline.models.convolution import (
    ImpalaResNet,
    MinAtarCNN,
    NatureCNN,
    Pixels,
    ResidualBlock,
    ScaledConv2d,
)
from redline.models.noisy import NoisyLinear
from redline.models.observation_encoder import ImageLeaf
from redline.models.q_heads import CategoricalValueHead, ImplicitQuantileHead, QuantileHead
from redline.models.recurrent import GRUCore, LSTMCore
from redline.policies.action_heads import (
    BernoulliHead,
    JointHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
)
from redline.policies.actors import CategoricalActor
from redline.policies.policy import ActOutput, Conditioning, Policy, State

Layer: TypeAlias = Callable[[Tensor], Tensor]
ModuleT = TypeVar("ModuleT", bound=nn.Module)

_NETWORKS = (NatureCNN, MinAtarCNN, ImpalaResNet)
# The modules run as they are written, so what counts is only that a copy of them computes the same:
# that they keep nothing between calls but parameters and buffers.
_IMAGE_PARTS = VECTOR_PARTS | {
    *_NETWORKS, ImageLeaf, Pixels, ResidualBlock, ScaledConv2d, nn.Conv2d, nn.Flatten, nn.MaxPool2d,
    nn.ELU, nn.GELU, nn.SiLU, CategoricalValueHead, QuantileHead, ImplicitQuantileHead, NoisyLinear,
    LSTMCore, GRUCore, BernoulliHead, JointHead, MultiCategoricalHead, SquashedGaussianHead,
    CategoricalActor,
}  # fmt: skip
_CONVOLUTIONS = (nn.Conv2d, ScaledConv2d)
_LEAST_STEPS = 16  # of a rollout, for laying weights out to pay

# Algorithm -> its attributes that hold networks.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((PPO, APPO, A2C, Impala, Reinforce), ("policy",)),
    **dict.fromkeys((DQN, R2D1), ("policy", "target_policy")),
    **dict.fromkeys((SAC, DiscreteSAC), ("policy", "critic", "target")),
    **dict.fromkeys((TD3, DDPG), ("policy", "critic", "target", "target_policy")),
}


def has_images(algorithm: Any) -> bool:
    """Whether it is of a known type, and one of its networks is convolutional."""
    networks = (getattr(algorithm, name) for name in _ATTRIBUTES.get(type(algorithm), ()))
    return any(type(part) in _NETWORKS for each in networks for part in each.modules())


def image_update(algorithm: Any) -> Callable[[Any], Any]:
    """The algorithm's own update, its convolutional networks computed by the kernels.

    Args:
        algorithm: which learns; it is not changed.

    Raises:
        NotServedError: if a part is not known, or there is nothing that would be quicker.
    """
    require_type(algorithm, tuple(_ATTRIBUTES), "the algorithm")
    names = _ATTRIBUTES[type(algorithm)]
    networks = {name: getattr(algorithm, name) for name in names}
    require_modules(networks, _IMAGE_PARTS)
    if convolution._convolution is None and not prefers_onednn():
        raise NotServedError("the C extension for convolutions was not built")
    if any(not parameter.is_cpu for each in networks.values() for parameter in each.parameters()):
        raise NotServedError("the networks are not on the CPU")
    copies: dict[str, Any] = {name: _copy_of(module) for name, module in networks.items()}
    for module in copies.values():
        for part in list(module.modules()):
            if type(part) in _NETWORKS:
                part.network = KernelNetwork(*part.network)  # type: ignore[union-attr,arg-type]
    if type(algorithm) is R2D1:  # it holds its networks once more, with their cores
        copies["_online_net"] = RecurrentValues(copies["policy"], copies["policy"].core)
        target = copies["target_policy"]
        copies["_target_net"] = RecurrentValues(target, target.core)
    return twin(algorithm, **copies).update


def _copy_of(module: ModuleT) -> ModuleT:
    """A copy on the same parameters and buffers."""
    shared = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})


class KernelNetwork(nn.Sequential):
    """Layers of a convolutional network, those that have kernels computed by them.

    Convolutions at its beginning that are followed by a ReLU are one operation with it. That takes
    pixels as they are, so `Pixels` before them is left out.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] pixels -> [N, out_features]."""
        layers, x, done = list(self), input, 0
        for place in range(int(type(layers[0]) is Pixels), len(layers) - 1, 2):
            layer = layers[place]
            if type(layer) not in _CONVOLUTIONS or type(layers[place + 1]) is not nn.ReLU:
                break
            if not convolution.serves(layer, x):  # type: ignore[arg-type]
                break
            x = rectified(layer, x, getattr(layer, "scale", 1.0))  # type: ignore[arg-type]
            done = place + 2
        for layer in layers[done:]:
            x = dense(layer, x) if type(layer) is nn.Linear else layer(x)
        return x


class PackedActor:
    """Acts in place of a policy, with the weights of its `NatureCNN` laid out once per rollout.

    Args:
        policy: its parameters are read at each `begin`; it is not changed.
        num_images: B.

    Attributes:
        is_rowwise: False: `act` takes all environments' observations as tensors.
        watch: says whether the policy is still what this was made for.

    Raises:
        NotServedError: if a part is not known, or there is no oneDNN.
    """

    is_rowwise = takes_arrays = False
    watch: NetworksWatch

    def __init__(self, policy: Policy, num_images: int) -> None:
        require_modules({"policy": policy}, _IMAGE_PARTS)
        onednn = torch.backends.mkldnn
        parts = [part for part in policy.modules() if type(part) is NatureCNN]
        if not parts or not onednn.is_available() or not onednn.enabled:
            raise NotServedError("there is no NatureCNN, or no oneDNN")
        if any(not p.is_cpu or p.dtype != torch.float32 for p in policy.parameters()):
            raise NotServedError("the weights are not float32 on the CPU")
        self._num_images, self._copy = num_images, _copy_of(policy)
        self._parts = [part for part in self._copy.modules() if type(part) is NatureCNN]
        self._networks: list[nn.Module] = [part.network for part in self._parts]

    def serves(self, conditioning: Mapping[str, Tensor] | None) -> bool:
        """True: the policy's own `act` is what runs."""
        del conditioning
        return True

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """Lay out the present weights; what changes afterwards is not seen until the next call."""
        del conditioning, noise
        for part, network in zip(self._parts, self._networks, strict=True):
            shape = (self._num_images, *part.shape)
            part.network = PackedNetwork(list(network.children()), shape)  # type: ignore[assignment]

    def act(
        self,
        obs: Any,
        state: State,
        noise: Tensor | None = None,
        conditioning: Conditioning | None = None,
    ) -> ActOutput:
        """As `Policy.act`."""
        return self._copy.act(obs, state, noise, conditioning)


def packed_actor(policy: Any, num_envs: int, rollout_length: int) -> PackedActor:
    """What acts for a policy on images.

    Raises:
        NotServedError: if a part is not known, or a rollout is too short for it to pay.
    """
    if rollout_length < _LEAST_STEPS:
        raise NotServedError("laying weights out does not pay for so few steps")
    return PackedActor(policy, num_envs)


class PackedNetwork(nn.Module):
    """Images to features by weights as they were when this was made, without gradient.

    Args:
        layers: convolutions and dense layers get copies of their weights, and are joined with a
            ReLU that follows; others are called as they are.
        shape: (N, C, H, W) of most batches; any other N is served, too.
    """

    def __init__(self, layers: list[nn.Module], shape: tuple[int, ...]) -> None:
        super().__init__()
        self._packed: list[Layer] = []
        left = list(layers)
        while left:
            layer = left.pop(0)
            is_convolution = type(layer) in _CONVOLUTIONS
            if not (is_convolution or type(layer) is nn.Linear) or layer.bias is None:
                self._packed.append(layer)
                continue
            relu = bool(left) and type(left[0]) is nn.ReLU
            if relu:
                left.pop(0)
            if is_convolution:
                self._packed.append(_packed_convolution(layer, shape, relu=relu))  # type: ignore[arg-type]
                shape = _shape_after(layer, shape)  # type: ignore[arg-type]
            else:
                self._packed.append(_packed_dense(layer, shape[0], relu=relu))  # type: ignore[arg-type]

    def forward(self, image: Tensor) -> Tensor:
        """[N, out_features]."""
        for layer in self._packed:
            image = layer(image)
        return image


def _packed_convolution(layer: nn.Conv2d, shape: tuple[int, ...], *, relu: bool) -> Layer:
    where = (layer.padding, layer.stride, layer.dilation, layer.groups)
    weight, bias = layer.weight.detach(), layer.bias.detach().clone()  # type: ignore[union-attr]
    if type(layer) is ScaledConv2d:
        weight = weight * layer.scale
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *where, shape)
    what = "relu" if relu else "none"

    def convolve(image: Tensor) -> Tensor:
        return torch.ops.mkldnn._convolution_pointwise(image, packed, bias, *where, what, [], "")

    return convolve


def _packed_dense(layer: nn.Linear, num_images: int, *, relu: bool) -> Layer:
    weight, bias = layer.weight.detach(), layer.bias.detach().clone()
    if not is_large(num_images, layer.in_features, layer.out_features):
        # By the library that the plain layer goes to as well: there is nothing to lay out.
        weight = weight.clone().t()
        return lambda features: affine(features, weight, bias, relu=relu)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, num_images)
    what = "relu" if relu else "none"

    def multiply(features: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(features, packed, bias, what, [], "")

    return multiply


def _shape_after(layer: nn.Conv2d, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what a convolution makes of [N, C, H, W].

    No network here pads. A wrong size would cost time only: the layout is chosen by it.
    """
    sides = zip(shape[2:], layer.kernel_size, layer.stride, strict=True)
    return (
        shape[0],
        layer.out_channels,
        *((side - kernel) // step + 1 for side, kernel, step in sides),
    )
