"""Hand-written kernels for the CPU, and the updates and the acting that use them."""
