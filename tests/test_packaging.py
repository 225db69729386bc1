"""What the source archive holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_source_archive_holds_every_c_file_and_header(tmp_path: Path) -> None:
    """One header that is missing, and a wheel built from it silently lacks an extension."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    listed = set((tmp_path / "redline.egg-info" / "SOURCES.txt").read_text().split())
    needed = {str(path.relative_to(ROOT)) for path in ROOT.glob("src/redline/**/csrc/*.[ch]")}
    assert len(needed) >= 20
    assert needed - listed == set()
