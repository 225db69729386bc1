"""Environments whose whole batch lives on one device, as tensors.

| module | what it holds |
|---|---|
| `ids` | which ids there are, and the originals that they follow |
| `vec_env` | `DeviceVecEnv`: `VecEnv` with tensors in place of arrays |
| `native` | games written in tensor operations: time limit, autoreset, episode accounting |
| `mirrored` | any `VecEnv`, its observations delivered to a device and its actions fetched |
| `backend` | a native game behind the numpy contract of every other back end |
| `randomness` | counter-based random numbers, one stream per environment |
| `game` | what one game supplies; one file per game beside it |

Nothing is imported here: a worker process that steps other environments needs no torch.
"""
