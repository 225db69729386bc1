"""What a session holds that no recording writes: links, pipes, bombs. Refused, quickly and by name.

Of each the rest of the session is read as if the file held nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from redline.errors import SessionError
from redline.profile import _sweep, layout
from redline.profile.analyse.samples import read_machine_samples
from redline.profile.read import framing
from redline.profile.reader import open_session, read_rows, regular_size
from tests.profile.test_odd_sessions import END, START, report, write_session

ROWS_PLACE = 72  # in the header of a batch, see csrc/arrow_stream.h
ROWS = {
    "delta_ns": pa.array([0, 0, 7], pa.uint32()),
    "code": pa.array([layout.CODE_HIGH, layout.CODE_ANCHOR, layout.CODE_STEP], pa.uint16()),
}


def write_stream(path: Path, rows: dict[str, Any], **options: Any) -> None:
    """An Arrow stream of one batch."""
    table = pa.table(rows)
    settings = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=settings) as writer,
    ):
        writer.write_table(table)


def make_odd(path: Path, kind: str, target: Path) -> None:
    """A link to a file, a pipe that nobody writes to, or a directory."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_regular_files_have_a_size(tmp_path: Path, kind: str) -> None:
    good, odd = tmp_path / "good", tmp_path / "odd"
    good.write_bytes(b"12345")
    make_odd(odd, kind, good)
    assert regular_size(good) == 5
    with pytest.raises(OSError, match=f"odd is {'a link' if kind == 'link' else 'a special file'}"):
        regular_size(odd)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_an_odd_shard_is_named_and_never_opened(tmp_path: Path, kind: str) -> None:
    """A pipe would keep the reader forever, and a link show what the user may read elsewhere."""
    process = write_session(tmp_path / "session", [START, END])
    write_stream(tmp_path / "elsewhere.arrow", ROWS)
    write_stream(process / "thread-00000.arrow", ROWS)
    make_odd(process / "thread-00001.arrow", kind, tmp_path / "elsewhere.arrow")
    (opened,) = open_session(tmp_path / "session").processes
    assert [len(shard.codes) for shard in opened.threads] == [3, 0]
    assert [p for p in opened.problems if p.startswith("thread-00001.arrow: cut short after 0")]
    assert report(tmp_path / "session").wall_s > 0


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", ["process.jsonl", "names.jsonl"])
def test_odd_notes_are_named(tmp_path: Path, kind: str, name: str) -> None:
    process = write_session(tmp_path / "session", [START, END], [[8, "call", "secret", 1, None]])
    (process / name).rename(tmp_path / name)
    make_odd(process / name, kind, tmp_path / name)
    session = open_session(tmp_path / "session")
    if name == "process.jsonl":
        assert session.processes == []
    else:
        (opened,) = session.processes
        assert opened.names == {}
        assert any("names.jsonl is a" in problem for problem in opened.problems)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_odd_manifest_is_refused(tmp_path: Path, kind: str) -> None:
    write_session(tmp_path / "session", [START])
    manifest = tmp_path / "session" / "session.json"
    manifest.rename(tmp_path / "kept.json")
    make_odd(manifest, kind, tmp_path / "kept.json")
    with pytest.raises(SessionError, match=r"session\.json is a"):
        open_session(tmp_path / "session")


def test_a_process_directory_that_is_a_link_is_left_out(tmp_path: Path) -> None:
    process = write_session(tmp_path / "session", [START, END])
    process.rename(tmp_path / "elsewhere")
    process.symlink_to(tmp_path / "elsewhere")
    assert open_session(tmp_path / "session").processes == []


def test_odd_readings_are_named(tmp_path: Path) -> None:
    write_session(tmp_path, [START, END])
    os.mkfifo(tmp_path / layout.MACHINE_SAMPLES)
    samples = read_machine_samples(open_session(tmp_path))
    assert samples is not None
    assert samples.problems == ["samples.jsonl is a special file, which sessions do not hold"]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_bomb_is_refused_without_unpacking_it(tmp_path: Path, codec: str) -> None:
    """120 MB of zeros in a few kB: only the header is looked at, nothing is allocated."""
    rows = 20_000_000
    path = tmp_path / "thread-00000.arrow"
    zeros = {"delta_ns": np.zeros(rows, np.uint32), "code": np.zeros(rows, np.uint16)}
    write_stream(path, zeros, compression=codec)
    del zeros
    assert path.stat().st_size < 1_000_000
    before = pa.total_allocated_bytes()
    shard = read_rows(path)
    assert len(shard.codes) == 0
    assert shard.problem is not None
    assert "it is compressed, which recordings are not" in shard.problem
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_rows_are_capped_by_the_size_of_the_file(tmp_path: Path) -> None:
    """Two batches whose columns are the same bytes: each is sound, both together are not."""
    path = tmp_path / "thread-00000.arrow"
    rows = {
        "delta_ns": pa.array(range(1000), pa.uint32()),
        "code": pa.array([layout.CODE_BEAT] * 1000, pa.uint16()),
    }
    write_stream(path, rows)
    whole = path.read_bytes()
    assert len(read_rows(path).codes) == 1000
    # The length of the record batch in its header and in both columns: 10 times the truth.
    claimed = whole.replace((1000).to_bytes(8, "little"), (10_000).to_bytes(8, "little"))
    assert claimed != whole
    path.write_bytes(claimed)
    shard = read_rows(path)
    assert len(shard.codes) == 0
    assert shard.problem is not None
    assert "cut short after 0 rows" in shard.problem


