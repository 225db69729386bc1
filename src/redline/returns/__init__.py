"""returns."""
