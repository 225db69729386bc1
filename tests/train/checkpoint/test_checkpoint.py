"""One checkpoint: what goes in comes out, and nothing damaged passes."""

import hashlib
import json
import os
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from redline.errors import CheckpointError, CorruptCheckpointError, IncompatibleCheckpointError
from redline.train.checkpoint import checkpoint
from redline.train.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from redline.train.checkpoint.files import open_tensors, params_sha256, write_tensors
from redline.train.checkpoint.tree import decode_tree, encode_tree


def same(left: Any, right: Any) -> bool:
    """Equal in type, dtype, shape and bits; nan equals nan."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and params_sha256({"": left}) == params_sha256({"": right})
        )
    if isinstance(left, np.ndarray | np.generic):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return repr(left) == repr(right)


def roundtrip(tmp_path: Path, state: dict[str, Any]) -> dict[str, Any]:
    save_checkpoint(tmp_path / "checkpoint", 7, state, metadata={})
    return load_checkpoint(tmp_path / "checkpoint").state


TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (3, 4)])
def test_every_dtype_and_shape_comes_back_as_it_was(tmp_path: Path, shape: tuple[int, ...]) -> None:
    base = torch.linspace(0, 5, int(np.prod(shape))).reshape(shape)
    state: dict[str, Any] = {str(dtype): base.to(dtype) for dtype in TORCH_DTYPES}
    for dtype in TORCH_DTYPES:
        if dtype != torch.bfloat16:
            state[f"numpy {dtype}"] = base.to(dtype).numpy()
    assert same(roundtrip(tmp_path, state), state)


def test_what_states_are_made_of(tmp_path: Path) -> None:
    """Optimizer with int keys, generators of numpy, Python and torch, bytes, odd keys."""
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    rng = np.random.default_rng(3)
    rng.random()
    state = {
        "optimizer": optimizer.state_dict(),
        "pcg64": rng.bit_generator.state,
        "mt19937": np.random.Generator(np.random.MT19937(1)).bit_generator.state,
        "python": random.Random(1).getstate(),
        "torch": torch.get_rng_state(),
        "ale": b"\x00\xffstate",
        "empty": [{}, [], (), b"", ""],
        "floats": [float("nan"), float("inf"), -float("inf"), -0.0, 0.1, 5e-324, 1e308],
        "ints": [0, -1, 2**128 + 1, True, False, None],
        "scalars": [np.float32(0.1), np.float64("nan"), np.int64(3), np.bool_(True)],
        "$float": "nan",
        "nested": {"$tuple": [1], 3: "int key", "dotted.name": torch.ones(1)},
        "dotted": {"name": torch.zeros(1), "__metadata__": torch.ones(2)},
        "dotted.name": torch.ones(3),
        "__metadata__": np.ones(1),
    }
    assert same(roundtrip(tmp_path, state), state)


def test_parameters_views_and_mappings_become_plain(tmp_path: Path) -> None:
    """Tensors that share memory, as views into a flat parameter buffer do, are no obstacle."""
    flat = torch.arange(6, dtype=torch.float32)
    state = roundtrip(
        tmp_path,
        {
            "parameter": torch.nn.Parameter(flat),
            "view": flat[2:4],
            "strided": flat.view(2, 3).T,
            "read-only": np.broadcast_to(np.float32(2), (3,)),
            "ordered": OrderedDict(b=1, a=2),
        },
    )
    assert same(state["parameter"], flat)
    assert same(state["view"], torch.tensor([2.0, 3.0]))
    assert state["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert state["read-only"].tolist() == [2, 2, 2]
    assert state["ordered"] == {"b": 1, "a": 2}
    state["parameter"][0] = 9  # its own memory, writable


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    hnp.arrays(st.sampled_from(["f4", "f8", "i8", "u1", "?"]), hnp.array_shapes(min_side=0)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=80)
@given(TREES)
def test_any_tree_survives_json(tree: Any) -> None:
    plain, arrays = encode_tree(tree)

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrays[name]))

    assert same(decode_tree(json.loads(json.dumps(plain)), read), tree)


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([0.5, float("nan"), float("-inf"), -0.0] * 256, "float64"),
        ([-(2**63), 2**63 - 1] * 512, "int64"),
        ([0.5] * 1023, None),
        ([2**63] * 1024, None),
        ([1, 0.5] * 512, None),
        ([True] * 1024, None),
    ],
    ids=["floats", "ints", "few", "large", "mixed", "bools"],
)
def test_long_lists_of_numbers_are_kept_as_arrays(numbers: list[Any], dtype: str | None) -> None:
    """A callback that keeps each episode's return would have millions of them as text."""
    plain, arrays = encode_tree({"returns": numbers})

    assert {name: str(array.dtype) for name, array in arrays.items()} == (
        {} if dtype is None else {"returns": dtype}
    )
    assert len(json.dumps(plain)) < 40 or dtype is None
    assert same(
        decode_tree(plain, lambda name: torch.from_numpy(arrays[name])), {"returns": numbers}
    )


