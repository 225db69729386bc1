"""Launches of other projects' scripts, as they are but for the device.

CleanRL's and LeanRL's programs are single files that choose their device in one line, which is
given the stand-in accelerator. Each runs twice in a process of its own, for two lengths beyond the
beginning of learning; the difference over the difference in length is what an env_step takes, with
acting, learning and whatever the script reads back. LeanRL's graphs are emulated where its
`CudaGraphModule` would capture them: a copy of every input, one launch, a copy of every output.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PEERS: dict[str, dict[str, tuple[int, int]]] = {
    "cleanrl": {
        "cleanrl/sac_continuous_action.py": (5_050, 5_150),
        "cleanrl/td3_continuous_action.py": (25_050, 25_150),
        "cleanrl/dqn.py": (10_100, 10_300),
        "cleanrl/ppo_continuous_action.py": (2_048, 4_096),
        "cleanrl/ppo_atari_envpool.py": (1_024, 2_048),
    },
    "leanrl": {
        "leanrl/sac_continuous_action_torchcompile.py": (5_050, 5_150),
        "leanrl/td3_continuous_action_torchcompile.py": (25_050, 25_150),
        "leanrl/dqn_torchcompile.py": (10_100, 10_300),
        "leanrl/ppo_continuous_action_torchcompile.py": (2_048, 4_096),
        "leanrl/ppo_atari_envpool_torchcompile.py": (1_024, 2_048),
    },
}
"""Project -> script, and two lengths in env_steps, both beyond the beginning of learning."""
_DEVICE = re.compile(r"torch\.device\(\s*(['\"]cuda['\"]|f['\"]cuda)[^)\n]*\)?[^\n]*")
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


def count(script: Path, env_steps: int) -> dict[str, int]:
    """Launches and waits of a whole run of a script, in this process."""
    code = compile(on_the_stand_in(script.read_text()), str(script), "exec")
    from tests.accelerator import emulated_graph, stand_in

    sys.argv = [str(script), "--total-timesteps", str(env_steps)]
    with emulated_graph.installed(), stand_in.counted() as device:
        _emulate_graphs(device)
        exec(code, {"__name__": "__main__", "__file__": str(script)})
        return {"launches": device.num_launches(), "waits": len(device.read_backs)}


def _emulate_graphs(device: Any) -> None:
    """LeanRL's class for captured functions, which otherwise wants CUDA."""
    import tensordict.nn
    import torch
    from torch.utils._pytree import tree_leaves

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
            return result

    tensordict.nn.CudaGraphModule = Emulated  # type: ignore[misc, assignment]


def per_env_step(script: Path, short: int, long: int) -> dict[str, Any]:
    """Launches and waits of one env_step, or how the script failed.

    Args:
        script: of another project.
        short: env_steps of a run in which learning has begun.
        long: of a longer one.
    """
    found = []
    for env_steps in (short, long):
        command = [sys.executable, "-m", "benchmarks.launches_of_peers", str(script)]
        try:
            done = subprocess.run(
                [*command, str(env_steps)], capture_output=True, text=True, timeout=_LIMIT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"took more than {_LIMIT_S:.0f} s"}
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
            return {"failed": lines[-1][:200]}
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return {name: (found[1][name] - found[0][name]) / (long - short) for name in found[0]}


if __name__ == "__main__":
    print(json.dumps(count(Path(sys.argv[1]), int(sys.argv[2]))))
