"""Rollouts of recorded steps: other collectors step environments, this one draws from data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from redline.collect.collector import Collector
from redline.data import Array, Rollout, as_tensordict, map_leaves, to_tensor
from redline.errors import ConfigError, IncompatibleCheckpointError
from redline.generator_states import set_numpy_state
from redline.offline import RecordedEpisodes
from redline.policies.policy import Policy

_STREAM = 4  # keeps what is drawn from data apart from the run's other streams


class RecordedCollector(Collector):
    """Draws rollouts [1, N] of single steps, uniformly and with replacement.

    A rollout holds obs, action, reward, terminated, truncated and valid, and no episodes: none
    ended while the run went on.

    Args:
        episodes: as Redline carries them.
        policy: the learner's, which says how actions are kept.
        rows: N.
        seed: of the run.
    """

    def __init__(self, episodes: RecordedEpisodes, policy: Policy, *, rows: int, seed: int) -> None:
        self.num_envs, self.rollout_length = rows, 1
        self.version = 0
        self.restorable = None
        self._sha256 = episodes.sha256()
        episodes = replace(episodes, action=policy.stored_action(episodes.action))
        self._steps = {
            name: getattr(episodes, name)
            for name in ("obs", "action", "reward", "terminated", "truncated")
        }
        self._num_steps = episodes.num_steps
        self._valid = np.ones(rows, np.bool_)
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))

    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        """Nothing to begin: a rollout is drawn in `_finish`."""

    def _finish(self) -> Rollout:
        rows = self._rng.integers(self._num_steps, size=self.num_envs)
        drawn = {
            name: map_leaves(lambda leaf: leaf[rows][None], tree)
            for name, tree in self._steps.items()
        }
        shape = (1, self.num_envs)
        tensors = {n: as_tensordict(to_tensor(tree), shape) for n, tree in drawn.items()}
        tensors["valid"] = to_tensor(self._valid[None].copy())
        return Rollout(
            steps=TensorDict(tensors, batch_size=list(shape)),
            initial_state={},
            last_obs={},
            version=self.version,
            num_running=0,
        )

    def _partial(self) -> Rollout:
        return self._finish()

    def _limit_episodes(self, quota: Array | None) -> None:
        raise ConfigError(
            "recorded data are drawn step by step, not by episodes. Leave begin_episodes out."
        )

    def update_weights(self, version: int) -> None:
        """Note the number: no weights act here."""
        self.version = version

    def state_dict(self) -> dict[str, Any]:
        """The generator, and a fingerprint of the data."""
        return {"generator": self._rng.bit_generator.state, "data_sha256": self._sha256}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`.

        Raises:
            IncompatibleCheckpointError: if the data are others.
        """
        if state["data_sha256"] != self._sha256:
            raise IncompatibleCheckpointError(
                f"the data of this run have changed: their SHA-256 is {self._sha256[:12]}..., and "
                f"it was {state['data_sha256'][:12]}... when the checkpoint was written. Put the "
                f"old data back, or begin a new run with --init-from."
            )
        set_numpy_state(self._rng, state["generator"])
        return None

    def close(self) -> None:
        """Nothing is open."""
