"""Figures and CSV tables of summaries given by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.profile.analyse.summary import Cell, FunctionRow, ProcessRow, Summary
from redline.profile.analyse.transitions import Transitions
from redline.profile.commands import main
from redline.profile.gpu.activity import DeviceBusy
from redline.profile.report.tables import write_table, write_tables


def process(name: str, pid: int, parent: int, wall_s: float = 2.0) -> ProcessRow:
    return ProcessRow(name, pid, parent, wall_s, 1.5, True, {"env": "a,b"}, [], recorded_cpu_s=1.5)


def summary(session: str = "runs/ppo") -> Summary:
    """2 s of Python and 1 s of back end in two operations of two processes."""
    cells = [
        Cell("program", 1, "", "simulation", "python", False, 1.5, 1.25),
        Cell("program", 1, "late", "simulation", "python", True, 0.5, 0.25),
        Cell('say "$hi"', 2, "", "inference", "backend", False, 1.0, 1.0),
    ]
    rows = [process("program", 1, 0), process('say "$hi"', 2, 1)]
    functions = [FunctionRow("program", 1, "backend", "torch.add", 7, 0.125)]
    return Summary(session, "full", 2.0, rows, cells, [], functions, 0, [])


def test_tables_hold_every_row_and_every_column() -> None:
    file = io.StringIO()
    write_table("cells", [summary()], file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["corrected_s"] for row in rows] == ["1.25", "0.25", "1.0"]
    assert rows[2]["process"] == 'say "$hi"'
    assert list(rows[0]) == [
        *("process", "pid", "phase", "operation", "level", "gpu_busy", "raw_s", "corrected_s"),
        *("ci_low_s", "ci_high_s"),
    ]


def test_tables_of_two_sessions_say_whose_row_it_is(tmp_path: Path) -> None:
    paths = write_tables([summary("a"), summary("b")], tmp_path / "new" / "tables")
    assert [path.name for path in paths] == ["processes.csv", "cells.csv", "functions.csv"]
    rows = list(csv.DictReader(io.StringIO(paths[0].read_text())))
    assert [(row["session"], row["pid"]) for row in rows] == [
        *(("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"))
    ]
    assert json.loads(rows[0]["metadata"]) == {"env": "a,b"}


def test_a_session_without_rows_is_an_empty_table() -> None:
    file = io.StringIO()
    write_table("cells", [Summary("a", "light", 0.0, [], [], [], [], 0, [])], file)
    assert file.getvalue() == ""


class TestFigures:
    """Only where matplotlib is."""

    @pytest.fixture(autouse=True)
    def _needs_matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_bars_stack_to_the_times(self) -> None:
        """Per operation, heights of the levels and where they stand, by hand."""
        from matplotlib.figure import Figure

        from redline.profile.report.figures import _operations

        figure = Figure()
        _operations(figure, [summary()], ["ppo"], percent=False)
        axes = figure.axes[0]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["simulation", "inference"]
        bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
        assert bars == [(0.0, 1.5), (0.0, 0.0), (1.5, 0.0), (0.0, 1.0)]
        percent = Figure()
        _operations(percent, [summary()], ["ppo"], percent=True)
        heights = [bar.get_height() for bar in percent.axes[0].patches]
        assert heights == pytest.approx([60.0, 0.0, 0.0, 40.0])

    def test_seconds_by_level_sum_over_phases_and_processes(self) -> None:
        from redline.profile.report.figures import seconds_by_level

        assert seconds_by_level(summary()) == {
            "simulation": {"python": 1.5},
            "inference": {"backend": 1.0},
        }

    def test_transitions_per_step_or_per_entry(self) -> None:
        """12 calls and 4 entries in 3 steps, by hand; a session without steps has only entries."""
        from redline.profile.report.figures import transitions_by_level

        def made(operation: str, count: int, steps: int, entries: int) -> Transitions:
            return Transitions("program", 1, operation, "backend", count, steps, entries)

        rows = [made("inference", 12, 3, 4), made("other", 6, 3, 0)]
        one = dataclasses.replace(summary(), transitions=rows)
        assert transitions_by_level([one]) == (
            [{"inference": {"backend": 4.0}, "other": {"backend": 2.0}}],
            True,
        )
        unmarked = dataclasses.replace(summary(), transitions=[made("inference", 10, 0, 5)])
        assert transitions_by_level([one, unmarked]) == (
            [{"inference": {"backend": 3.0}}, {"inference": {"backend": 2.0}}],
            False,
        )

    def test_times_of_a_process(self) -> None:
        """Two GPUs, each busy a quarter of the second in which it was observed: 1 s of 2 s."""
        from redline.profile.report.figures import _times

        devices = [DeviceBusy("program", 1, n, 10**9, 25 * 10**7, 0, 0, 0, 1) for n in (0, 1)]
        waiting = [Cell("program", 1, "", "other", "waiting", False, 0.25, 0.25)]
        one = summary()
        one = dataclasses.replace(one, gpu_devices=devices, cells=[*one.cells, *waiting])
        assert _times(one.processes[0], one) == (2.0, 1.5, 0.25, 1.0)

    def test_children_follow_their_parents(self) -> None:
        """Also where a parent is not part of the session, or pids make a circle."""
        from redline.profile.report.figures import process_tree

        rows = [process(str(pid), pid, parent) for pid, parent in ((1, 0), (2, 1), (3, 1), (4, 2))]
        assert [(p.pid, depth) for p, depth in process_tree(rows)] == [
            *((1, 0), (2, 1), (4, 2), (3, 1))
        ]

    def test_labels_are_the_shortest_that_differ(self) -> None:
        from redline.profile.report.figures import labels_of

        paths = ["runs/a/profile", "runs/b/profile", "runs/c", "runs/c"]
        assert labels_of([summary(path) for path in paths]) == [
            *("a/profile", "b/profile", "c (1)", "c (2)")
        ]

    def test_bias_by_hand(self, tmp_path: Path) -> None:
        """11 s for 10 s is +10%, 9.8 s is -2%."""
        from redline.profile.report.bias import read_biases

        path = tmp_path / "bias.json"
        row = {"workload": "PPO", "unprofiled_s": 10, "raw_s": 11, "corrected_s": 9.8}
        path.write_text(json.dumps([row]))
        (bias,) = read_biases(path)
        assert bias.percent("raw") == pytest.approx(10.0)
        assert bias.percent("corrected") == pytest.approx(-2.0)

    @pytest.mark.parametrize("text", ["{", "[1]", '[{"workload": "a"}]', "3"])
    def test_a_bias_file_of_another_form_is_refused(self, tmp_path: Path, text: str) -> None:
        from redline.profile.report.bias import read_biases

        path = tmp_path / "bias.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match="Give a list of objects with workload"):
            read_biases(path)

    @pytest.mark.parametrize(
        ("kind", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
    )
    def test_every_figure_is_drawn(self, tmp_path: Path, kind: str, magic: bytes) -> None:
        from redline.profile.report.bias import Bias
        from redline.profile.report.figures import write_figures

        empty = Summary("b/empty", "light", 0.0, [], [], [], [], 0, [])
        biases = [Bias("PPO", 10.0, 11.0, 9.8), Bias("SAC", 4.0, 4.0, 4.0)]
        rows = [Transitions("program", 1, "inference", "backend", 12, 3, 4)]
        one = dataclasses.replace(summary(), transitions=rows)
        paths = write_figures([one, empty], tmp_path / "figures", kind, biases=biases)
        assert {path.stem for path in paths} == {
            *("operations-seconds", "operations-percent", "training-time"),
            *("processes-ppo", "processes-empty", "transitions", "correction-bias"),
        }
        assert all(path.read_bytes().startswith(magic) for path in paths)


def test_commands(profiled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    profiled.run("import mujoco\nmujoco.spin(5_000_000)\n")
    session = str(profiled.session)
    assert main(["report", session, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("process,pid,phase,operation,level,gpu_busy,raw_s")
    assert main(["report", session, session, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    tables = profiled.directory / "tables"
    assert main(["report", session, "--csv", str(tables)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote {tables / 'cells.csv'}" in captured.err
    assert main(["report", session, session, "--html", "page.html"]) == 2
    assert "--html shows one session" in capsys.readouterr().err
    assert main(["report", session, "--bias", "bias.json"]) == 2
    assert "Give --figures DIR" in capsys.readouterr().err
    trace = profiled.directory / "t.pftrace"
    assert main(["trace", session, "--out", str(trace)]) == 0
    assert trace.stat().st_size > 0