def test_long_lists_survive_the_files(tmp_path: Path) -> None:
    state = {"callbacks": {"Returns": [1.5] * 2000, "lengths": [7] * 2000}}

    assert same(roundtrip(tmp_path, state), state)


def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MANIFEST_LIMIT", 20_000)
    state = {"algorithm": {"steps": 1}, "callbacks": {"Names": ["a long name"] * 5_000}}

    with pytest.raises(CheckpointError, match=r"75,0\d\d bytes .* in callbacks\.Names\. Keep less"):
        save_checkpoint(tmp_path / "checkpoint", 0, state, metadata={})
    assert list(tmp_path.iterdir()) == []


def test_the_tensor_file_is_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    tensors = {"a": {"b": torch.rand(3, 2)}, "c": torch.tensor(True), "d": torch.rand(5).double()}
    save_checkpoint(tmp_path / "checkpoint", 0, tensors, metadata={})
    read = load_file(tmp_path / "checkpoint" / "tensors.safetensors")
    expected = {"a.b": tensors["a"]["b"], "c": tensors["c"], "d": tensors["d"]}
    assert same(dict(sorted(read.items())), expected)


class Odd:
    pass


@pytest.mark.parametrize(
    ("leaf", "problem"),
    [
        (Odd(), "Odd, which is not plain data"),
        (lambda: None, "function, which is not plain data"),
        ({1, 2}, "set, which is not plain data"),
        (torch.Size([1]), "Size, which is not plain data"),
        (np.array(["text"]), "dtype <U4"),
        (np.array([None]), "dtype object"),
        (np.ones(1, dtype=">f4"), "dtype >f4"),
        (np.ma.masked_array([1.0]), "MaskedArray"),
        (torch.ones(2).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "meta device"),
        ({(1, 2): 3}, "has the key"),
        pytest.param(10**5000, "too large", id="int"),
    ],
)
def test_what_is_not_plain_data_is_refused_by_its_place(
    tmp_path: Path, leaf: object, problem: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"policy\.1\.x .*{problem}"):
        save_checkpoint(tmp_path / "checkpoint", 0, {"policy": [0, {"x": leaf}]}, metadata={})
    assert list(tmp_path.iterdir()) == []


def test_cycles_and_arrays_in_metadata_are_refused(tmp_path: Path) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(CheckpointError, match="is there a cycle"):
        save_checkpoint(tmp_path / "checkpoint", 0, {"cycle": cycle}, metadata={})
    with pytest.raises(CheckpointError, match="metadata holds the array 'x'"):
        save_checkpoint(tmp_path / "checkpoint", 0, {}, metadata={"x": np.ones(1)})


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "step_000000000007"
    state = {"w": torch.arange(100.0), "n": np.arange(9), "t": (1, 2)}
    save_checkpoint(path, 7, state, metadata={"env": "X", "nan": float("nan")}, score=1.5)
    return path


