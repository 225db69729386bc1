"""Range checks shared by the configs; each error names the value, the reason and the fix."""

from __future__ import annotations

import math

from redline.errors import ConfigError


def require_positive(**values: float) -> None:
    """Raise ConfigError for the first value that is not above zero, or infinite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name}={value} must be above 0 and finite. Give such a number.")


def require_not_negative(**values: float) -> None:
    """Raise ConfigError for the first value below zero, or infinite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name}={value} must be finite and not negative. Give 0 or more.")


def require_finite(**values: float) -> None:
    """Raise ConfigError for the first value that is infinite or no number."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ConfigError(f"{name}={value} must be a finite number. Give one.")


def require_fraction(**values: float) -> None:
    """Raise ConfigError for the first value outside [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} must lie between 0 and 1, both included.")


def require_importance_bounds(rho_bar: float, c_bar: float) -> None:
    """Raise ConfigError unless 0 < c_bar <= rho_bar: Espeholt et al. 2018, section 4.1."""
    require_positive(rho_bar=rho_bar, c_bar=c_bar)
    if c_bar > rho_bar:
        raise ConfigError(
            f"c_bar={c_bar} is above rho_bar={rho_bar}: V-trace takes a correction no further "
            f"back than it would count by itself. Use a c_bar of at most {rho_bar}."
        )
