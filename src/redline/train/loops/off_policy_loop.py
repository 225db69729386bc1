"""The off-policy loop: what is collected goes into replay, updates draw from there.

Updates per iteration follow the replay ratio:

    updates owed += replay_ratio * env_steps collected / samples per update

Whole updates are made at once, the remainder is carried to the next iteration, so that the
ratio holds exactly over a run whatever T, B and the batch size are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from redline.algos.algorithm import OffPolicyAlgorithm
from redline.algos.config import OffPolicyConfig
from redline.data import Rollout, SequenceBatch, as_tensordict
from redline.devices import exact_device
from redline.engines.sampled import SampledUpdates
from redline.engines.staged_copies import StagedCopies
from redline.errors import CorruptCheckpointError
from redline.generator_states import (
    begins_anew,
    seed_after,
    set_numpy_state,
    set_torch_state,
)
from redline.profile import marks
from redline.replay import Replay
from redline.replay.hindsight import HindsightReplay
from redline.train.checkpoint.store import Checkpoint
from redline.train.loops.loop import TrainLoop
from redline.train.settings import RunConfig

_REPLAY, _LEARNING = marks.operation("replay"), marks.operation("learning")
_REPLAY_STREAM = 3  # keeps what is drawn from replay apart from the run's other streams


class OffPolicyLoop(TrainLoop):
    """One run of an off-policy algorithm; further arguments as for `TrainLoop`.

    Args:
        config: all settings of the run.
        replay: what was collected; the loop fills it.
        capture: updates with their draws -> what makes a number of them; None: nothing does, and
            they are made one by one. Asked only where replay lies on the learner's device.
    """

    algorithm: OffPolicyAlgorithm

    def __init__(
        self,
        config: RunConfig,
        *,
        replay: Replay,
        capture: Callable[[SampledUpdates], Callable[[int], Any] | None] | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(config, **parts)
        self._algo: OffPolicyConfig = config.algo  # type: ignore[assignment]
        self._batch_size = self._algo.batch_size // self._ranks.size
        self._replay: Replay = replay
        if isinstance(replay, HindsightReplay):
            self.environments.add(replay.goal_env)
        if config.run.on_divergence == "warn":
            replay.replace_unsound_priorities()
        self._rows.metric_names = self.algorithm.metric_names
        device = exact_device(config.run.device)
        self._replay_is_near = replay.device == device
        self._staged = None if self._replay_is_near else StagedCopies(device)
        self._generator = _ReplayGenerator(self._ranks.seed(config.run.seed), replay.device)
        self._batch: TensorDict | SequenceBatch | None = None
        # Where a captured update reads it: a number would be part of the graph.
        self._beta_there = torch.ones((), dtype=torch.float64).to(replay.device)
        self._present_beta = 1.0
        self._sampled: SampledUpdates | None = None
        self._make_updates: Callable[[int], Any] | None = None
        if capture is not None and self._replay_is_near and replay.device.type != "cpu":
            self._sampled = self._with_draws()
            self._make_updates = capture(self._sampled)
            if self._make_updates is not None:
                self._replay.capture_writes()
        self._updates_owed = 0.0
        self._samples_used = 0
        self._samples_collected = 0
        self._conditions: dict[str, Tensor] = {}  # of this rank's environments
        self._all_conditions: dict[str, Tensor] = {}  # of all ranks'

    def _conditioning(self) -> dict[str, Tensor]:
        own, ranks = self.collector.num_envs, self._ranks
        found = self.algorithm.conditioning(
            self.counters.env_steps, self.config.run.total_env_steps, own * ranks.size
        )
        self._all_conditions = found
        if ranks.size > 1:  # what one process would give these environments
            found = {name: part[ranks.rank * own :][:own] for name, part in found.items()}
        self._conditions = found
        return found

    def _learn(self, rollout: Rollout, collected: int) -> None:
        priorities = self.algorithm.initial_priorities(rollout) if self._algo.prioritized else None
        with _REPLAY:
            self._replay.add(rollout, priorities)
        self.algorithm.policy.update_normalizer(rollout)
        if self.counters.env_steps < self._algo.learning_starts or len(self._replay) == 0:
            return
        self._samples_collected += collected
        self._updates_owed += collected * self._algo.replay_ratio / self._algo.samples_per_update
        updates = int(self._updates_owed)
        self._updates_owed -= updates
        self._samples_used += updates * self._algo.samples_per_update
        if updates == 0:
            return
        self._set_hyperparameters(self.counters.env_steps - collected)
        self._make(updates)

    def _make(self, updates: int) -> None:
        """Make so many updates: all at once where that is captured."""
        beta = self._present_exponent()
        if self._make_updates is None or self._sampled is None:
            for _ in range(updates):
                self._update(beta)
            return
        with _LEARNING:
            self._make_updates(updates)
        self._rows.metrics.add_sums(self._sampled.totals, updates)

    def _with_draws(self) -> SampledUpdates:
        generator = self._generator.generator
        assert isinstance(generator, torch.Generator)  # noqa: S101 (replay is on a device)
        return SampledUpdates(
            self.algorithm,
            self._replay,
            generator,
            self._batch_size,
            self._beta_there,
            self._normalized,
        )

    def _present_exponent(self) -> float | Tensor:
        """What `_beta` says, where replay draws."""
        beta = self._beta()
        if self._replay.device.type == "cpu" or not self._algo.prioritized:
            return beta
        if beta != self._present_beta:
            self._present_beta = beta
            self._beta_there.fill_(beta)
        return self._beta_there

    def _update(self, beta: float | Tensor) -> None:
        """Draw a batch, learn from it, and give its priorities back."""
        with _REPLAY:
            drawn = self._batch = self._replay.sample(
                self._batch_size,
                self._generator.generator,
                beta=beta,
                out=self._batch,  # type: ignore[arg-type]
            )
        batch = self._normalized(drawn if self._staged is None else self._staged(drawn))
        with _LEARNING:
            priority = self._updated(batch).get("priority")  # None: the rows keep theirs
        if self._algo.prioritized and priority is not None:
            with _REPLAY:
                priority = priority.to(self._replay.device)
                self._replay.update_priorities(self._replay.index_of(drawn), priority)

    def _normalized(self, batch: TensorDict | SequenceBatch) -> TensorDict | SequenceBatch:
        """The batch as acting would see it now; replay keeps observations as they were."""
        policy = self.algorithm.policy
        normalizer = policy.normalizer if policy.learns_normalized else None
        if normalizer is None or isinstance(batch, SequenceBatch):
            return batch
        seen = {
            name: as_tensordict(normalizer(batch[name]), tuple(batch.batch_size))
            for name in ("obs", "next_obs")
        }
        return TensorDict({**dict(batch.items()), **seen}, batch_size=batch.batch_size)

    def _beta(self) -> float:
        """The exponent of the importance weights, which rises to 1 over the run."""
        progress = min(1.0, self.counters.env_steps / self.config.run.total_env_steps)
        return self._algo.priority_beta + (1.0 - self._algo.priority_beta) * progress

    def _own_columns(self) -> dict[str, float | None]:
        """The schedules, what exploration was like, and the ratio that was achieved."""
        own = self._hyperparameters
        columns: dict[str, float | None] = dict(own.scheduled(self.counters.env_steps))
        # Of what callbacks set in place of schedules, a row shows what the last update had.
        columns |= {name: own.last.get(name, value) for name, value in own.overrides.items()}
        columns |= dict.fromkeys(self._explored())  # their places; the values are read with others
        if self._algo.prioritized:
            columns["priority_beta"] = self._beta()
        achieved = self._samples_used / max(self._samples_collected, 1)
        return columns | {"replay_ratio": achieved}

    def _row_tensors(self) -> dict[str, Tensor]:
        """What exploration was like."""
        return self._explored()

    def _explored(self) -> dict[str, Tensor]:
        """Name -> [] mean over environments of what exploration goes by."""
        numbers = {name: v for name, v in self._all_conditions.items() if v.is_floating_point()}
        return {name: value.mean() for name, value in numbers.items()}

    def _learning_state(self) -> dict[str, Any]:
        return {
            "generator": self._generator.state(),
            "updates_owed": self._updates_owed,
            "samples_used": self._samples_used,
            "samples_collected": self._samples_collected,
            "conditions": dict(self._conditions),
        }

    def _restore_learning(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state["learning"]
        self._generator.restore(state["generator"])
        self._updates_owed = state["updates_owed"]
        self._samples_used = state["samples_used"]
        self._samples_collected = state["samples_collected"]
        self._conditions = self._all_conditions = dict(state["conditions"])
        directory = checkpoint.replay
        if directory is None:
            raise CorruptCheckpointError(
                f"{checkpoint.path} holds no replay, though an off-policy run saves one. Use an "
                f"earlier checkpoint: remove this one."
            )
        self._replay.load(directory)

    def _begin_fresh_episodes(self) -> None:
        self._replay.break_chain()


class _ReplayGenerator:
    """Chooses what is drawn: on the host, or on the device if the replay lies there.

    Args:
        seed: of the run.
        device: where the replay lies.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        sequence = np.random.SeedSequence([seed, _REPLAY_STREAM])
        self.generator: np.random.Generator | torch.Generator
        if device.type == "cpu":
            self.generator = np.random.default_rng(sequence)
        else:
            self.generator = torch.Generator(device)
            self.generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))

    def state(self) -> Any:
        """Plain data or a tensor."""
        if isinstance(self.generator, np.random.Generator):
            return self.generator.bit_generator.state
        return self.generator.get_state()

    def restore(self, state: Mapping[str, Any] | Tensor) -> None:
        """Go on from what `state` gave."""
        if isinstance(self.generator, torch.Generator):
            set_torch_state(self.generator, state)
        elif begins_anew() and not isinstance(state, Mapping):  # a device drew so far
            self.generator = np.random.default_rng(seed_after(state))
        else:
            set_numpy_state(self.generator, state)
