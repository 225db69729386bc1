"""Attacks on runs, sessions and the command line; see `__main__`."""
