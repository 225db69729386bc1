"""Begin a run with what another one has learned: weights, statistics of observations, replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redline.algos.algorithm import Algorithm
from redline.envs.atari import is_atari
from redline.errors import ConfigError, IncompatibleCheckpointError, RunDirectoryError
from redline.plain_text import shown
from redline.policies import Policy
from redline.replay import Replay
from redline.train.checkpoint.checkpoint import Checkpoint
from redline.train.checkpoint.store import CheckpointStore
from redline.train.loops.saved_progress import algorithm_state
from redline.train.runs.files import CONFIG_FILE
from redline.train.settings import RunConfig

PARTS = ("weights", "normalizer", "replay")
_NORMALIZER = "normalizer."
_COUNTS = ("count", "batches", "num_batches_tracked")  # of what running statistics have seen


@dataclass(frozen=True, slots=True)
class Taken:
    """What a new run took over, by names such as policy.torso.0.weight.

    Attributes:
        fitting: what it took.
        other_shape: what has another shape in the new run, with both shapes.
        missing: what the other run does not have.
    """

    fitting: list[str] = field(default_factory=list)
    other_shape: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def sentences(self, source: Path) -> Iterator[str]:
        """What to tell the user, one by one."""
        total = len(self.fitting) + len(self.other_shape) + len(self.missing)
        yield f"begins with {len(self.fitting)} of {total} tensors of {source}:"
        for title, names in (
            ("taken", self.fitting),
            ("other shape, begins anew", self.other_shape),
            ("not in that run, begins anew", self.missing),
        ):
            yield from (f"  {title}: {name}" for name in names)


def source_checkpoint(source: Path, parts: tuple[str, ...]) -> Checkpoint:
    """The newest checkpoint of the run that another one begins with.

    Args:
        source: its directory.
        parts: what is to be taken over, of `PARTS`.

    Raises:
        ConfigError: if there is no such part.
        RunDirectoryError: if the directory holds no run, or no checkpoint.
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise ConfigError(
            f"init_parts has {', '.join(unknown)}, which no run can give. Choose from: "
            f"{', '.join(PARTS)}."
        )
    if not (source / CONFIG_FILE).is_file():
        raise RunDirectoryError(
            f"init_from={str(source)!r} is not a run directory: it has no {CONFIG_FILE}. Give the "
            f"directory of a run."
        )
    problems: list[str] = []
    checkpoint = CheckpointStore(source / "checkpoints").latest(
        problems.append, with_replay="replay" in parts
    )
    if checkpoint is None:
        raise RunDirectoryError(f"init_from={str(source)!r} has no checkpoint yet. Train it first.")
    return checkpoint


def take_over(algorithm: Algorithm, checkpoint: Checkpoint, parts: tuple[str, ...]) -> Taken:
    """Copy tensors of a checkpoint into an algorithm, where names and shapes fit.

    Target networks that the other run does not have take over what they are targets of. What
    optimizers gathered is left: it belongs to the other run's course.

    Args:
        algorithm: of the new run, before its first update.
        checkpoint: of the other one.
        parts: "weights", "normalizer", or both.

    Returns:
        What was taken and what was not.

    Raises:
        ConfigError: if nothing fits.
        CorruptCheckpointError: if the checkpoint holds no algorithm's state.
    """
    taken = Taken()
    theirs, ours = algorithm_state(checkpoint.state), algorithm.state_dict()
    for part, mine in ours.items():
        if not _is_network(part, mine):
            continue
        source = _source_of(part, mine, theirs)
        anew = _begin_anew(mine, source)
        for name, tensor in mine.items():
            if ("normalizer" if _NORMALIZER in name else "weights") in parts:
                if name in anew:
                    taken.other_shape.append(f"{part}.{name} goes with such ones")
                else:
                    _take(taken, f"{part}.{name}", tensor, source.get(name))
    if not taken.fitting and {"weights", "normalizer"} & set(parts):
        raise ConfigError(
            f"nothing in {checkpoint.path} fits this run's networks. Give the same kind of "
            f"network, or leave init_from out."
        )
    bare = _bare_parameters(algorithm, ours) if "weights" in parts else ()
    ours |= {part: theirs[part] for part in bare if _fits(ours[part], theirs.get(part))}
    algorithm.load_state_dict(ours)
    _note_bare(taken, bare, algorithm.state_dict(), theirs)
    return taken


def _bare_parameters(algorithm: Algorithm, state: Mapping[str, Any]) -> list[str]:
    """Names of what gradients change outside of networks, such as a temperature."""
    return [part for part in algorithm.saved_parameters if isinstance(state.get(part), Tensor)]


def _note_bare(
    taken: Taken, bare: Sequence[str], now: Mapping[str, Any], theirs: Mapping[str, Any]
) -> None:
    """Note what became of them; of one that a setting fixes there is nothing to say."""
    for part in bare:
        source = theirs.get(part)
        if not isinstance(source, Tensor):
            taken.missing.append(part)
        elif source.shape != now[part].shape:
            taken.other_shape.append(f"{part} {list(source.shape)} is not {list(now[part].shape)}")
        elif torch.equal(now[part].cpu(), source.cpu().to(now[part].dtype)):
            taken.fitting.append(part)


