"""The HTML page in a real browser: its numbers, its controls, and that nothing in it runs or calls.

Needs Playwright and Chromium (the system's, or `playwright install chromium`); without them it is
skipped, or fails where REDLINE_REQUIRE_BROWSER is set, as in CI.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

pytest.importorskip("plotly")

from redline.profile import levels
from redline.profile.analyse.processes import WaitsFor
from redline.profile.analyse.summary import CounterRow, ShareRow, summarize
from redline.profile.commands import main
from redline.profile.gpu.activity import DeviceBusy, Launched
from redline.profile.reader import open_session
from redline.profile.report.html import embed_json, render_html

TAG = "</script><script>window.hacked=1</script>"
IMAGE = "<img src=x onerror=window.hacked=1>"
PROGRAM = f"""
import multiprocessing, time
from redline import profile

def work():
    with profile.operation({IMAGE!r}):
        mujoco.spin(30_000_000)

def load():
    time.sleep(0.1)  # so that both fall into a range that is chosen
    global mujoco, torch
    import mujoco, torch

if __name__ == "__main__":
    profile.metadata(env={TAG!r})
    load()
    with profile.operation("simulation"):
        mujoco.spin(60_000_000)
    for _ in range(20):
        with profile.phase("<i>second"), profile.operation("inference"):
            torch.spin(1_000_000)
        time.sleep(0.001)
    child = multiprocessing.get_context("fork").Process(target=work, name={TAG!r})
    child.start()
    child.join()
