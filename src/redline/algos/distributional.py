"""Losses on distributions of the return: C51's projection, quantile regression."""

from __future__ import annotations

import torch
from torch import Tensor


def project_categorical(values: Tensor, probability: Tensor, atoms: Tensor) -> Tensor:
    """Move the mass of a distribution onto evenly spaced atoms.

    Bellemare et al. 2017, eq. 7: each value is clipped to the atoms' range and its mass
    shared between the two atoms beside it, by nearness:

        m_i = sum_j clip(1 - |clip(x_j, z_0, z_last) - z_i| / dz, 0, 1) p_j

    In this form a value that is exactly an atom gives it all of its mass, and the sum is
    taken in a fixed order on every device.

    Args:
        values: [N, J] x, where the mass lies.
        probability: [N, J] p, how much.
        atoms: [Z] z, evenly spaced, rising.

    Returns:
        [N, Z] m, which sums to what `probability` sums to.
    """
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    clipped = torch.minimum(torch.maximum(values, atoms[0]), atoms[-1])
    distance = (clipped.unsqueeze(1) - atoms.unsqueeze(-1)).abs() / spacing  # [N, Z, J]
    return ((1.0 - distance).clamp(0.0, 1.0) @ probability.unsqueeze(-1)).squeeze(-1)


def categorical_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """KL(target || softmax(logits)), in nats: the cross-entropy less what cannot be learned.

    Bellemare et al. 2017, algorithm 1, minimizes the cross-entropy, whose gradient is the
    same; the divergence is what Rainbow (Hessel et al. 2018) prioritizes by.

    Args:
        logits: [N, Z]; carries gradient.
        target: [N, Z] probabilities, constant.

    Returns:
        [N], not negative but for rounding.
    """
    cross_entropy = -(target * logits.log_softmax(-1)).sum(-1)
    return cross_entropy + torch.xlogy(target, target).sum(-1)


def quantile_huber_loss(
    predicted: Tensor, fractions: Tensor, target: Tensor, threshold: float
) -> Tensor:
    """Regression of quantiles on samples of the target distribution.

    Dabney et al. 2018 (IQN), arXiv:1806.06923, eqs. 3 and 8; QR-DQN's (arXiv:1710.10044, eq. 10 and
    algorithm 1) is the same but for the division by kappa:

        sum_i mean_j |tau_i - 1{u_ij < 0}| L_kappa(u_ij) / kappa,   u_ij = target_j - predicted_i

    with L_kappa(u) = u^2 / 2 where |u| <= kappa, else kappa (|u| - kappa / 2).

    Args:
        predicted: [N, Z] quantiles; carries gradient.
        fractions: [N, Z] (or [Z]) tau, of which these are the quantiles, in (0, 1).
        target: [N, J] samples of the target, constant.
        threshold: kappa > 0.

    Returns:
        [N] non-negative.
    """
    error = target.unsqueeze(1) - predicted.unsqueeze(-1)  # [N, Z, J]
    size = error.abs()
    small = size.clamp(max=threshold)
    huber = small * (size - 0.5 * small)
    below = (error.detach() < 0).to(error.dtype)
    weight = (fractions.unsqueeze(-1) - below).abs()
    return (weight * huber).mean(-1).sum(-1) / threshold