def take_replay(
    replay: Replay, checkpoint: Checkpoint, config: RunConfig, *, clips_reward: bool
) -> list[str]:
    """Begin with the other run's replay.

    Args:
        replay: of the new run.
        checkpoint: of the other one.
        config: of the new run.
        clips_reward: whether its replay holds the signs of rewards.

    Returns:
        What to say of it.

    Raises:
        ConfigError: if that run has none.
        IncompatibleCheckpointError: if it is of other spaces or settings of replay, or of rewards
            where this one holds their signs, or the other way round.
    """
    if checkpoint.replay is None:
        raise ConfigError(
            f"init_parts has replay, and {checkpoint.path} has none: on-policy algorithms keep "
            f"none. Leave it out."
        )
    settings = checkpoint.run_files.get(CONFIG_FILE, {}).get("settings", {}).get("run", {})
    _require_same_rewards(settings, checkpoint, clips_reward=clips_reward)
    replay.load(checkpoint.replay, of_another_run=True)
    replay.break_chain()
    now = config.to_json()["run"]
    env, env_kwargs = (settings.get(name, now[name]) for name in ("env", "env_kwargs"))
    if (env, env_kwargs) == (now["env"], now["env_kwargs"]):
        return []
    return [
        f"replay begins with transitions of {shown(env)} (env_kwargs {shown(env_kwargs)}), whose "
        f"rewards and dynamics may be others"
    ]


def _require_same_rewards(
    settings: Mapping[str, Any], checkpoint: Checkpoint, *, clips_reward: bool
) -> None:
    """Refuse rewards beside signs of rewards.

    Args:
        settings: of the other run; empty where its checkpoint does not say.
        checkpoint: of that run, for the message.
        clips_reward: whether this run has the signs.
    """
    if not settings:
        return
    asked = settings.get("clip_reward")
    clipped = is_atari(settings.get("env")) if asked is None else bool(asked)
    if clipped != clips_reward:
        holds = "the signs of rewards" if clipped else "rewards as they are"
        raise IncompatibleCheckpointError(
            f"the replay of {checkpoint.path} holds {holds}, and clip_reward={clips_reward} here "
            f"would put others beside them. Give clip_reward={clipped}, or leave replay out of "
            f"init_parts."
        )


def see_replay(policy: Policy, replay: Replay) -> list[str]:
    """Let the statistics of observations begin with what replay begins with.

    By those of the first few rows that are collected, everything else in replay would lie far
    outside. Statistics that came from another run are kept.

    Args:
        policy: of the new run.
        replay: that data or another run's transitions are in.

    Returns:
        What to say of it.
    """
    normalizer = getattr(policy, "normalizer", None)
    if normalizer is None or normalizer.has_seen:
        return []
    normalizer.begin_with(replay.observations())
    return ["statistics of observations begin with those of replay"]


def _begin_anew(mine: Mapping[str, Any], source: Mapping[str, Any]) -> set[str]:
    """Statistics that fit, of which the others do not: a count of rows says nothing of zeros.

    Args:
        mine: parameters and buffers of a network of this run.
        source: of the other run.
    """
    owners = {name.rpartition(".")[0] for name in mine if name.rpartition(".")[2] in _COUNTS}
    torn = {
        owner
        for owner in owners
        for name, tensor in mine.items()
        if name.rpartition(".")[0] == owner and not _fits(tensor, source.get(name))
    }
    return {
        name
        for name, tensor in mine.items()
        if name.rpartition(".")[0] in torn and _fits(tensor, source.get(name))
    }


def _fits(tensor: Tensor, source: Any) -> bool:
    return isinstance(source, Tensor) and source.shape == tensor.shape


def _take(taken: Taken, name: str, tensor: Tensor, source: Any) -> None:
    if not isinstance(source, Tensor):
        taken.missing.append(name)
    elif source.shape != tensor.shape:
        taken.other_shape.append(f"{name} {list(source.shape)} is not {list(tensor.shape)}")
    else:
        tensor.copy_(source)
        taken.fitting.append(name)


def _is_network(part: str, state: Any) -> bool:
    """Whether an entry of an algorithm's state is a network's parameters and buffers."""
    return (
        isinstance(state, Mapping)
        and bool(state)
        and not part.endswith(("optimizer", "metrics"))
        and all(isinstance(leaf, Tensor) for leaf in state.values())
    )


def _source_of(part: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a network's tensors come from: what has its name, or what it is the target of.

    The first of these of which anything fits: another algorithm may give the name to something
    else.
    """
    fallbacks = {"target_policy": ("policy",), "target": ("critic", "policy")}
    names = (part, *fallbacks.get(part, ()))
    found = [theirs[name] for name in names if isinstance(theirs.get(name), Mapping)]
    for each in found:
        if any(_fits(tensor, each.get(name)) for name, tensor in mine.items()):
            return each
    return found[0] if found else {}
