"""Linear layers with learned noise on their weights.

Fortunato et al. 2018, arXiv:1706.10295, section 3.1 and eqs. 9-11 (factorised noise). With f(x) =
sign(x) sqrt(|x|), p inputs and q outputs:

    y = (mu_w + sigma_w * f(e_q) f(e_p)^T) x + mu_b + sigma_b * f(e_q)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redline.errors import ConfigError


class NoisyLinear(nn.Module):
    """A linear layer whose noise is drawn when told, not when called.

    The sample is a part of `state_dict`, so that a copy of the network acts alike. It is
    zero, and the layer is its mean, until `resample` is called.

    Args:
        in_features: p.
        out_features: q.
        std: sigma_0, the initial sigma times the square root of p.

    Raises:
        ConfigError: if a number is not positive.
    """

    input_noise: Tensor
    output_noise: Tensor

    def __init__(self, in_features: int, out_features: int, std: float = 0.5) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1 or not std > 0:
            raise ConfigError(
                f"a noisy layer from {in_features} to {out_features} features with std={std} is "
                f"empty or without noise. Give positive numbers."
            )
        self.in_features, self.out_features = in_features, out_features
        bound = in_features**-0.5
        shape = (out_features, in_features)
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.weight_std = nn.Parameter(torch.full(shape, std * bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.bias_std = nn.Parameter(torch.full((out_features,), std * bound))
        self.register_buffer("input_noise", torch.zeros(in_features))
        self.register_buffer("output_noise", torch.zeros(out_features))

    @torch.no_grad()
    def resample(self, generator: torch.Generator) -> None:
        """Draw new noise from a generator on the layer's device."""
        for noise in (self.input_noise, self.output_noise):
            drawn = torch.randn(noise.shape, generator=generator, device=noise.device)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: Tensor, noisy: bool = True) -> Tensor:
        """[..., p] -> [..., q], with the present noise or with the mean weights."""
        if not noisy:
            return nn.functional.linear(x, self.weight, self.bias)
        # The rank-one noise is never multiplied out to a matrix of its own.
        noise = nn.functional.linear(x * self.input_noise, self.weight_std, self.bias_std)
        return torch.addcmul(
            nn.functional.linear(x, self.weight, self.bias), noise, self.output_noise
        )
