"""How an update and acting are run: eager, compiled, captured, or by kernels for the CPU."""
