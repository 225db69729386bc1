"""Environments seen as tensors on one device.

| module | what it holds |
|---|---|
| `vec_env` | `DeviceVecEnv`: `VecEnv` with tensors in place of arrays |
| `mirrored` | any `VecEnv`, its observations delivered to a device and its actions fetched |

Nothing is imported here: a worker process that steps other environments needs no torch.
"""
