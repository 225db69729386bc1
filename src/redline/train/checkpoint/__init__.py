"""Checkpoints: written whole, verified when they are read, never executed."""
