r"""Launches of other projects' scripts, as they are but for the device.

CleanRL's and LeanRL's programs are single files that choose their device in one line, which is
given the stand-in accelerator. Each runs twice in a process of its own, for two lengths beyond the
beginning of learning; the difference over the difference in length is what an env_step takes, with
acting, learning and whatever the script reads back. LeanRL's graphs are emulated where its
`CudaGraphModule` would capture them: a copy of every input, one launch, a copy of every output.
Where torchrl is not installed, its replay is emulated, with the fewest launches that it can take.

To learn is what the main program does below the comment with which every script marks it. What
stands above is not in it: GAE, and in LeanRL's SAC and TD3 the draw from replay.

The scripts were written for older packages, which can be given as a folder, `--packages OLDER`:

    pip install --no-deps --target OLDER gymnasium==0.29.1 gym==0.23.1 gym-notices numpy==1.26.4 \
        envpool==0.8.4 mujoco==2.3.7 tensordict==0.6.2 orjson
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_EARLY = ("--learning-starts", "100")
# v5 has the same shapes, but gymnasium 0.29 does not know it.
_CHEETAH = ("--env-id", "HalfCheetah-v4")


@dataclass(frozen=True, slots=True)
class PeerScript:
    """A script of another project.

    Attributes:
        file: below the checkout.
        workload: of `benchmarks.workloads`, the same algorithm on the same environment.
        options: beside its length; learning begins early, which changes no count.
        lengths: two in env_steps, both beyond the beginning of learning.
        env_steps_per_update: of PPO, those of an iteration.
    """

    file: str
    workload: str
    options: tuple[str, ...] = ()
    lengths: tuple[int, int] = (150, 200)
    env_steps_per_update: int = 1

    @property
    def label(self) -> str:
        """What a table calls it."""
        return " ".join([self.file, *(o for o in self.options if o == "--cudagraphs")])


_SCRIPTS = (
    PeerScript("{}/sac_continuous_action{}.py", "sac", (*_CHEETAH, *_EARLY)),
    PeerScript("{}/td3_continuous_action{}.py", "td3", (*_CHEETAH, *_EARLY)),
    PeerScript("{}/dqn{}.py", "dqn", _EARLY, (150, 350), 10),
    PeerScript("{}/ppo_continuous_action{}.py", "ppo-continuous", _CHEETAH, (2_048, 4_096), 2_048),
    PeerScript(
        "{}/ppo_atari_envpool{}.py", "ppo-atari", ("--num-envs", "8"), (1_024, 2_048), 1_024
    ),
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
_LEARNING = re.compile(r"# ALGO LOGIC: training|# Optimizing the policy and value network")
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


def line_of_learning(source: str) -> int:
    """The line of the comment below which a script learns, the last if there are several.

    Raises:
        ValueError: if it has none.
    """
    found = [n for n, line in enumerate(source.splitlines(), 1) if _LEARNING.search(line)]
    if not found:
        raise ValueError(f"it has no comment {_LEARNING.pattern!r}")
    return found[-1]


def count(script: Path, env_steps: int, options: Sequence[str] = ()) -> dict[str, int]:
    """Launches, those to learn, and waits of a whole run of a script, in this process."""
    source = script.read_text()
    code = compile(on_the_stand_in(source), str(script), "exec")
    from tests.accelerator import emulated_graph, stand_in

    sys.argv = [str(script), "--total-timesteps", str(env_steps), *options]
    with emulated_graph.installed(), stand_in.counted() as device, _replay_of_torchrl():
        _emulate_graphs(device)
        with _learning_counted(device, code, line_of_learning(source)) as to_learn:
            exec(code, {"__name__": "__main__", "__file__": str(script)})
        return {
            "launches": device.num_launches(),
            "launches_to_learn": to_learn.total(),
            "waits": len(device.read_backs),
        }


@contextmanager
def _learning_counted(device: Any, code: types.CodeType, first_line: int) -> Iterator[Counter[str]]:
    """Operator -> launches while the main program is below a line."""
    found: Counter[str] = Counter()
    launch = device.launch
    thread = threading.get_ident()

    def learning() -> bool:
        # A backward pass launches from a thread of its own, while this one waits for it.
        frame = sys._current_frames()[thread]
        while frame.f_code is not code:
            if frame.f_back is None:
                return False
            frame = frame.f_back
        return frame.f_lineno > first_line

    def launched(name: str) -> None:
        before = device.num_launches()
        launch(name)
        if device.num_launches() > before and learning():
            found[name] += 1

    device.launch = launched
    try:
        yield found
    finally:
        del device.launch


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
            device.launch("graph")
            for _ in moved:
                device.launch("copy")
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
    script: Path,
    lengths: tuple[int, int],
    options: Sequence[str] = (),
    before_installed: Sequence[Path] = (),
) -> dict[str, Any]:
    """Launches, those to learn, and waits of one env_step, or how the script failed.

    Args:
        script: of another project.
        lengths: env_steps of a run in which learning has begun, and of a longer one.
        options: of the script.
        before_installed: folders that it imports from first: its checkout, and older packages.
    """
    found = []
    environment = os.environ | {"WANDB_MODE": "disabled"}
    paths = [*map(str, before_installed), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
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
