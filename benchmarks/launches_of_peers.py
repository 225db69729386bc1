"""Launches of other projects' scripts, as they are but for the device.

CleanRL's and LeanRL's programs are single files that choose their device in one line, which is
given the stand-in accelerator. Each runs twice in a process of its own, for two lengths beyond the
beginning of learning; the difference over the difference in length is what an env_step takes, with
acting, learning and whatever the script reads back. LeanRL's graphs are emulated where its
`CudaGraphModule` would capture them: a copy of every input, one launch, a copy of every output.
Where torchrl is not installed, its replay is emulated, with the fewest launches that it can take.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_EARLY = ("--learning-starts", "100")
_CHEETAH = ("--env-id", "HalfCheetah-v5")


@dataclass(frozen=True, slots=True)
class PeerScript:
    """A script of another project.

    Attributes:
        file: below the checkout.
        workload: of `benchmarks.workloads`, the same algorithm on the same environment.
        options: beside its length; learning begins early, which changes no count.
        lengths: two in env_steps, both beyond the beginning of learning.
    """

    file: str
    workload: str
    options: tuple[str, ...] = ()
    lengths: tuple[int, int] = (150, 200)

    @property
    def label(self) -> str:
        """What a table calls it."""
        return " ".join([self.file, *(o for o in self.options if o == "--cudagraphs")])


_SCRIPTS = (
    PeerScript("{}/sac_continuous_action{}.py", "sac", (*_CHEETAH, *_EARLY)),
    PeerScript("{}/td3_continuous_action{}.py", "td3", (*_CHEETAH, *_EARLY)),
    PeerScript("{}/dqn{}.py", "dqn", (), (10_100, 10_300)),
    PeerScript("{}/ppo_continuous_action{}.py", "ppo-continuous", _CHEETAH, (2_048, 4_096)),
    PeerScript("{}/ppo_atari_envpool{}.py", "ppo-atari", ("--num-envs", "8"), (1_024, 2_048)),
)


def _of(project: str, suffix: str, *options: str) -> list[PeerScript]:
    return [
        replace(one, file=one.file.format(project, suffix), options=(*one.options, *options))
        for one in _SCRIPTS
    ]


PEERS: dict[str, list[PeerScript]] = {
    "cleanrl": _of("cleanrl", ""),
    "leanrl": _of("leanrl", "_torchcompile") + _of("leanrl", "_torchcompile", "--cudagraphs"),
}
"""Project -> its scripts; LeanRL's eager and captured."""
_DEVICE = re.compile(r"torch\.device\(\s*(['\"]cuda[:\d]*['\"]|f['\"]cuda)[^)\n]*\)?[^\n]*")
_LIMIT_S = 600.0


def on_the_stand_in(source: str) -> str:
    """A script's text with its device replaced.

    Raises:
        ValueError: if it chooses none where one would look for it.
    """
    changed, times = _DEVICE.subn('torch.device("standin:0")', source)
    if not times:
        raise ValueError('it has no line with torch.device("cuda"...)')
    return changed


def count(script: Path, env_steps: int, options: Sequence[str] = ()) -> dict[str, int]:
    """Launches and waits of a whole run of a script, in this process."""
    code = compile(on_the_stand_in(script.read_text()), str(script), "exec")
    from tests.accelerator import emulated_graph, stand_in

    sys.argv = [str(script), "--total-timesteps", str(env_steps), *options]
    with emulated_graph.installed(), stand_in.counted() as device, _replay_of_torchrl():
        _emulate_graphs(device)
        exec(code, {"__name__": "__main__", "__file__": str(script)})
        return {"launches": device.num_launches(), "waits": len(device.read_backs)}


def _emulate_graphs(device: Any) -> None:
    """LeanRL's class for captured functions, which otherwise wants CUDA."""
    import tensordict.nn
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    class Emulated:
        def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            self._function = function

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            before, device.replaying = device.replaying, True
            try:
                result = self._function(*args, **kwargs)
            finally:
                device.replaying = before
            moved = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
            device.launches["graph"] += 1
            device.launches["copy"] += len(moved)
            return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result)

    tensordict.nn.CudaGraphModule = Emulated  # type: ignore[misc, assignment]


@contextmanager
def _replay_of_torchrl() -> Iterator[None]:
    """Let a plain replay stand for torchrl's, where that is not installed."""
    if importlib.util.find_spec("torchrl") is not None:
        yield
        return
    sys.modules["torchrl"] = types.ModuleType("torchrl")
    sys.modules["torchrl.data"] = _plain_replay()
    try:
        yield
    finally:
        del sys.modules["torchrl"], sys.modules["torchrl.data"]


def _plain_replay() -> types.ModuleType:
    """What LeanRL takes from torchrl, where that is not installed: no launch more than it takes.

    A ring of transitions: one write for each entry, one draw of indices, one gather for each entry.
    """
    import torch

    class LazyTensorStorage:
        def __init__(self, size: int, device: Any = None) -> None:
            self.size, self.device = size, device

    class ReplayBuffer:
        def __init__(self, storage: LazyTensorStorage) -> None:
            self._storage, self._rows, self._count = storage, None, 0

        def extend(self, data: Any) -> None:
            data = data.to(self._storage.device)[-self._storage.size :]
            if self._rows is None:
                shape = (self._storage.size, *data.shape[1:])
                self._rows = torch.zeros_like(data[0]).expand(shape).clone()
            first, device = self._count % self._storage.size, self._storage.device
            at = torch.arange(first, first + len(data), device=device) % self._storage.size
            for name, rows in self._rows.items():
                rows[at] = data[name]
            self._count += len(data)

        def sample(self, count: int) -> Any:
            held = min(self._count, self._storage.size)
            return self._rows[torch.randint(held, (count,), device=self._storage.device)]

    module = types.ModuleType("torchrl.data")
    vars(module).update(LazyTensorStorage=LazyTensorStorage, ReplayBuffer=ReplayBuffer)
    return module


def per_env_step(
    script: Path, lengths: tuple[int, int], options: Sequence[str] = (), root: Path | None = None
) -> dict[str, Any]:
    """Launches and waits of one env_step, or how the script failed.

    Args:
        script: of another project.
        lengths: env_steps of a run in which learning has begun, and of a longer one.
        options: of the script.
        root: of its checkout, which it may import from.
    """
    found = []
    environment = os.environ | {"WANDB_MODE": "disabled"}
    if root is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    for env_steps in lengths:
        command = [sys.executable, "-m", "benchmarks.launches_of_peers", str(script)]
        try:
            done = subprocess.run(
                [*command, str(env_steps), *options], capture_output=True, text=True,
                timeout=_LIMIT_S, check=False, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"took more than {_LIMIT_S:.0f} s"}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
            return {"failed": lines[-1][:200]}
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    beyond = lengths[1] - lengths[0]
    return {name: (found[1][name] - found[0][name]) / beyond for name in found[0]}


if __name__ == "__main__":
    print(json.dumps(count(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
