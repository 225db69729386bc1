"""Seeds of environments."""

from __future__ import annotations

import pytest

from redline.envs import env_seed
from redline.errors import ConfigError


def test_seeds_are_pure_functions_of_run_and_index() -> None:
    seeds = [env_seed(0, i) for i in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [env_seed(0, i) for i in range(100)]
    with pytest.raises(ConfigError, match="negative"):
        env_seed(-1, 0)
