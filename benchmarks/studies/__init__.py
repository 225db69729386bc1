"""Case studies with the profiler, after those of the RL-Scope paper (Gleeson et al. 2021)."""
