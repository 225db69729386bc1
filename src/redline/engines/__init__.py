"""Engines: how an algorithm's update, and acting, are run.

| module | what it holds |
|---|---|
| `engine` | `choose_engine`: a callable in place of an algorithm's `update`, and why that one |
| `self_check` | `CheckedUpdate`: that callable held to the written update on some batches |
| `compile`, `cudagraph` | steps through torch.compile, and as captured CUDA graphs |
| `cpu` | the only place of hand-written kernels |

`cpu` has three doors: `update_for(algorithm)`, `actor_for(policy, ...)` and
`kernel_instructions()`. Nothing outside of this package imports anything else of it, and everything
works without it.
"""
