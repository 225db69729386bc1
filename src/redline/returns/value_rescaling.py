"""An invertible squashing of values, in place of clipped rewards.

Pohlen et al. 2018, arXiv:1805.11593, section 3.2; used by R2D2 (Kapturowski et al. 2019).
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-3  # the slope at infinity, which keeps the inverse Lipschitz


def rescale(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Squash values.

    Pohlen et al. 2018, proposition A.2: h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x.

    Args:
        x: [...] values.
        epsilon: > 0.

    Returns:
        [...] h(x).
    """
    magnitude = x.abs()
    # sqrt(m + 1) - 1 in the form that loses no digits near 0.
    squashed = magnitude / ((magnitude + 1.0).sqrt() + 1.0)
    return x.sign() * squashed + epsilon * x


def unrescale(y: Tensor, epsilon: float = EPSILON) -> Tensor:
    """The inverse of `rescale`.

    Pohlen et al. 2018, proposition A.2 (iii): with w = sqrt(|x| + 1) the equation h(x) = y is
    epsilon w^2 + w - (1 + epsilon + |y|) = 0 for |y|. Its root, less 1, without cancellation:

        u = w - 1 = 2 |y| / (1 + 2 epsilon + sqrt((1 + 2 epsilon)^2 + 4 epsilon |y|))
        x = sign(y) (u^2 + 2 u)

    Args:
        y: [...] squashed values.
        epsilon: as for `rescale`.

    Returns:
        [...] x with h(x) = y.
    """
    magnitude, slope = y.abs(), 1.0 + 2.0 * epsilon
    root = 2.0 * magnitude / (slope + (slope * slope + 4.0 * epsilon * magnitude).sqrt())
    return y.sign() * root * (root + 2.0)
