"""Damage by somebody who knows the formats: values are changed, and every hash is made to agree.

Hashes find accidents. They prove nothing about who wrote a file, so a stranger can compute them
again. What is damaged here gets past them, and must be refused for what it says, or taken for what
it may say: weights, counters, settings, observations.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.attack.damage import STRANGE, damage, other_value
from redline.profile.seal import seal
from redline.train.checkpoint.checkpoint import load_checkpoint, save_checkpoint

_HASHED = ("state.json", "tensors.safetensors")
_NUMBERS = (  # as they lie in memory; a piece of an array becomes one of them, again and again
    b"\xff", b"\x00", b"\x01", b"\x02", b"\x80",
    *(np.array(each, np.float32).tobytes() for each in (np.nan, np.inf, -1.0, 1e30)),
    *(np.array(each, np.float64).tobytes() for each in (np.nan, np.inf, -1.0, 1e308, 0.5)),
    *(np.array(each, np.int64).tobytes() for each in (-1, 1, 7, 2**31, 2**62, -(2**63))),
)  # fmt: skip


def sign_run(run: Path) -> None:
    """Compute every hash in a run directory again, as far as its files can be read."""
    with _unreadable_is_left():
        config = json.loads((run / "config.json").read_text())
        if isinstance(config, dict) and "sha256" in config:
            rest = {key: value for key, value in config.items() if key != "sha256"}
            config["sha256"] = _json_digest(rest)
            (run / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for manifest in sorted((run / "checkpoints").rglob("manifest.json")):
        with _unreadable_is_left():
            _sign_replay(manifest.parent / "replay")
        with _unreadable_is_left():
            _sign_checkpoint(manifest.parent, run)


@contextlib.contextmanager
def _unreadable_is_left() -> Iterator[None]:
    """What was damaged beyond reading has no hash to compute."""
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError
    ):
        yield


def _sign_replay(replay: Path) -> None:
    body = json.loads((replay / "replay.json").read_text())["content"]
    with _unreadable_is_left():
        for name in body["files"]:
            if (replay / name).is_file():
                body["files"][name] = [(replay / name).stat().st_size, _digest(replay / name)]
    text = json.dumps({"sha256": _json_digest(body), "content": body}, indent=1)
    (replay / "replay.json").write_text(text)


def _sign_checkpoint(path: Path, run: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    with _unreadable_is_left():
        for name in _HASHED:
            manifest["files"][name] = _entry(path / name)
    with _unreadable_is_left():
        if "replay" in manifest:
            manifest["replay"] = _entry(path / "replay" / "replay.json")
    with _unreadable_is_left():
        _sign_run_files(manifest["run_files"], run)
    rest = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    manifest["manifest_sha256"] = _json_digest(rest)
    (path / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _sign_run_files(entries: dict[str, Any], run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    parts = {name: config[name] for name in ("algorithm", "run", "policy", "algo")}
    entries["config.json"] |= _entry(run / "config.json") | {"settings": parts}
    rows = (run / "progress.csv").read_bytes()[: entries["progress.csv"]["size_bytes"]]
    entries["progress.csv"] |= {
        "sha256": hashlib.sha256(rows).hexdigest(), "size_bytes": len(rows)
    }  # fmt: skip


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": _digest(path), "size_bytes": path.stat().st_size}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json_digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def damage_and_sign(run: Path, rng: random.Random) -> str:
    """Change one value or more of a run, and sign all of it again; what was changed."""
    done: list[str] = []
    ways = [way for way in _WAYS if "replay" not in way or (_newest(run) / "replay").is_dir()]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        how = rng.choice(ways)
        try:
            done.append(f"{how}: {_WAYS[how](run, rng)}")
        except Exception as error:  # noqa: BLE001 (an earlier change may have left nothing to change)
            done.append(f"{how} could not be ({type(error).__name__})")
        sign_run(run)
    return "; ".join(done)


def damage_and_seal(session: Path, rng: random.Random) -> str:
    """The same for a recorded session."""
    what = "; ".join(damage(session, rng) for _ in range(rng.choice((1, 1, 2))))
    with contextlib.suppress(Exception):  # what cannot be sealed is as a stranger left it
        seal(session)
    return what


def _newest(run: Path) -> Path:
    return sorted(p for p in (run / "checkpoints").iterdir() if p.name.startswith("step_"))[-1]


def _state_value(run: Path, rng: random.Random) -> str:
    """Another value in the newest checkpoint's state."""
    return _changed_checkpoint(run, rng, lambda found: found.state)


def _metadata_value(run: Path, rng: random.Random) -> str:
    return _changed_checkpoint(run, rng, lambda found: found.metadata)


