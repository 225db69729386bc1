"""`--cudagraphs` of the programs in scripts/, held to eager runs under emulated capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensordict.nn
import torch

from tests.accelerator.emulated_graph import EmulatedGraphs
from tests.parity.single_file import load
from tests.parity.test_scripts import TINY, run


class EmulatedCudaGraphModule:
    """tensordict's `CudaGraphModule`, its graph emulated: its calls, copies and clones.

    On CUDA to record computes nothing; here it does, in place of the first replay.
    """

    made: list[EmulatedCudaGraphModule]

    def __init__(self, module: Callable[..., Any], warmup: int = 2) -> None:
        assert warmup == 5
        # Some of these runs update twice: the first is made as it is written.
        self._module, self._left, self._graph = module, 1, None
        self.replays = 0
        self.made.append(self)

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self._left > 0:
            self._left -= 1
            return self._module(*inputs)
        if self._graph is None:
            self._inputs = [given.clone() for given in inputs]
            graphs = EmulatedGraphs()
            self._graph, self._outputs = graphs.capture(lambda: self._module(*self._inputs), [])
        else:
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
            self._graph.replay()
            self.replays += 1
        if isinstance(self._outputs, dict):
            return {name: value.clone() for name, value in self._outputs.items()}
        if isinstance(self._outputs, tuple):
            return tuple(value.clone() for value in self._outputs)
        return self._outputs.clone()


@pytest.mark.parametrize("name", TINY)
def test_a_captured_run_is_the_eager_one(
    name: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints, losses and returns, to the last digit that it prints."""
    if name == "ppo_atari_envpool":
        pytest.importorskip("envpool", reason="the program's environments are EnvPool's")
    threads = torch.get_num_threads()
    module, made = load(name), []
    set_up = module.set_up
    monkeypatch.setattr(EmulatedCudaGraphModule, "made", made, raising=False)
    monkeypatch.setattr(tensordict.nn, "CudaGraphModule", EmulatedCudaGraphModule)
    # It refuses the CPU, whose graphs are emulated here.
    monkeypatch.setattr(module, "set_up", lambda args: set_up(replace(args, cudagraphs=False)))
    few = {"total_env_steps": 60 if "learning_starts" in TINY[name] else 100, "eval_episodes": 0}
    if name in ("ppo_continuous", "ppo_atari_envpool", "r2d1", "a2c", "reinforce"):
        del few["total_env_steps"]
    eager, _ = run(name, capsys, tmp_path, **few)
    captured, _ = run(name, capsys, tmp_path, **few, cudagraphs=True)
    torch.set_num_threads(threads)
    assert captured == eager
    assert len(made) >= 2  # acting, and the updates
    assert sum(each.is_captured for each in made) >= 2
    assert sum(each.replays for each in made) > 5
