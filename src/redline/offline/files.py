"""Reading and writing recorded episodes: .npz files and Minari datasets.

Only arrays and plain numbers are read. An .npz file is opened with `allow_pickle=False`. Of a
Minari dataset the arrays and the two spaces are read; the environment that its metadata name is
never made, since making one would import what the file says.

`redline.offline` downloads nothing: `minari download ID` does.
"""

# Minari has no types, and leaves are arrays of any kind.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from gymnasium import Space

from redline.errors import ConfigError, MissingExtraError
from redline.free_memory import require_memory
from redline.models import leaf_spaces
from redline.nested import leaves, map_leaves
from redline.offline.episodes import NAMES, SUCCESSORS, RecordedEpisodes
from redline.plain_text import shortened, shown

_BROKEN = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a torn or hostile file raises."""
_FEWER = "Give fewer episodes, or a machine with more memory."
_CHECKED_BYTES = 2**28  # of episodes, after which it is looked whether they still can be joined


def read_episodes(source: Any) -> RecordedEpisodes:
    """Recorded episodes, as the environment that they come from has them.

    Args:
        source: an .npz file, the folder of a Minari dataset, or the name of one that Minari has on
            this machine; or a mapping of arrays, or a `minari.MinariDataset`.

    Raises:
        ConfigError: if there is no such data, or they are not what `RecordedEpisodes` must be.
        MissingExtraError: if Minari is not installed and it takes that to read them.
    """
    if isinstance(source, RecordedEpisodes):
        return source
    if isinstance(source, Mapping):
        return RecordedEpisodes.of_arrays(source, "the data")
    if hasattr(source, "storage") and hasattr(source, "episode_indices"):
        return _of_minari(source.storage.get_episodes(source.episode_indices), "the data set")
    if not isinstance(source, (str, Path)):
        raise ConfigError(
            f"data={source!r:.80} is of type {type(source).__name__}. Give a file, the folder or "
            f"name of a Minari dataset, a mapping of arrays, or a minari.MinariDataset."
        )
    path = Path(source)
    if path.is_dir():
        return _read_minari(path)
    if path.is_file():
        return _read_npz(path)
    return _read_minari(_local_minari(str(source)))


# -- .npz -------------------------------------------------------------------------------------


def _read_npz(path: Path) -> RecordedEpisodes:
    try:
        with path.open("rb") as stream:  # numpy leaves a torn file open that it has opened itself
            if not zipfile.is_zipfile(stream):  # numpy would advise to unpickle it
                raise ValueError("it is no archive of arrays, or not a whole one")
            stream.seek(0)
            file = np.load(stream, allow_pickle=False)
            names = [name for name in file.files if _top(name) in NAMES + SUCCESSORS]
            _require_memory(path, file.zip, names)
            arrays = _nested({name: file[name] for name in names})
    except ConfigError:
        raise
    except _BROKEN as error:
        raise ConfigError(
            f"data={str(path)!r} cannot be read as an .npz file ({shortened(error)}). Write it "
            "with numpy.savez: plain arrays, no objects."
        ) from error
    return RecordedEpisodes.of_arrays(arrays, str(path))


def _require_memory(path: Path, archive: zipfile.ZipFile, names: Iterable[str]) -> None:
    """Refuse what cannot be unpacked: zeros take a thousandth of their size in an archive.

    Raises:
        ConfigError: with the arithmetic.
    """
    wanted = {*names, *(f"{name}.npy" for name in names)}
    size = sum(info.file_size for info in archive.infolist() if info.filename in wanted)
    require_memory(
        size,
        f"data={str(path)!r}, unpacked from {path.stat().st_size:,} bytes,",
        _FEWER,
    )


def _top(name: str) -> str:
    return name.partition("/")[0]


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """observations/pose as observations -> pose; `_escaped` says how a key may have a slash.

    Raises:
        ValueError: if a name is both an array and the first part of others.
    """
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *path, last = map(unquote, name.split("/"))
        inside = tree
        for key in path:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise ValueError(f"{shown(name)} lies inside of what is an array itself")
        if last in inside:
            raise ValueError(f"{shown(name)} is both an array and the name of several")
        inside[last] = leaf
    return tree


def _flat(tree: Any, prefix: str) -> dict[str, Any]:
    if not hasattr(tree, "keys"):
        return {prefix: tree}
    return {
        name: leaf
        for key in tree
        for name, leaf in _flat(tree[key], f"{prefix}/{_escaped(key)}").items()
    }


def _escaped(key: str) -> str:
    """A key without slashes, which stand between keys: walker/joints_pos as walker%2Fjoints_pos."""
    return key.replace("%", "%25").replace("/", "%2F")


def _write_npz(episodes: RecordedEpisodes, path: Path) -> None:
    flat: dict[str, Any] = {}
    for name, tree in episodes.to_arrays().items():
        flat |= _flat(tree, name)
    with path.open("wb") as file:  # given a name, savez would put another suffix behind it
        np.savez_compressed(file, **flat)


# -- Minari -----------------------------------------------------------------------------------


def _minari(purpose: str) -> Any:
    try:
        import minari.dataset.minari_storage as storage
    except ImportError as error:
        raise MissingExtraError("minari", "minari", purpose) from error
    return storage.MinariStorage


def _local_minari(name: str) -> Path:
    """The folder of a dataset that Minari has on this machine."""
    missing = (
        f"data={name!r}: there is no such file or folder, and Minari has no dataset of that name "
        f"on this machine. Give a path, or download the dataset first: minari download {name}"
    )
    if ".." in Path(name).parts or Path(name).is_absolute() or name.endswith(".npz"):
        raise ConfigError(missing)
    if find_spec("minari") is None:
        raise ConfigError(f"{missing} Minari is not installed: pip install 'redline[minari]'.")
    folder = _minari_root() / name
    if not folder.is_dir():
        raise ConfigError(missing)
    return folder


def _minari_root() -> Path:
    """Where Minari keeps its datasets, as it says itself; but asked, it would make that folder."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return Path(root or os.path.expanduser("~/.minari/datasets"))