def _changed_checkpoint(run: Path, rng: random.Random, part: Callable[[Any], Any]) -> str:
    path = _newest(run)
    found = load_checkpoint(path)
    holder, key, trail = _walk(part(found), rng)
    old = holder[key]
    if isinstance(old, np.ndarray):
        old = torch.from_numpy(old)
    if isinstance(old, torch.Tensor):
        value: Any = _other_tensor(old, rng)
        said = f"tensor {tuple(value.shape)} {value.dtype}"
    else:
        value = rng.choice([each for each in STRANGE if each != old])
        said = f"{value!r:.40}"
    holder[key] = value
    replay = path.with_name("replay-of-before")
    if (path / "replay").is_dir():
        (path / "replay").rename(replay)
    shutil.rmtree(path)
    save_checkpoint(
        path, found.step, found.state, metadata=found.metadata, run_files=found.run_files
    )
    if replay.is_dir():
        replay.rename(path / "replay")
        manifest = json.loads((path / "manifest.json").read_text()) | {"replay": {}}
        (path / "manifest.json").write_text(json.dumps(manifest))
    return f"state{trail} = {said}"


def _walk(state: Any, rng: random.Random) -> tuple[Any, Any, str]:
    """A place in nested data, each branch as likely as its neighbors."""
    trail = ""
    while True:
        key = rng.choice(list(state) if isinstance(state, dict) else range(len(state)))
        trail += f".{key}"
        inner = state[key]
        if not (isinstance(inner, (dict, list)) and inner) or rng.random() < 0.05:
            return state, key, trail
        state = inner


def _other_tensor(old: torch.Tensor, rng: random.Random) -> torch.Tensor:
    made = [torch.full_like(old, 0), old.double(), old.flatten()[:1], torch.zeros(3, 3, 3)]
    if old.is_floating_point():
        made += [torch.full_like(old, float("nan")), torch.full_like(old, 1e30)]
    else:
        bits = old.numpy()  # torch itself adds no unsigned numbers
        made += [torch.from_numpy(~bits), torch.from_numpy(bits ^ 1)]
    return rng.choice(made).contiguous()


def _list_value(run: Path, rng: random.Random) -> str:
    """Another value in a file that lists others, or in the settings."""
    path = _newest(run)
    files = [path / "manifest.json", path / "replay" / "replay.json", run / "config.json"]
    chosen = rng.choice([file for file in files if file.is_file()])
    return f"{chosen.relative_to(run)}: {other_value(chosen, rng)}"


def _replay_header(run: Path, rng: random.Random) -> str:
    """Another value of a replay's list, but for the long table of its files."""
    path = _newest(run) / "replay" / "replay.json"
    outer = json.loads(path.read_text())
    part = rng.choice(("header", "arrays", "host_arrays", "chunk_bytes", "format_version"))
    if not isinstance(outer["content"][part], dict) or rng.random() < 0.1:
        outer["content"][part] = rng.choice(STRANGE)
        said = part
    else:
        holder, key, trail = _walk(outer["content"][part], rng)
        old = holder[key]
        near = [old - 1, old + 1, -old] if type(old) is int else []
        holder[key] = rng.choice([*STRANGE, *near])
        said = f"{part}{trail} = {holder[key]!r:.40}"
    path.write_text(json.dumps(outer))
    return said


def _replay_array(run: Path, rng: random.Random) -> str:
    """Other numbers in a piece of one of a replay's arrays."""
    replay = _newest(run) / "replay"
    body = json.loads((replay / "replay.json").read_text())["content"]
    tables = [
        (name, rng.choice(list(table["chunks"].values())))
        for name, table in body["arrays"].items()
        if table["chunks"]
    ]
    tables += [(name, entry["file"]) for name, entry in body["host_arrays"].items()]
    name, file = rng.choice(tables)
    data, number = bytearray((replay / file).read_bytes()), rng.choice(_NUMBERS)
    if not data:
        return f"{name} is empty"
    first = rng.randrange(len(data)) // len(number) * len(number)
    stop = rng.choice((first + len(number), len(data)))
    piece = (number * (len(data) // len(number) + 1))[: len(data[first:stop])]
    data[first : first + len(piece)] = piece
    (replay / file).unlink()  # other checkpoints may share it
    (replay / file).write_bytes(data)
    return f"{name} is {number.hex()} from byte {first}"


def _row(run: Path, rng: random.Random) -> str:
    """Another cell in the table of progress."""
    path = run / "progress.csv"
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    cells = lines[at].split(",")
    column = rng.randrange(len(cells))
    cells[column] = str(rng.choice(STRANGE))[:2000]
    lines[at] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")
    return f"row {at}, column {column} = {cells[column]!r:.40}"


_WAYS: dict[str, Callable[[Path, random.Random], str]] = {
    "state": _state_value,
    "metadata": _metadata_value,
    "list": _list_value,
    "replay list": _replay_header,
    "replay array": _replay_array,
    "replay array again": _replay_array,
    "row": _row,
    "any": damage,
}
