"""Environments behind one contract, whatever the back end."""
