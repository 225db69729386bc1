"""Back ends: what steps environments, each behind the same contract."""
