"""Videos: frames in, the same pictures out."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redline.errors import ConfigError, MissingExtraError
from redline.train.runs.video import write_video


def frames(count: int, height: int, width: int) -> Iterator[np.ndarray]:
    """A red field that grows over a black one, eight columns per frame."""
    for index in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : 8 * (index + 1)] = (255, 0, 0)
        yield frame


def test_gif_holds_the_frames(tmp_path: Path) -> None:
    iio = pytest.importorskip("imageio.v2")
    out = write_video(frames(5, 31, 63), tmp_path / "videos" / "run.gif", fps=20)
    pictures = iio.mimread(out)
    assert len(pictures) == 5
    for picture, frame in zip(pictures, frames(5, 31, 63), strict=True):
        np.testing.assert_array_equal(picture[..., :3], frame)
    assert [path.name for path in out.parent.iterdir()] == ["run.gif"]


def test_mp4_holds_the_frames_at_their_size(tmp_path: Path) -> None:
    """An odd size grows to the next even one, and is not stretched to a multiple of 16."""
    ffmpeg: Any = pytest.importorskip("imageio_ffmpeg")
    out = write_video(frames(6, 51, 101), tmp_path / "run.mp4", fps=25)
    decode = [ffmpeg.get_ffmpeg_exe(), "-i", str(out), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(decode, capture_output=True, check=True)
    assert b"102x52" in decoded.stderr
    assert b"25 fps" in decoded.stderr
    pictures = np.frombuffer(decoded.stdout, np.uint8).reshape(6, 52, 102, 3)
    for index, picture in enumerate(pictures):
        edge = 8 * (index + 1)
        assert picture[10:40, : edge - 6, 0].min() > 200
        assert picture[10:40, edge + 6 :, 0].max() < 60


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no frames"),
        ([np.zeros((4, 4, 3))], "frame 0 has dtype float64"),
        ([np.zeros((4, 4), np.uint8)], r"shape \(4, 4\)\. A frame is uint8"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((6, 4, 3), np.uint8)], "frame 1 has shape"),
    ],
)
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_bad_frames_leave_nothing(
    tmp_path: Path, given: list[np.ndarray], message: str, suffix: str
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(ConfigError, match=message):
        write_video(given, tmp_path / f"run{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in '\.avi'.*\.mp4 or \.gif"):
        write_video(frames(1, 4, 4), tmp_path / "run.avi")
    with pytest.raises(ConfigError, match="fps=0"):
        write_video(frames(1, 4, 4), tmp_path / "run.gif", fps=0)


@pytest.mark.parametrize(
    ("package", "suffix"), [("imageio.v2", ".gif"), ("imageio_ffmpeg", ".mp4")]
)
def test_missing_packages_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, suffix: str
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'redline\[video\]'"):
        write_video(frames(1, 4, 4), tmp_path / f"run{suffix}")
