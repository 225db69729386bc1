"""Algorithms: each file reads downwards from losses to update.

An algorithm sees a policy and a batch, never environments, collectors or replay. The
configs live in `algos.configs`, which imports no torch, so that help answers at once.

| name | file | config |
|---|---|---|
| `ppo` | `algos/ppo.py` | `PPOConfig` |
| `a2c` | `algos/a2c.py` | `A2CConfig` |
| `reinforce` | `algos/reinforce.py` | `ReinforceConfig` |
"""
