"""What is said of priorities that cannot be."""

from __future__ import annotations

from redline.errors import ConfigError


class UnsoundPriorityError(ConfigError):
    """A priority is NaN or infinite: what learns has diverged. A run says so in its own words."""
