"""Whether a run can be begun, without beginning it."""

from __future__ import annotations

import dataclasses
from contextlib import closing

from redline.train.progress.writers import require_writer
from redline.train.runs.building import make_some, require_log_info
from redline.train.runs.contradictions import (
    in_time,
    refuse_contradictions,
    refuse_image_preset,
    refuse_raw_game,
)
from redline.train.runs.given import Given, algorithm_of, collector_of, env_settings
from redline.train.runs.idle_settings import changed_settings, refuse_idle_settings
from redline.train.runs.learner import build_algorithm
from redline.train.runs.memory_checks import require_rollout_fits, require_workers_fit
from redline.train.runs.placing import check_devices
from redline.train.runs.start import check_updates
from redline.train.settings import RunConfig


def check_buildable(config: RunConfig, given: Given) -> None:
    """Refuse what a run would be refused for before its first step; nothing is written.

    One environment and the networks are made and thrown away.

    Args:
        config: all settings, as the caller gave them.
        given: what the caller names by itself; modules of theirs are imported.

    Raises:
        RedlineError: as `start_run` would.
    """
    refuse_contradictions(config, are_new=given.are_new)
    check_updates(config)
    given = dataclasses.replace(
        given,
        env_backend=given.env_backend or config.run.env_backend,
        collector=given.collector or config.run.collector,
        network=given.network or config.run.network,
        changed=changed_settings(config, given.algorithm or config.algorithm),
    )
    config = in_time(config, given.changed)
    collector = collector_of(config, given)
    check_devices(config.run, collector)
    for name in ("tensorboard", "jsonl", "wandb"):
        if getattr(config.run, name):
            require_writer(name)
    settings = env_settings(config, given, collector)
    kind = algorithm_of(config, given)
    settings.require_fit(config.algo.num_envs)
    require_workers_fit(config, collector, settings.backend_class)
    with closing(make_some(settings, 1)) as probe:
        backend = settings.backend_class
        refuse_idle_settings(config, given, kind, collector, backend, probe)
        refuse_image_preset(config, probe)
        refuse_raw_game(given, probe)
        require_rollout_fits(config, probe)
        algorithm = build_algorithm(config.replace(device="cpu"), probe, given)
        require_log_info(config, algorithm)
