"""Programs without a mark: how much of their time the profiler leaves in `other`."""
