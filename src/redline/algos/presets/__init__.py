"""Named hyperparameters of the built-in algorithms. Imports nothing: help must answer at once.

Each table is one algorithm's `presets`: name -> settings of the run, the network and the
algorithm. A preset named after a family of environments is taken for those by itself
(`train/presets.py`). A variant, such as rainbow, is laid over what the family gives.

`SOURCES` says where each set comes from. What comes from others is in Redline's names: a batch size
becomes a number of minibatches, gradient steps become a replay ratio, an interval of the target
network counts updates, and what only generalized state-dependent exploration has is left out.
"""

from redline.algos.presets.actor_critic import BC, CROSSQ, DDPG, DIAYN, SAC, TD3, TQC, WIDE
from redline.algos.presets.on_policy import A2C, IMPALA, PPO, REINFORCE
from redline.algos.presets.q_learning import (
    DQN,
    DQN_DEFAULTS,
    DQN_VARIANT_PRESETS,
    DQN_VARIANTS,
    R2D1,
    R2D1_DEFAULTS,
)
from redline.algos.presets.sources import SOURCES

__all__ = [
    "A2C",
    "BC",
    "CROSSQ",
    "DDPG",
    "DIAYN",
    "DQN",
    "DQN_DEFAULTS",
    "DQN_VARIANTS",
    "DQN_VARIANT_PRESETS",
    "IMPALA",
    "PPO",
    "R2D1",
    "R2D1_DEFAULTS",
    "REINFORCE",
    "SAC",
    "SOURCES",
    "TD3",
    "TQC",
    "WIDE",
]
