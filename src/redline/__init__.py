"""Redline: deep reinforcement learning in PyTorch at the speed the machine allows.

```python
import redline

run = redline.train("ppo", env="CartPole-v1", total_env_steps=100_000, seed=1)
print(run.evaluate(episodes=20).return_mean)
```

| name | what it is |
|---|---|
| `train` | train an agent, or go on with a run |
| `load` | a run from its directory |
| `sweep` | many runs: settings x seeds, on slots of cores and GPUs |
| `tune` | a search for hyperparameters |
| `compare` | tables and figures over sweeps and runs |
| `make_vec` | environments as Redline steps them |
| `make_policy` | an actor-critic for given spaces |
| `Run`, `Rollout` | what `train` gives, what collectors give |
| `RunConfig` | all settings of a run, as `config.json` holds them |
| `StopAtReturn`, `Curriculum`, `SaveBest` | callbacks for `train(callbacks=[...])` |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redline.data import Rollout
    from redline.envs import make_vec
    from redline.launch.comparison import compare
    from redline.launch.sweep import sweep, tune
    from redline.policies import make_policy
    from redline.train.callbacks import Curriculum, SaveBest, StopAtReturn
    from redline.train.runs.run import Run
    from redline.train.runs.run import load_run as load
    from redline.train.settings import RunConfig
    from redline.train.typed import train

__version__ = "0.2.0"

__all__ = [
    "Curriculum",
    "Rollout",
    "Run",
    "RunConfig",
    "SaveBest",
    "StopAtReturn",
    "__version__",
    "compare",
    "load",
    "make_policy",
    "make_vec",
    "sweep",
    "train",
    "tune",
]

_HOMES = {
    "Curriculum": ("redline.train.callbacks", "Curriculum"),
    "SaveBest": ("redline.train.callbacks", "SaveBest"),
    "StopAtReturn": ("redline.train.callbacks", "StopAtReturn"),
    "compare": ("redline.launch.comparison", "compare"),
    "Rollout": ("redline.data", "Rollout"),
    "Run": ("redline.train.runs.run", "Run"),
    "RunConfig": ("redline.train.settings", "RunConfig"),
    "load": ("redline.train.runs.run", "load_run"),
    "make_policy": ("redline.policies", "make_policy"),
    "make_vec": ("redline.envs", "make_vec"),
    "sweep": ("redline.launch.sweep", "sweep"),
    "tune": ("redline.launch.sweep", "tune"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import redline` itself costs nothing."""
    if name == "train":
        return importlib.import_module("redline.train")
    if name not in _HOMES:
        raise AttributeError(f"module 'redline' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    """The public names, which are imported when they are used."""
    return sorted(__all__)