@pytest.mark.usefixtures("with_scheduler")
def test_the_report_names_every_file_that_it_refused(tmp_path: Path) -> None:
    process = write_session(tmp_path, [START, END])
    os.mkfifo(process / layout.SCHEDULER_SHARD)
    os.mkfifo(process / layout.SAMPLES_SHARD)
    os.mkfifo(process / layout.GPU_NOTES)
    named = " ".join(report(tmp_path).problems)
    assert f"{layout.GPU_NOTES} cannot be read" in named
    assert f"{layout.SCHEDULER_SHARD} is a special file" in named
    assert f"{layout.SAMPLES_SHARD} is a special file" in named


def test_a_pyarrow_that_does_not_fit_numpy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow 26 beside numpy 1.26 installs, and raises when it is imported."""

    def no_pyarrow(name: str) -> None:
        raise ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")

    monkeypatch.setattr("redline.profile.read.framing.import_module", no_pyarrow)
    with pytest.raises(SessionError, match=r"found 1\.26\.4\)\. Install one that fits: pip"):
        read_rows(tmp_path / "thread-1.arrows")


def test_batches_are_read_alike_with_and_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the recorder frames them, with some in between as another writer would, and torn."""
    path = tmp_path / "thread-00000.arrow"
    schema, header_of = _sweep.arrow_schema(), _sweep.arrow_header
    text = bytearray(schema)
    rows = [0, 1, 2, 7, 4096, 3]
    for number in rows:
        text += header_of(number) + np.arange(number, dtype=np.uint32).tobytes()
        text += bytes(-4 * number % 8) + np.full(number, 20, np.uint16).tobytes()
        text += bytes(-2 * number % 8)
    path.write_bytes(text)
    ((deltas, codes, end),) = framing.framed_batches(path)
    assert (len(deltas), len(codes), end) == (sum(rows), sum(rows), len(text))
    whole = read_rows(path)
    for cut in (len(text), len(text) - 1, len(text) - 30, len(text) // 2, 200, 100, 0):
        path.write_bytes(text[:cut])
        quick = read_rows(path)
        with monkeypatch.context() as patch:
            patch.setattr(framing, "recorder_framing", lambda: (b"", None))
            slow = read_rows(path)
        assert quick.deltas.tolist() == slow.deltas.tolist()
        assert quick.codes.tolist() == slow.codes.tolist()
        assert quick.problem == slow.problem
    assert whole.problem is None
    assert len(whole.codes) == sum(rows)


def test_a_batch_that_the_recorder_did_not_frame_goes_to_the_library(tmp_path: Path) -> None:
    """A count that its buffers cannot hold is refused there, with what comes before it kept."""
    path = tmp_path / "thread-00000.arrow"
    schema, header_of = _sweep.arrow_schema(), _sweep.arrow_header
    good = header_of(4) + bytes(16) + np.full(4, 20, np.uint16).tobytes()
    bad = bytearray(good)
    bad[ROWS_PLACE] = 40
    path.write_bytes(schema + good + bytes(bad))
    shard = read_rows(path)
    assert len(shard.codes) == 4
    assert shard.problem is not None
    assert shard.problem.startswith("cut short after 4 rows")


def test_a_folder_whose_name_is_no_utf8_costs_no_rows(tmp_path: Path) -> None:
    """The library opens files by the name that the system knows them by."""
    recorded = Path(__file__).parents[1] / "fixtures/revision-0.1/sessions/light/session"
    latin = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(recorded, latin)
    for there, here in zip(
        open_session(latin).processes, open_session(recorded).processes, strict=True
    ):
        rows = [len(shard.codes) for shard in there.threads]
        assert rows == [len(shard.codes) for shard in here.threads]
        assert there.problems == here.problems
