"""Predictions of `redline advise`, put to the test on programs of others."""
