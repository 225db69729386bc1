"""What every test process is told before torch is loaded."""

from __future__ import annotations

import os

# As a run tells its own process (`redline.train.process`): several test processes share the cores,
# and OpenMP's idle threads would keep them from each other for milliseconds at a time.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
