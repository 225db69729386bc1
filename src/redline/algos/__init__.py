"""Algorithms: each file reads downwards from config to losses to update.

An algorithm sees a policy and a batch, never environments, collectors or replay.

| name | file | config |
|---|---|---|
| `ppo` | `algos/ppo.py` | `PPOConfig` |
| `a2c` | `algos/a2c.py` | `A2CConfig` |
| `reinforce` | `algos/reinforce.py` | `ReinforceConfig` |
| `impala` | `algos/impala.py` | `ImpalaConfig` |
| `appo` | `algos/appo.py` | `APPOConfig` |
| `dqn` | `algos/dqn.py`, losses in `distributional.py` | `DQNConfig` |
| `r2d1` | `algos/r2d1.py` | `R2D1Config` |
| `ddpg` | `algos/ddpg.py` | `DDPGConfig` |
| `td3` | `algos/td3.py` | `TD3Config` |
| `sac` | `algos/sac.py` | `SACConfig` |
| `diayn` | `algos/diayn.py` | `DIAYNConfig` |
| `bc` | `algos/bc.py` | `BCConfig` |

What the Q-learners share is in `q_learning.py`, what the actor-critics share in `critics.py` and
`off_policy_actor_critic.py`. `algorithm.py` says what an algorithm is, `registry.py` finds one by
its name or class, `presets.py` holds named hyperparameters.
"""