"""

Times = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, stubs: Path) -> Path:
    """A session of two processes whose names are an attack."""
    directory = tmp_path_factory.mktemp("page")
    script = directory / "program.py"
    script.write_text(PROGRAM)
    session = directory / "session"
    command = [sys.executable, "-m", "redline.profile", "profile", "--out", str(session)]
    environment = {**os.environ, "PYTHONPATH": str(stubs)}
    command += ["--no-calibration", "--", sys.executable, str(script)]
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=120)
    return session


def _without_browser(reason: str) -> NoReturn:
    if os.environ.get("REDLINE_REQUIRE_BROWSER"):
        pytest.fail(f"REDLINE_REQUIRE_BROWSER is set, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _without_browser("playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        except Error as error:
            _without_browser(f"no Chromium starts: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


class Page:
    """An open page, what it asked for and what it complained of."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.url = path.as_uri()
        self._context = browser.new_context(offline=True, viewport={"width": 1000, "height": 600})
        self.tab = self._context.new_page()
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(self.url)
        self.tab.wait_for_selector("body[data-ready]")

    def close(self) -> None:
        self._context.close()

    def rows(self, table: str, kind: str) -> dict[str, dict[str, str]]:
        """Per row of a table, what its cells hold in `data-s`, by their `data-<kind>`."""
        return self.tab.evaluate(
            """([table, kind]) => Object.fromEntries(
                [...document.querySelectorAll(`#${table} tbody tr`)].map((row) => [
                    row.cells[0].textContent,
                    Object.fromEntries([...row.querySelectorAll(`td[data-${kind}]`)].map(
                        (cell) => [cell.dataset[kind], cell.dataset.s]))]))""",
            [table, kind],
        )

    def breakdown(self) -> Times:
        """{(operation, level): seconds} as the table has it, what is zero left out."""
        table = self.rows("breakdown", "level")
        return {
            (operation, level): float(seconds)
            for operation, row in table.items()
            for level, seconds in row.items()
            if float(seconds)
        }

    def choose_range(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Enter a range into the controls; the range in s that the page took."""
        first, last = self.tab.evaluate(
            """([begin, end]) => {
                const [from, to] = ["from", "to"].map((id) => document.getElementById(id));
                [from.value, to.value] = [begin, end];
                to.dispatchEvent(new Event("change"));
                const { edges_s } = JSON.parse(document.getElementById("data").textContent);
                const nearest = (s) => edges_s.reduce(
                    (best, edge) => (Math.abs(edge - s) < Math.abs(best - s) ? edge : best));
                return [nearest(+from.value), nearest(+to.value)];
            }""",
            [begin_s, end_s],
        )
        return first, last


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    pages: list[Page] = []

    def open_text(text: str) -> Page:
        path = tmp_path / f"page-{len(pages)}.html"
        path.write_text(text, encoding="utf-8")
        pages.append(Page(browser, path))
        return pages[-1]

    yield open_text
    for page in pages:
        page.close()


@pytest.fixture  # of each test, like `unscheduled`: both look at the same times
def text(recorded: Path) -> str:
    return render_html(open_session(recorded), summarize(recorded))


def expected(cells: list[dict[str, Any]], measure: str, pid: int | None = None) -> Times:
    times: Times = defaultdict(float)
    for cell in cells:
        if pid is None or cell["pid"] == pid:
            times[cell["operation"], cell["level"]] += cell[measure]
    return dict(times)


def test_numbers_equal_the_json_report_and_nothing_is_requested(
    open_page: Any, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.html"
    assert main(["report", str(recorded), "--html", str(output)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["report", str(recorded), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    page = open_page(output.read_text())
    assert page.breakdown() == pytest.approx(expected(report["cells"], "corrected_s"), abs=1e-9)
    page.tab.check("input[value=raw]")
    assert page.breakdown() == pytest.approx(expected(report["cells"], "raw_s"), abs=1e-9)
    for row, process in enumerate(report["processes"]):
        page.tab.select_option("#process", str(row))
        assert page.breakdown() == pytest.approx(
            expected(report["cells"], "raw_s", process["pid"]), abs=1e-9
        )
        total = page.tab.get_attribute("#breakdown tr[data-total] td[data-measure=raw]", "data-s")
        assert float(total) == pytest.approx(process["wall_s"], abs=1e-9)
        shown = page.tab.inner_text("#breakdown tr[data-total] td[data-measure=raw]")
        assert shown == f"{process['wall_s']:.3f}"
    spin = next(f for f in report["functions"] if f["function"] == "torch.spin")
    page.tab.select_option("#process", "")
    cells = page.tab.locator("#functions tr[data-function='torch.spin'] td")
    assert cells.nth(2).inner_text() == str(spin["calls"])
    assert float(cells.nth(3).get_attribute("data-s")) == pytest.approx(spin["total_s"])
    assert page.complaints == []
    assert page.requests == [page.url]


def plain_times(process: Any, begin_ns: float, end_ns: float) -> tuple[Times, dict[str, float]]:
    """(operation, level) seconds in a range, and inclusive seconds of functions.

    Event by event in plain Python, of a process with one thread; times are CLOCK_MONOTONIC ns.
    """
    from tests.profile.shards import WINDOW_OFF, WINDOW_ON, read_events

    names = process.names
    rows = [(n.id, n.kind, n.id) for n in names.values()]
    everything = read_events(process.threads[0].path, rows)
    window = {e[1]: e[0] + process.base_ns for e in everything if e[1] in (WINDOW_ON, WINDOW_OFF)}
    begin_ns, end_ns = max(begin_ns, window[WINDOW_ON]), min(end_ns, window[WINDOW_OFF])
    events = [e for e in everything if e[1] in ("begin", "end")]
    stack: list[int] = []
    times: Times = defaultdict(float)
    functions: dict[str, float] = defaultdict(float)
    now = 0
    for time_ns, what, name in [*events, (int(process.end["time_ns"]) - process.base_ns, "", 0)]:
        begin = max(now + process.base_ns, begin_ns)
        length = max(min(time_ns + process.base_ns, end_ns) - begin, 0) / 1e9
        kinds = [names[each] for each in stack]
        operations = [n.name for n in kinds if n.kind == "operation"]
        calls = [n for n in kinds if n.kind == "call"]
        level = levels.LEVELS[calls[-1].level] if calls else "python"
        if length:
            times[operations[-1] if operations else "other", level] += length
            for function in {f"{call.module}.{call.name}" for call in calls}:
                functions[function] += length
        now = time_ns
        if what == "begin":
            stack.append(name)
        elif what == "end":
            stack.remove(name)
    return dict(times), dict(functions)


def test_a_time_range_counts_what_happened_in_it(open_page: Any, text: str, recorded: Path) -> None:
    """Against a plain reading of the events, to the rounding of the edges to 1 ns."""
    session = open_session(recorded)
    process = session.processes[0]
    page = open_page(text)
    page.tab.select_option("#process", "0")
    page.tab.check("input[value=raw]")
    end_s = summarize(session).wall_s
    for fractions in ((0.2, 0.7), (0.5, 0.55), (0.7, 0.2)):
        begin_s, until_s = page.choose_range(*(end_s * f for f in fractions))
        assert begin_s < until_s
        times, functions = plain_times(
            process, process.base_ns + begin_s * 1e9, process.base_ns + until_s * 1e9
        )
        assert page.breakdown() == pytest.approx(times, abs=1e-8)
        # Of one name there may be rows of two levels, as of loading libraries.
        shown = page.tab.evaluate(
            """() => {
                const found = {};
                for (const row of document.querySelectorAll(
                    "#functions tbody tr, #blocking tbody tr")) {
                    const name = row.dataset.function;
                    if (name) {
                        const seconds = Number(row.querySelector("[data-s]").dataset.s);
                        found[name] = (found[name] || 0) + seconds;
                    }
                }
                return found;
            }"""
        )
        found = {name: seconds for name, seconds in shown.items() if seconds}
        for name, seconds in found.items():
            assert seconds == pytest.approx(functions[name], abs=1e-8), name
        assert {n for n, s in functions.items() if s > 1e-3} <= set(found)
    page.tab.click("#whole")
    whole, _ = plain_times(process, 0, 1e30)
    assert page.breakdown() == pytest.approx(whole, abs=1e-8)
    assert page.complaints == []


def test_dragging_over_the_time_line_chooses_a_range(open_page: Any, text: str) -> None:
    page = open_page(text)
    box = page.tab.locator("#timeline .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.tab.mouse.move(box["x"] + 0.25 * box["width"], middle)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=5)
    page.tab.mouse.up()
    page.tab.wait_for_selector("#whole:enabled")
    end = page.tab.evaluate("() => JSON.parse(document.all.data.textContent).edges_s.at(-1)")
    # Whole pixels and whole bins: a fiftieth of the session is ample.
    assert float(page.tab.input_value("#from")) == pytest.approx(0.25 * end, abs=end / 50)
    assert float(page.tab.input_value("#to")) == pytest.approx(0.5 * end, abs=end / 50)


def test_correction_is_shown_beside_raw(open_page: Any, recorded: Path) -> None:
    """A tenth taken out of every cell: so it is of every range."""
    summary = summarize(recorded)
    cells = [dataclasses.replace(c, corrected_s=0.9 * c.raw_s) for c in summary.cells]
    page = open_page(render_html(open_session(recorded), dataclasses.replace(summary, cells=cells)))
    for _ in range(2):
        corrected = page.breakdown()
        page.tab.check("input[value=raw]")
        raw = page.breakdown()
        assert {key: 0.9 * value for key, value in raw.items()} == pytest.approx(corrected)
        page.tab.check("input[value=corrected]")
        page.choose_range(0.2 * summary.wall_s, 0.5 * summary.wall_s)
    assert "10.0 %" in page.tab.inner_text("#figures")


def test_a_phase_can_be_chosen(open_page: Any, text: str, recorded: Path) -> None:
    page = open_page(text)
    page.tab.select_option("#phase", "=<i>second")
    cells = [c for c in summarize(recorded).to_json()["cells"] if c["phase"] == "<i>second"]
    assert page.breakdown() == pytest.approx(expected(cells, "corrected_s"), abs=1e-9)


def test_gpu_time_and_waits_for_others_are_shown(open_page: Any, recorded: Path) -> None:
    """Two devices busy 250 and 500 ms of the second in which they were observed: 37.5%, of any
    session."""
    summary = summarize(recorded)
    first, second = summary.processes
    rows = [
        DeviceBusy(first.name, first.pid, n, 10**9, ms * 10**6, ms * 10**6, 10**7, 0, 2)
        for n, ms in ((0, 250), (1, 500))
    ]
    launched = [Launched(first.name, first.pid, "learning", "kernel", 0, 7, 3 * 10**8, 2 * 10**8)]
    waits = [WaitsFor(second.name, second.pid, "other", first.name, first.pid, "learning", 10**7)]
    shares = [ShareRow(first.name, first.pid, "level", "backend", math.nan, 0.5, 0.01, 250)]
    whole = dataclasses.replace(
        summary, gpu_devices=rows, gpu_launched=launched, waits_for=waits, shares=shares
    )
    page = open_page(render_html(open_session(recorded), whole))
    cells = page.tab.locator(f"#tree tr[data-pid='{first.pid}'] td").all_inner_texts()
    assert cells[6] == "37.5 %"
    assert "37.5 % of 2.000 s of windows" in page.tab.inner_text("#figures")
    assert page.tab.locator("#shares tbody td").all_inner_texts() == [
        *("backend", "level", first.name, "–", "50.0 %", "1.0 %", "250")  # noqa: RUF001
    ]
    assert page.tab.locator("#devices tbody tr").all_inner_texts() == [
        *(
            f"{n}\t{first.name}\t1.000\t{s}\t{p} %\t{s}\t0.010\t2"
            for n, s, p in ((0, "0.250", "25.0"), (1, "0.500", "50.0"))
        )
    ]
    assert page.tab.inner_text("#launched tbody") == "learning\tkernel\t7\t0.200\t0.300"
    assert page.tab.locator("#waits-for tbody td").all_inner_texts() == [
        *(f"other of {TAG}", f"learning of {first.name}", "0.010")
    ]
    plain = open_page(render_html(open_session(recorded), summary))
    assert not plain.tab.is_visible("#gpu")


def test_names_are_text_only_and_the_page_lets_no_script_in_and_nothing_out(
    open_page: Any, text: str
) -> None:
    page = open_page(text)
    assert page.tab.evaluate("() => window.hacked") is None
    assert page.tab.locator("img").count() == 0
    assert page.tab.locator("script").count() == 3
    assert TAG in page.tab.inner_text("#tree")
    assert TAG in page.tab.inner_text("#metadata")
    assert IMAGE in page.tab.inner_text("#breakdown")
    ticks = page.tab.locator("#bars .ytick text").all_text_contents()
    assert IMAGE in ticks
    assert page.complaints == []
    page.tab.evaluate(
        """() => { const added = document.createElement("script");
                   added.textContent = "window.hacked = 1"; document.body.append(added); }"""
    )
    assert page.tab.evaluate("() => window.hacked") is None
    refused = page.tab.evaluate("() => fetch('https://example.com').then(() => 0, () => 1)")
    assert refused == 1
    assert any("Content Security Policy" in complaint for complaint in page.complaints)
    assert page.requests == [page.url]


def test_embedded_json_cannot_end_its_element() -> None:
    value = {"name": "</script><!-- & \u2028", "numbers": [1, 2.5, None]}
    text = embed_json(value)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == value


def test_a_session_without_processes_is_a_page(open_page: Any, recorded: Path) -> None:
    session = dataclasses.replace(open_session(recorded), processes=[])
    page = open_page(render_html(session, summarize(session)))
    assert page.breakdown() == {}
    assert page.complaints == []


def test_progress_and_counters_are_shown(open_page: Any, recorded: Path) -> None:
    """40 of 100 done; the counters of two operations, the one with more of the first on top."""
    summary = summarize(recorded)
    first, *others = summary.processes
    told = dataclasses.replace(
        first, progress_done=40.0, progress_total=100.0, progress_per_s=2.0, progress_whole_s=50.0
    )
    counters = [
        CounterRow(first.name, first.pid, operation, counter, float(value))
        for operation, values in {"few": (5, 7), "many": (12_000, 3)}.items()
        for counter, value in zip(("instructions", "page faults"), values, strict=True)
    ]
    changed = dataclasses.replace(summary, processes=[told, *others], counters=counters)
    page = open_page(render_html(open_session(recorded), changed))
    assert "40.0 % done, all in 50" in page.tab.inner_text("#tree")
    lines = page.tab.inner_text("#counted").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["operation", "many", "few"]
    assert page.complaints == []
