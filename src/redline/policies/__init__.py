"""Policies: observation to distribution to action, log-probability and value."""