def test_step_metadata_and_score_come_back(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(saved(tmp_path))
    assert (checkpoint.step, checkpoint.score, checkpoint.path.name) == (
        7,
        1.5,
        "step_000000000007",
    )
    assert same(checkpoint.metadata, {"env": "X", "nan": float("nan")})


FILES = ["manifest.json", "state.json", "tensors.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_missing_empty_and_truncated_files_are_named(tmp_path: Path, name: str) -> None:
    """Fault 27: a checkpoint must be refused by name, never half loaded."""
    path = saved(tmp_path)
    whole = (path / name).read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 2):
        (path / name).write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError, match=name.replace(".", r"\.")):
            load_checkpoint(path)
    (path / name).unlink()
    with pytest.raises(CorruptCheckpointError, match=rf"{name} is missing"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    """Each file at 60 places, the manifest's version, hashes and metadata among them."""
    path = saved(tmp_path)
    whole = (path / name).read_bytes()
    rng = random.Random(0)
    for place in rng.sample(range(len(whole) - 1), min(60, len(whole) - 1)):
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.randrange(8)
        if name == "manifest.json" and _same_json(bytes(broken), whole):
            continue  # white space for white space
        (path / name).write_bytes(broken)
        with pytest.raises(CorruptCheckpointError):
            load_checkpoint(path)


def _same_json(left: bytes, right: bytes) -> bool:
    try:
        return json.loads(left) == json.loads(right) and b"NaN" not in left
    except ValueError:
        return False


def rewrite(path: Path, change: dict[str, Any], *, files: dict[str, bytes] | None = None) -> None:
    """Alter a checkpoint as somebody would who knows the format: with hashes that fit."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name, data in (files or {}).items():
        (path / name).write_bytes(data)
        entry = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
        manifest["files"][name] = entry
    manifest.update(change)
    del manifest["manifest_sha256"]
    text = json.dumps(manifest, sort_keys=True).encode()
    manifest["manifest_sha256"] = hashlib.sha256(text).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_future_version_is_incompatible(tmp_path: Path) -> None:
    path = saved(tmp_path)
    rewrite(path, {"format_version": 2})
    with pytest.raises(IncompatibleCheckpointError, match=r"format version 2.*reads 1"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"step": -1},
        {"step": "7"},
        {"score": "high"},
        {"files": {}},
        {"files": []},
        {"files": {"../../etc/passwd": {"sha256": "", "size_bytes": 0}}},
        {"files": {"state.json": None, "tensors.safetensors": None}},
        {"metadata": {"$array": "w", "kind": "torch", "dtype": "float32"}},
        {"metadata": [1]},
    ],
)
def test_hostile_manifest_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = saved(tmp_path)
    rewrite(path, change)
    with pytest.raises(CorruptCheckpointError):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[1]",
        b"[" * 100_000,
        b'{"x": {"$call": "os.system"}}',
        b'{"x": {"$array": "absent", "kind": "torch", "dtype": "float32"}}',
        b'{"x": {"$array": "w", "kind": "torch", "dtype": "int64"}}',
        b'{"x": {"$array": "w", "kind": "torch", "dtype": ["float32"]}}',
        b'{"x": {"$array": "w", "kind": "pickle", "dtype": "float32"}}',
        b'{"x": {"$array": "w", "kind": "scalar", "dtype": "float32"}}',
        b'{"x": {"$array": ["w"], "kind": "torch", "dtype": "float32"}}',
        b'{"x": {"$list": "w"}}',
        b'{"x": {"$list": "absent"}}',
        b'{"x": {"$list": 3}}',
        b'{"x": {"$float": "1"}}',
        b'{"x": {"$float": ["nan"]}}',
        b'{"x": {"$tuple": 3}}',
        b'{"x": {"$pairs": [1]}}',
        b'{"x": {"$pairs": [[[], 1]]}}',
        b'{"x": ' + b"9" * 10_000 + b"}",
    ],
)
def test_hostile_state_is_refused(tmp_path: Path, state: bytes) -> None:
    path = saved(tmp_path)
    rewrite(path, {}, files={"state.json": state})
    with pytest.raises(CorruptCheckpointError, match=r"state\.json|safetensors"):
        load_checkpoint(path)


def test_hostile_tensor_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    header = b'{"w":{"dtype":"F32","shape":[100],"data_offsets":[0,4000000]}}'
    for data in (b"", b"\x80\x04.", len(header).to_bytes(8, "little") + header):
        rewrite(path, {}, files={"tensors.safetensors": data})
        with pytest.raises(CorruptCheckpointError, match="safetensors"):
            load_checkpoint(path)


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (path / "state.json").rename(tmp_path / "elsewhere.json")
    (path / "state.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CorruptCheckpointError, match="not a regular file"):
        load_checkpoint(path)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(CorruptCheckpointError, match="not a regular file"):
        load_checkpoint(path)


def test_params_sha256_depends_on_names_dtypes_shapes_and_bytes() -> None:
    """The expected digest is written out from the definition."""
    weight = torch.tensor([[1.0, 2.0]])
    text = b'["w", "float32", [1, 2]]\n' + weight.numpy().tobytes()
    assert params_sha256({"w": weight}) == hashlib.sha256(text).hexdigest()
    two = {"a": torch.ones(2), "b": torch.zeros(2)}
    assert params_sha256(two) == params_sha256(dict(reversed(two.items())))
    variants = [
        {"w": weight},
        {"v": weight},
        {"w": weight.T},
        {"w": weight.double()},
        {"w": weight.view(torch.int32)},
        {"w": weight + 1},
        two,
        {"a": torch.zeros(2), "b": torch.ones(2)},
    ]
    assert len({params_sha256(variant) for variant in variants}) == len(variants)


def test_a_tensor_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """One of 50 MB that was named 24 times took 1.5 GB."""
    write_tensors(tmp_path / "file", {"big": torch.zeros(3)})
    with open_tensors(tmp_path / "file") as read:
        assert read("big").tolist() == [0, 0, 0]
        with pytest.raises(ValueError, match="'big' is named twice"):
            read("big")


def test_tensors_that_cannot_be_mapped_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap 3221225472 bytes: Cannot allocate memory (12)")

    monkeypatch.setattr("redline.train.checkpoint.files.safe_open", full)
    with (
        pytest.raises(CorruptCheckpointError, match="cannot be taken into memory"),
        open_tensors(tmp_path / "file"),
    ):
        pass
