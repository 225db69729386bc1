"""Pure estimators of returns and advantages, time-major, each with its equation and source."""

from redline.returns.discounted import discounted_return, gae
from redline.returns.value_rescaling import rescale, unrescale
from redline.returns.vtrace import VTrace, vtrace

__all__ = ["VTrace", "discounted_return", "gae", "rescale", "unrescale", "vtrace"]