def _read_minari(folder: Path) -> RecordedEpisodes:
    storage = _minari(f"reading the dataset {folder}")
    folder = folder / "data" if (folder / "data").is_dir() else folder
    try:
        about = storage.read_raw_metadata(folder)
        if not {"observation_space", "action_space"} <= set(about):
            raise ValueError(
                "it does not say its spaces, for which its environment would have to be made"
            )
        stored = storage.read(folder)
        _require_room(folder, stored, about)
        return _of_minari(stored.get_episodes(range(about["total_episodes"])), str(folder))
    except ImportError as error:
        raise MissingExtraError("h5py", "minari", f"reading the dataset {folder}") from error
    except ConfigError:
        raise
    except Exception as error:  # of Minari, h5py, pyarrow or PIL, by what the file holds
        raise ConfigError(
            f"data={str(folder)!r} cannot be read as a Minari dataset ({shortened(error)}). Give "
            "the folder that holds its metadata.json, or an .npz file."
        ) from error


def _require_room(folder: Path, stored: Any, about: Mapping[str, Any]) -> None:
    """Refuse a dataset that cannot be held, by what it says of itself.

    Raises:
        ConfigError: with the arithmetic.
        ValueError: if it says nothing.
    """
    steps, episodes = (_count(about, name) for name in ("total_steps", "total_episodes"))
    obs, action = map(_row_bytes, (stored.observation_space, stored.action_space))
    size = (steps + episodes) * obs + steps * action
    require_memory(
        2 * size,
        f"data={str(folder)!r}: 2 x {size:,} bytes of {steps:,} steps, since episodes are joined,",
        _FEWER,
    )
    if (file := folder / "main_data.hdf5").is_file():
        require_memory(_largest_part(file), f"data={str(folder)!r}, its largest episode,", _FEWER)


def _count(about: Mapping[str, Any], name: str) -> int:
    count = about.get(name)
    if type(count) is not int or count < 0:
        raise ValueError(f"its {name} is {shown(count)}, which is no count")
    return count


def _row_bytes(space: Space[Any]) -> int:
    """Bytes of one value of a space; of words, which have no fixed number, none."""
    return sum(
        math.prod(leaf.shape or ()) * np.dtype(leaf.dtype).itemsize
        for _, leaf in leaf_spaces(space)
        if isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "biuf"
    )


def _largest_part(file: Path) -> int:
    """Bytes of the largest episode of an HDF5 file, unpacked: each is read as a whole."""
    import h5py

    def size(item: Any) -> int:
        found = [item]
        if isinstance(item, h5py.Group):
            item.visititems(lambda _, inside: found.append(inside))
        return sum(each.nbytes for each in found if isinstance(each, h5py.Dataset))

    with h5py.File(file, "r") as opened:
        return max((size(item) for item in opened.values()), default=0)


def _of_minari(episodes: Iterable[Mapping[str, Any]], source: str) -> RecordedEpisodes:
    """Minari keeps T + 1 observations of an episode of T steps."""
    parts: list[RecordedEpisodes] = []
    size = checked = 0
    for i, episode in enumerate(episodes):
        if (part := _one_episode(episode, f"{source}, episode {i}")) is not None:
            parts.append(part)
            size += part.nbytes
        if size >= checked + _CHECKED_BYTES:
            checked = size
            require_memory(size, f"{source}: joining its first {len(parts):,} episodes", _FEWER)
    if not parts:
        raise ConfigError(f"{source} holds no steps. Record some first.")
    return RecordedEpisodes.joined(parts)


def _one_episode(episode: Mapping[str, Any], source: str) -> RecordedEpisodes | None:
    steps = len(episode["rewards"])
    if steps == 0:
        return None
    obs = _mapped(np.asarray, episode["observations"])
    if any(len(leaf) != steps + 1 for _, leaf in leaves(obs)):
        lengths = sorted({len(leaf) for _, leaf in leaves(obs)})
        raise ConfigError(
            f"{source} has {lengths} observations and {steps} rewards. An episode of Minari holds "
            f"one observation more than rewards: the last one. Record it again."
        )
    part = RecordedEpisodes.of_arrays(
        {
            **{name: episode[name] for name in NAMES[1:]},
            "observations": map_leaves(lambda leaf: leaf[:-1], obs),
            "final_observations": map_leaves(lambda leaf: leaf[-1:], obs),
        },
        source,
    )
    if part.num_episodes != 1:
        raise ConfigError(f"{source} goes on after it has ended. Record it again.")
    return part


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` of each leaf, tuples as mappings."""
    if isinstance(tree, Mapping):
        return {str(key): _mapped(function, each) for key, each in tree.items()}
    if isinstance(tree, tuple):
        return {str(index): _mapped(function, each) for index, each in enumerate(tree)}
    return function(tree)


def _write_minari(
    episodes: RecordedEpisodes,
    folder: Path,
    observation_space: Space[Any],
    action_space: Space[Any],
    about: Mapping[str, Any],
) -> None:
    from minari import __version__ as version
    from minari.data_collector.episode_buffer import EpisodeBuffer

    storage = _minari("writing a dataset").new(
        folder.absolute(),  # Minari joins a relative one to itself
        observation_space,
        action_space,
        data_format="arrow",  # needs pyarrow alone, which Redline has
        jpeg_encoding=False,  # what is read back must be what was seen
    )
    buffers: list[Any] = []
    first = 0
    for index, last in enumerate(episodes.last_steps.tolist()):
        rows = slice(first, last + 1)
        first = last + 1
        obs = map_leaves(
            lambda leaf, end, rows=rows, i=index: np.concatenate([leaf[rows], end[i : i + 1]]),
            episodes.obs,
            episodes.final_obs,
        )
        buffers.append(
            EpisodeBuffer(
                id=index,
                observations=obs,
                actions=map_leaves(lambda leaf, rows=rows: leaf[rows], episodes.action),
                rewards=episodes.reward[rows],  # type: ignore[arg-type]
                terminations=episodes.terminated[rows],  # type: ignore[arg-type]
                truncations=episodes.truncated[rows],  # type: ignore[arg-type]
            )
        )
    storage.update_episodes(buffers)
    storage.update_metadata({**about, "minari_version": version})


# -- writing ----------------------------------------------------------------------------------


def require_writable(path: Path) -> None:
    """Refuse now what `write_episodes` would only find out after the work.

    Raises:
        ConfigError: if something is there already.
        MissingExtraError: if Minari is not installed and it takes that to write it.
    """
    if path.exists():
        raise ConfigError(f"out={str(path)!r} exists already. Give another name, or remove it.")
    if path.suffix != ".npz":
        _minari(f"writing a dataset to {path}")


def write_episodes(
    episodes: RecordedEpisodes,
    path: Path,
    observation_space: Space[Any],
    action_space: Space[Any],
    about: Mapping[str, Any],
) -> None:
    """Write an .npz file, or a Minari dataset into an empty folder.

    Args:
        episodes: as the environment has them.
        path: a name that ends in .npz is such a file; any other the folder of a Minari dataset.
        observation_space: of the data.
        action_space: likewise.
        about: metadata of the Minari dataset, such as its `dataset_id`.

    Raises:
        ConfigError: if the dataset would lack the last observation of an episode.
    """
    if path.suffix == ".npz":
        _write_npz(episodes, path)
        return
    if not episodes.final_known.all():
        raise ConfigError("a Minari dataset needs the last observation of every episode.")
    _write_minari(episodes, path, observation_space, action_space, about)
