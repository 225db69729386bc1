"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { summary, levels, edges_s: edges } = data;
  const colors = data.level_colors;
  const last = edges.length - 1;
  const state = { process: "", phase: "", first: 0, end: last, measure: "corrected" };
  const byId = (id) => document.getElementById(id);
  const sum = (values) => values.reduce((a, b) => a + b, 0);

  // ---------------------------------------------------------------- numbers

  const seconds = (s) => s.toFixed(3);
  const percent = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(1) + " %" : "–");
  const count = (n) => n.toLocaleString("en-US");
  const micro = (s) => (s >= 0.001 ? (s * 1e3).toFixed(2) + " ms" : (s * 1e6).toFixed(1) + " µs");
  const isWhole = () => state.first === 0 && state.end === last;

  /** The sum of the bins [first, first + values.length) that lie in the chosen range. */
  function inRange(first, values) {
    const begin = Math.max(state.first - first, 0);
    const end = Math.min(state.end - first, values.length);
    let total = 0;
    for (let i = begin; i < end; i++) total += values[i];
    return total;
  }

  /** Seconds of a cell in the chosen range. The probe's cost is taken as even over a cell. */
  function timesOf(row) {
    const cell = summary.cells[row];
    if (isWhole()) return { raw: cell.raw_s, corrected: cell.corrected_s };
    const bins = data.cell_bins[row];
    const raw = bins ? inRange(bins[0], bins[1]) / 1e9 : 0;
    return { raw, corrected: cell.raw_s > 0 ? raw * (cell.corrected_s / cell.raw_s) : 0 };
  }

  const chosenPid = () => (state.process === "" ? null : summary.processes[+state.process].pid);

  function chosenCells() {
    const pid = chosenPid();
    const found = [];
    summary.cells.forEach((cell, row) => {
      if (pid !== null && cell.pid !== pid) return;
      if (state.phase !== "" && cell.phase !== state.phase.slice(1)) return;
      const times = timesOf(row);
      if (times.raw > 0) found.push({ ...cell, ...times, row });
    });
    return found;
  }

  /** { rows: [{ operation, raw, corrected, levels: { level: { raw, corrected } } }], raw, ... } */
  function breakdown(cells) {
    const rows = new Map();
    const total = { raw: 0, corrected: 0, levels: {} };
    const add = (into, level, cell) => {
      into.levels[level] ??= { raw: 0, corrected: 0 };
      for (const m of ["raw", "corrected"]) {
        into[m] += cell[m];
        into.levels[level][m] += cell[m];
      }
    };
    for (const cell of cells) {
      if (!rows.has(cell.operation)) {
        rows.set(cell.operation, { operation: cell.operation, raw: 0, corrected: 0, levels: {} });
      }
      add(rows.get(cell.operation), cell.level, cell);
      add(total, cell.level, cell);
    }
    total.rows = [...rows.values()].sort((a, b) => b[state.measure] - a[state.measure]);
    return total;
  }

  // -------------------------------------------------------------- elements

  function make(tag, options = {}, ...children) {
    const { text, className, title, dataset, style } = options;
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    if (title) element.title = title;
    if (dataset) Object.assign(element.dataset, dataset);
    if (style) Object.assign(element.style, style);
    element.append(...children);
    return element;
  }

  function fill(table, head, body, foot) {
    if (body.length === 0) {
      table.replaceChildren(make("tbody", {}, make("tr", {}, make("td", { text: "none", className: "none" }))));
      return;
    }
    const parts = [make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)];
    if (foot) parts.push(make("tfoot", {}, foot));
    table.replaceChildren(...parts);
  }

  const heading = (text, className) => make("th", { text, className });
  const levelHeading = (level) =>
    make("th", {}, make("span", { className: "key", style: { background: colors[level] } }), level);
  /** A cell that shows a time rounded and keeps the whole number beside it. */
  const time = (s, dataset = {}) =>
    s ? make("td", { text: seconds(s), dataset: { ...dataset, s } })
      : make("td", { text: "–", className: "none", dataset: { ...dataset, s: 0 } });
  const cellText = (text, className) => make("td", { text, className });

  /** Plotly reads a little HTML in its texts: names are to be shown as they are. */
  const plain = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function ink(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function draw(id, traces, layout) {
    const axis = { gridcolor: ink("--line"), linecolor: ink("--line"), zerolinecolor: ink("--line") };
    const { xaxis, yaxis, ...rest } = layout;
    const titled = (own) => ({
      ...axis, ...own, title: { standoff: 8, ...own.title, font: { size: 13, color: ink("--soft") } },
    });
    Plotly.react(byId(id), traces, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink("--ink") },
      margin: { l: 60, r: 12, t: 8, b: 44 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      hoverlabel: { font: { family: getComputedStyle(document.body).fontFamily } },
      ...rest, xaxis: titled(xaxis), yaxis: titled(yaxis),
    }, { displaylogo: false, displayModeBar: false, responsive: true, showTips: false });
  }

  // -------------------------------------------------------------- sections

  function showAbout() {
    const command = Array.isArray(data.command) ? data.command.join(" ") : data.command;
    byId("about").replaceChildren(
      ...(command ? [make("b", { text: command }), make("br")] : []),
      `session ${summary.session}, mode ${summary.mode}, ${seconds(summary.wall_s)} s, ` +
        `${summary.processes.length} process${summary.processes.length === 1 ? "" : "es"}`,
    );
    const notes = [...summary.problems];
    const deep = summary.too_deep_events, full = summary.dropped_events - deep;
    if (deep > 0) notes.push(`${count(deep)} events were dropped: they were nested too deeply.`);
    if (full > 0) {
      notes.push(`${count(full)} events were dropped: the rings were full. ` +
        "Profile a shorter window, or give more memory.");
    }
    byId("notes").hidden = notes.length === 0;
    byId("notes").replaceChildren(...notes.map((text) => make("li", { text })));
  }

  /** What an env step and an update consist of, with the half widths of 95% intervals. */
  function showEnvStep(advice) {
    const { updates, us_per_env_step: whole } = advice;
    const [begin, end] = advice.steady_state_s;
    byId("steady").textContent =
      `Steady state, ${begin.toFixed(1)} to ${end.toFixed(1)} s of the process: ` +
      `${count(advice.env_steps)} env steps, ${count(advice.num_envs)} at once` +
      (updates ? `; ${count(updates.count)} ${updates.unit}${updates.count === 1 ? "" : "s"} (entries of ${updates.operation}), ` +
        `one per ${updates.env_steps_per_update.toFixed(1)} env steps.` : ".");
    const interval = (us, half, digits) => `${us.toFixed(digits)} ± ${half.toFixed(digits)}`;
    const each = updates ? updates.env_steps_per_update / 1e3 : 0;
    const line = (name, time, hot) => make("tr", { dataset: { operation: name } }, cellText(name),
      cellText(interval(time.us, time.half_us, 1)), cellText(percent(time.us, whole.us)),
      ...(updates ? [cellText(interval(time.us * each, time.half_us * each, 3))] : []),
      make("td", { className: "text", text: hot ? `${place(hot.file, hot.line)} ${hot.function}, ${hot.us.toFixed(1)} us` : "",
        title: hot ? `${hot.file}:${hot.line}${hot.caller ? ", from " + hot.caller : ""}` : "" }));
    const foot = line("all", whole, null);
    fill(byId("env-step"), [heading("operation"), heading("us per env step"), heading("share"),
      ...(updates ? [heading(`ms per ${updates.unit}`)] : []), heading("hottest line", "text")],
    advice.parts.filter((part) => part.us >= 0.0005 * whole.us)
      .map((part) => line(part.operation, part, part.hottest_line)), foot);
  }

  function showAdvice() {
    const advice = data.advice;
    byId("advice").hidden = !advice;
    if (!advice) return;
    byId("verdict").textContent = advice.verdict;
    byId("who-waits").textContent = advice.who_waits.join(" ");
    showEnvStep(advice);
    const rows = advice.remedies.filter((one) => one.known).map((one) => make("tr", {},
      cellText(one.title),
      cellText(`${one.predicted_us.toFixed(1)} (${one.low_us.toFixed(1)} to ${one.high_us.toFixed(1)})`),
      cellText(`${(-100 * one.gain).toFixed(0)}%`),
      cellText(one.assumes), cellText(one.how)));
    fill(byId("remedies"), [heading("change"), heading("us per env step"), heading("time"),
      heading("assumes"), heading("how")], rows);
  }

  function showFigures(total) {
    const measured = total[state.measure];
    const waiting = total.levels.waiting?.[state.measure] ?? 0;
    const corrected = total.raw !== total.corrected;
    const rows = chosenRows().map((row) => summary.processes[row]);
    const items = [
      [state.process === "" && summary.processes.length > 1 ? "time of all processes" : "time",
        seconds(measured), "s"],
      corrected ? ["taken out for the profiler", percent(total.raw - total.corrected, total.raw), ""]
        : ["taken out for the profiler", "–", "nothing: see its own cost"],
      ["waiting", percent(waiting, measured), ""],
      ["GPU busy, whole run", gpuBusy(rows.map((p) => p.pid)) || "–", gpuObserved(rows.map((p) => p.pid))],
      ["CPU time, whole recording", seconds(sum(rows.map((p) => p.recorded_cpu_s))), "s"],
    ];
    byId("figures").replaceChildren(...items.map(([name, value, unit]) =>
      make("div", {}, make("dt", { text: name }),
        make("dd", {}, value, " ", make("small", { text: unit })))));
  }

  /** A GPU is observed in windows only, so its busy time is a share of these, of the whole session. */
  const onGpu = (pids) => summary.gpu_devices.filter((d) => pids.includes(d.pid));
  const windowsNs = (rows) => sum(rows.map((d) => d.window_ns));
  const gpuBusy = (pids) => {
    const rows = onGpu(pids);
    return rows.length ? percent(sum(rows.map((d) => d.busy_ns)), windowsNs(rows)) : "";
  };
  const gpuObserved = (pids) => {
    const rows = onGpu(pids);
    return rows.length ? `of ${seconds(windowsNs(rows) / 1e9)} s of windows` : "none recorded";
  };

  const chosenRows = () =>
    state.process === "" ? summary.processes.map((_, row) => row) : [+state.process];

  function showTimeline() {
    const pid = chosenPid();
    const width = edges.slice(1).map((edge, i) => edge - edges[i]);
    const perLevel = Object.fromEntries(levels.map((level) => [level, new Float64Array(last)]));
    summary.cells.forEach((cell, row) => {
      const bins = data.cell_bins[row];
      if (!bins || (pid !== null && cell.pid !== pid)) return;
      if (state.phase !== "" && cell.phase !== state.phase.slice(1)) return;
      bins[1].forEach((ns, i) => (perLevel[cell.level][bins[0] + i] += ns / 1e9));
    });
    const traces = levels.filter((level) => sum([...perLevel[level]]) > 0).map((level) => ({
      type: "bar", name: level, marker: { color: colors[level], line: { width: 0 } },
      x: edges.slice(0, -1), width, offset: 0, y: [...perLevel[level]].map((s, i) => s / width[i]),
      hovertemplate: "%{x:.3f} s: %{y:.2f}<extra>" + level + "</extra>",
    }));
    const shade = (x0, x1) => ({
      type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, line: { width: 0 },
      fillcolor: ink("--ground"), opacity: 0.75, layer: "above",
    });
    draw("timeline", traces, {
      height: 210, barmode: "stack", bargap: 0, dragmode: "select", selectdirection: "h",
      xaxis: { title: { text: "time since the session's start, s" }, range: [edges[0], edges[last]] },
      yaxis: { title: { text: pid === null ? "processes" : "share" }, rangemode: "tozero", fixedrange: true },
      shapes: isWhole() ? [] : [shade(edges[0], edges[state.first]), shade(edges[state.end], edges[last])],
      selections: [],
    });
  }

  function showBreakdown(total) {
    const used = levels.filter((level) => total.levels[level]);
    byId("breakdown-caption").textContent =
      `${state.measure === "raw" ? "Raw" : "Corrected"} seconds from ${seconds(edges[state.first])} s ` +
      `to ${seconds(edges[state.end])} s. Solid bars: ${state.measure}; pale bars: ` +
      `${state.measure === "raw" ? "corrected" : "raw"}. In the table, time per level is ${state.measure}.`;
    const other = state.measure === "raw" ? "corrected" : "raw";
    const rows = [...total.rows].reverse();
    const bar = (measure, level, group, opacity) => ({
      type: "bar", orientation: "h", name: level, offsetgroup: group, legendgroup: level,
      showlegend: group === "1", opacity, marker: { color: colors[level] },
      y: rows.map((row) => plain(row.operation)), x: rows.map((row) => row.levels[level]?.[measure] ?? 0),
      hovertemplate: "%{y}: %{x:.3f} s " + measure + "<extra>" + level + "</extra>",
    });
    draw("bars", [
      ...used.map((level) => bar(other, level, "0", 0.35)),
      ...used.map((level) => bar(state.measure, level, "1", 1)),
    ], {
      height: 110 + 46 * Math.max(rows.length, 1), barmode: "stack", bargap: 0.3,
      xaxis: { title: { text: "s" }, rangemode: "tozero" }, yaxis: { automargin: true, type: "category" },
      margin: { l: 20, r: 12, t: 8, b: 44 },
    });
    const line = (row, name) => {
      const cells = used.map((level) =>
        time(row.levels[level]?.[state.measure] ?? 0, {
          level, raw: row.levels[level]?.raw ?? 0, corrected: row.levels[level]?.corrected ?? 0,
        }));
      return make("tr", { dataset: { operation: name } }, cellText(name),
        make("td", { text: percent(row[state.measure], total[state.measure]) }),
        time(row.corrected, { measure: "corrected" }), time(row.raw, { measure: "raw" }), ...cells);
    };
    const foot = line(total, "total");
    foot.dataset.total = "1";
    fill(byId("breakdown"),
      [heading("operation"), heading("share"), heading("corrected s"), heading("raw s"), ...used.map(levelHeading)],
      total.rows.map((row) => line(row, row.operation)), foot);
  }

  function showWaits(total) {
    const rows = total.rows.filter((row) => row.levels.waiting);
    rows.sort((a, b) => b.levels.waiting[state.measure] - a.levels.waiting[state.measure]);
    fill(byId("waits"), [heading("operation"), heading("waiting s"), heading("of the operation")],
      rows.map((row) => make("tr", { dataset: { operation: row.operation } }, cellText(row.operation),
        time(row.levels.waiting[state.measure]),
        make("td", { text: percent(row.levels.waiting[state.measure], row[state.measure]) }))));
  }

  function chosenFunctions() {
    const pid = chosenPid();
    const merged = new Map();
    for (const [row, first, bins, calls] of data.function_bins) {
      const one = summary.functions[row];
      if (pid !== null && one.pid !== pid) continue;
      const total = isWhole() ? one.total_s : inRange(first, bins) / 1e9;
      const begun = isWhole() ? one.calls : inRange(0, calls);
      if (total <= 0 && begun === 0) continue;
      const key = JSON.stringify([one.level, one.function]);
      const into = merged.get(key) ?? { ...one, total: 0, begun: 0 };
      into.total += total;
      into.begun += begun;
      merged.set(key, into);
    }
    return [...merged.values()].sort((a, b) => b.total - a.total);
  }

  function showFunctions() {
    const all = chosenFunctions();
    const head = (withLevel) => [heading("function"), ...(withLevel ? [heading("level", "text")] : []),
      heading("calls"), heading("total s"), heading("mean")];
    const line = (one, withLevel) => make("tr", { dataset: { function: one.function } },
      make("td", { text: one.function, title: one.function }),
      ...(withLevel ? [make("td", { className: "text" },
        make("span", { className: "key", style: { background: colors[one.level] } }), one.level)] : []),
      make("td", { text: count(one.begun) }), time(one.total),
      make("td", { text: one.begun ? micro(one.total / one.begun) : "–" }));
    fill(byId("functions"), head(true),
      all.filter((f) => f.level !== "waiting").slice(0, 25).map((f) => line(f, true)));
    fill(byId("blocking"), head(false),
      all.filter((f) => f.level === "waiting").slice(0, 12).map((f) => line(f, false)));
  }

  const place = (file, line) => (file ? `${file.split("/").slice(-2).join("/")}:${line}` : "");

  /** The process whose stacks are shown: the chosen one, else the one with the most. */
  function flameRow() {
    if (state.process !== "") return +state.process;
    const sizes = data.flames.map((boxes) => sum(boxes.filter((b) => b[0] < 0).map((b) => b[4])));
    return sizes.indexOf(Math.max(...sizes));
  }

  function showPython() {
    const row = flameRow();
    byId("python").hidden = row < 0 || data.flames[row].length === 0;
    if (byId("python").hidden) return;
    const process = summary.processes[row];
    const boxes = data.flames[row];
    const all = sum(boxes.filter((box) => box[0] < 0).map((box) => box[4]));
    const depths = [];
    for (const box of boxes) depths.push(box[0] < 0 ? 2 : depths[box[0]] + 1);
    const depth = Math.max(1, ...depths);
    const operations = [...new Set(boxes.filter((box) => box[0] < 0).map((box) => box[1]))];
    const tint = (i) => {
      while (boxes[i][0] >= 0) i = boxes[i][0];
      return data.series_colors[operations.indexOf(boxes[i][1]) % data.series_colors.length];
    };
    draw("flame", [{
      type: "icicle", branchvalues: "total", tiling: { orientation: "v" }, sort: true,
      ids: ["all", ...boxes.map((_, i) => String(i))],
      parents: ["", ...boxes.map((box) => (box[0] < 0 ? "all" : String(box[0])))],
      labels: [plain(process.name), ...boxes.map((box) => plain(box[1]))],
      values: [all, ...boxes.map((box) => box[4])],
      customdata: ["", ...boxes.map((box) => plain(place(box[2], box[3])))],
      marker: { colors: ["rgba(128,128,128,0.2)", ...boxes.map((_, i) => tint(i))], line: { width: 0.5 } },
      hovertemplate: "%{label}<br>%{customdata}<br>%{value:.3f} s, %{percentRoot}<extra></extra>",
      pathbar: { visible: true }, textfont: { size: 12 },
    }], { height: 26 + Math.min(Math.max(22 * depth, 180), 900), xaxis: {}, yaxis: {}, margin: { l: 0, r: 0, t: 26, b: 0 } });
    const own = (rows) => rows.filter((one) => one.pid === process.pid).slice(0, 25);
    const line = (one) => make("tr", { dataset: { function: one.function } },
      make("td", { text: one.function, title: `${one.file}:${one.line}` }),
      cellText(place(one.file, one.line), "text"), cellText(one.operation, "text"),
      time(one.self_s), time(one.total_s));
    const head = () => [heading("function"), heading("at", "text"), heading("operation", "text"),
      heading("own s"), heading("with calls s")];
    fill(byId("imports"), [heading("module"), heading("at", "text"), heading("s")],
      own(summary.imports).slice(0, 8).map((one) => make("tr", {}, cellText(one.module || "?"),
        cellText(place(one.file, one.line), "text"), time(one.total_s))));
    fill(byId("python-functions"), head(), own(summary.python_functions).map(line));
    fill(byId("python-lines"), head(), own(summary.python_lines).map(line));
  }

  /** Rows of processes, each after its parent, with its depth. */
  function tree() {
    const pids = new Map(summary.processes.map((process, row) => [process.pid, row]));
    const children = new Map();
    summary.processes.forEach((process, row) => {
      const parent = pids.get(process.parent_pid);
      const key = parent === undefined || parent === row ? -1 : parent;
      children.set(key, [...(children.get(key) ?? []), row]);
    });
    const found = [];
    const seen = new Set();
    const visit = (row, depth) => {
      if (seen.has(row)) return;
      seen.add(row);
      found.push([row, depth]);
      (children.get(row) ?? []).forEach((child) => visit(child, depth + 1));
    };
    (children.get(-1) ?? []).forEach((row) => visit(row, 0));
    summary.processes.forEach((_, row) => visit(row, 0));
    return found;
  }

  /** What the program says of its work, and what the whole of it would take. */
  function progress(process) {
    if (!(process.progress_total > 0)) return "";
    const said = `${percent(process.progress_done, process.progress_total)} done`;
    return process.progress_per_s > 0 ? `${said}, all in ${seconds(process.progress_whole_s)} s` : said;
  }

  function showTree() {
    const end = edges[last] || 1;
    const lines = tree().map(([row, depth]) => {
      const process = summary.processes[row];
      const { begin_s: begin, end_s: until } = data.processes[row];
      const own = summary.cells.filter((cell) => cell.pid === process.pid);
      const total = (chosen) => sum(own.filter(chosen).map((cell) => cell.corrected_s));
      const waiting = total((cell) => cell.level === "waiting");
      const share = waiting / (total(() => true) || 1);
      const width = (100 * (until - begin)) / end;
      const left = (100 * begin) / end;
      const life = make("div", { className: "life", title: `${seconds(begin)} s to ${seconds(until)} s` },
        make("i", { style: { left: left + "%", width: width + "%", background: colors.waiting } }),
        make("i", { style: { left: left + "%", width: width * (1 - share) + "%", background: colors.python } }));
      return make("tr", { dataset: { pid: process.pid } },
        make("td", { text: (depth ? "\u00a0".repeat(4 * depth - 3) + "└ " : "") + process.name, title: process.name }),
        make("td", { text: process.pid }), time(process.wall_s), time(process.recorded_cpu_s),
        make("td", { text: percent(process.recorded_cpu_s, process.wall_s) }), time(waiting),
        make("td", { text: gpuBusy([process.pid]) }),
        make("td", { text: [progress(process), process.ended ? "" : "did not end by itself"]
          .filter(Boolean).join("; "), className: "text" }),
        make("td", { className: "text" }, life));
    });
    fill(byId("tree"), [heading("process"), heading("pid"), heading("recorded s"), heading("CPU s"),
      heading("CPU share"), heading("waiting s"), heading("GPU busy"), heading("", "text"),
      heading("life", "text")], lines);
  }

  function showTogether() {
    const operation = (name, process) => `${name} of ${process}`;
    fill(byId("waits-for"), [heading("waits"), heading("works", "text"), heading("s")],
      summary.waits_for.slice(0, 12).map((one) => make("tr", {},
        cellText(operation(one.waiter_operation, one.waiter), "text"),
        cellText(operation(one.worker_operation, one.worker), "text"), time(one.both_ns / 1e9))));
    fill(byId("at-once"), [heading("processes"), heading("s"), heading("of the session")],
      summary.busy_together.map((one) => make("tr", {}, cellText(one.processes),
        time(one.time_s), make("td", { text: percent(one.time_s, summary.wall_s) }))));
    byId("together").hidden = summary.processes.length < 2;
  }

  function showGpu() {
    byId("gpu").hidden = summary.gpu_devices.length === 0;
    const ns = (value) => time(value / 1e9);
    fill(byId("devices"), [heading("device"), heading("process", "text"), heading("window s"),
      heading("busy s"), heading("busy"), heading("kernels s"), heading("copies s"), heading("streams")],
    summary.gpu_devices.map((d) => make("tr", {}, cellText(d.device), cellText(d.process, "text"),
      ns(d.window_ns), ns(d.busy_ns), make("td", { text: percent(d.busy_ns, d.window_ns) }),
      ns(d.kernel_ns), ns(d.copy_ns), cellText(d.streams))));
    fill(byId("launched"), [heading("launched by"), heading("kind", "text"), heading("count"),
      heading("busy s"), heading("sum s")],
    summary.gpu_launched.map((one) => make("tr", {}, cellText(one.operation), cellText(one.kind, "text"),
      cellText(count(one.count)), ns(one.busy_ns), ns(one.total_ns))));
  }

  function showTransitions() {
    const pid = chosenPid();
    const rows = summary.transitions.filter((one) => pid === null || one.pid === pid);
    const ratio = (part, whole) => (whole ? (part / whole).toFixed(1) : "–");
    byId("crossings").hidden = summary.transitions.length === 0;
    fill(byId("transitions"), [heading("operation"), heading("process", "text"), heading("into", "text"),
      heading("calls"), heading("per step"), heading("per entry")],
    rows.slice(0, 20).map((one) => make("tr", {}, cellText(one.operation), cellText(one.process, "text"),
      make("td", { className: "text" },
        make("span", { className: "key", style: { background: colors[one.level] } }), one.level),
      cellText(count(one.count)), cellText(ratio(one.count, one.steps)),
      cellText(ratio(one.count, one.entries)))));
  }

  function showSeries() {
    const names = { cpu: "CPU", memory: "Memory", gpu: "GPU", other: "Other readings" };
    const wanted = data.series.filter((s) => s.process === null || state.process === "" || s.process === +state.process);
    const groups = new Map();
    for (const series of wanted) {
      const key = JSON.stringify([series.group, series.unit]);
      groups.set(key, [...(groups.get(key) ?? []), series]);
    }
    byId("samples-caption").textContent = data.series.length
      ? "Sampled while the program ran." : "This session holds no samples.";
    byId("samples-notes").replaceChildren(...data.series_notes.map((text) => make("li", { text })));
    const boxes = [...groups.keys()].map((key, i) => make("div", {},
      make("h3", { text: `${names[JSON.parse(key)[0]]}${JSON.parse(key)[1] ? ", " + JSON.parse(key)[1] : ""}` }),
      Object.assign(make("div", { className: "plot" }), { id: "series-" + i })));
    byId("series").replaceChildren(...boxes);
    [...groups.values()].forEach((series, i) => {
      draw("series-" + i, series.map((one, n) => ({
        type: "scatter", mode: "lines", line: { width: 1.5, color: data.series_colors[n % data.series_colors.length] },
        name: plain(one.process === null ? one.name : `${one.name}, ${summary.processes[one.process].name}`),
        x: one.t_s, y: one.value, hovertemplate: "%{x:.2f} s: %{y:.2f} " + one.unit,
      })), {
        height: 190, showlegend: series.length <= 10, xaxis: { range: [edges[state.first], edges[state.end]], title: { text: "s" } },
        yaxis: { rangemode: "tozero", title: { text: series[0].unit } },
      });
    });
  }

  function showOverhead() {
    const number = (value) => make("td", { text: value === null ? "–" : value.toFixed(0) });
    fill(byId("overhead"), [heading("probe"), heading("callbacks"), heading("ns each"), heading("95 % from"),
      heading("to"), heading("s in all"), heading("", "text")],
    summary.overhead.map((one) => make("tr", {}, cellText(one.probe), make("td", { text: count(one.count) }),
      number(one.unit_ns), number(one.ci_low_ns), number(one.ci_high_ns),
      one.corrected ? time(one.cost_s) : cellText("–", "none"),
      cellText(one.corrected ? "taken out of the corrected times" : "not corrected for: " + one.reason, "text"))));
    const known = [["lasting_s", "Python 3.12 runs code once observed slower for good"],
      ["threads_s", "the profiler's threads, on the program's only core"]];
    byId("overhead").append(...summary.overhead.flatMap((one) => known.filter(([name]) => one[name] > 0).map(([name, why]) =>
      make("tr", {}, cellText(why), ...Array.from({ length: 4 }, () => cellText("–", "none")), time(one[name]),
        cellText("taken out of the corrected times", "text")))));
    byId("overhead-caption").textContent = summary.overhead.length
      ? "Estimated in the run itself, from blocks with the probe on and off. Within a time range the cost is taken as even over each cell."
      : "This mode has no probe to correct for: corrected and raw times are the same.";
  }

  function showShares() {
    const share = (value) => (value === null ? "–" : (100 * value).toFixed(1) + " %");
    byId("sampler").hidden = summary.shares.length === 0;
    fill(byId("shares"), [heading("share"), heading("of", "text"), heading("process", "text"),
      heading("measured"), heading("sampled"), heading("+-"), heading("samples")],
    summary.shares.map((one) => make("tr", {}, cellText(one.name), cellText(one.kind, "text"),
      cellText(one.process, "text"), cellText(share(one.measured)), cellText(share(one.sampled)),
      cellText(share(one.standard_error)), cellText(count(one.samples)))));
  }

  function showCounters() {
    const names = [...new Set(summary.counters.map((one) => one.counter))];
    const rows = new Map();
    for (const one of summary.counters) {
      const key = JSON.stringify([one.pid, one.operation]);
      if (!rows.has(key)) rows.set(key, { of: one, counts: {} });
      rows.get(key).counts[one.counter] = one.count;
    }
    const lines = [...rows.values()].sort((a, b) => b.counts[names[0]] - a.counts[names[0]]);
    byId("counters").hidden = lines.length === 0;
    fill(byId("counted"), [heading("operation"), heading("process", "text"), ...names.map((name) => heading(name))],
      lines.slice(0, 60).map(({ of, counts }) => make("tr", {}, cellText(of.operation),
        cellText(of.process, "text"), ...names.map((name) => cellText(count(Math.round(counts[name])))))));
  }

  function showFacts() {
    const rows = [];
    if (summary.attributed !== null) {
      rows.push(make("tr", {}, cellText("session"), cellText("time that has a level", "text"),
        cellText((100 * summary.attributed).toFixed(2) + " %", "text")));
    }
    for (const process of summary.processes) {
      for (const [key, value] of Object.entries(process.metadata)) {
        rows.push(make("tr", {}, cellText(process.name), cellText(key, "text"),
          cellText(typeof value === "string" ? value : JSON.stringify(value), "text")));
      }
    }
    for (const [key, value] of Object.entries(data.machine)) {
      rows.push(make("tr", {}, cellText("machine"), cellText(key, "text"),
        cellText(typeof value === "string" ? value : JSON.stringify(value), "text")));
    }
    byId("facts").hidden = rows.length === 0;
    fill(byId("metadata"), [heading("of"), heading("fact", "text"), heading("value", "text")], rows);
  }

  // -------------------------------------------------------------- controls

  function show() {
    // Digits enough to tell two neighboring edges apart, however short the session is.
    const digits = Math.max(3, 1 + Math.ceil(-Math.log10(edges[1] - edges[0])));
    byId("from").value = edges[state.first].toFixed(digits);
    byId("to").value = edges[state.end].toFixed(digits);
    byId("whole").disabled = isWhole();
    const total = breakdown(chosenCells());
    showFigures(total);
    showTimeline();
    showBreakdown(total);
    showWaits(total);
    showFunctions();
    showPython();
    showTransitions();
    showSeries();
  }

  const nearest = (s) =>
    edges.reduce((best, edge, i) => (Math.abs(edge - s) < Math.abs(edges[best] - s) ? i : best), 0);

  /** Choose the bins that come nearest to a range in seconds: at least one. */
  function choose(from, to) {
    const [a, b] = [nearest(Math.min(from, to)), nearest(Math.max(from, to))];
    state.first = Math.min(a, last - 1);
    state.end = Math.max(b, state.first + 1);
    show();
  }

  function option(value, text) {
    return Object.assign(make("option", { text }), { value });
  }

  function start() {
    if (summary.processes.length === 1) state.process = "0";
    byId("process").replaceChildren(
      ...(summary.processes.length === 1 ? [] : [option("", `all ${summary.processes.length}`)]),
      ...tree().map(([row, depth]) => option(String(row),
        "\u00a0".repeat(2 * depth) + `${summary.processes[row].name} (${summary.processes[row].pid})`)));
    const phases = [...new Set(summary.cells.map((cell) => cell.phase))];
    byId("phase").replaceChildren(option("", "all"),
      ...phases.map((phase) => option("=" + phase, phase || "(outside phases)")));
    byId("phase").parentElement.hidden = phases.length < 2;
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
    for (const id of ["process", "phase"]) {
      byId(id).addEventListener("change", (event) => { state[id] = event.target.value; show(); });
    }
    for (const id of ["from", "to"]) {
      byId(id).addEventListener("change", () => choose(+byId("from").value, +byId("to").value));
    }
    byId("whole").addEventListener("click", () => choose(edges[0], edges[last]));
    for (const radio of document.querySelectorAll("input[name=measure]")) {
      radio.addEventListener("change", (event) => { state.measure = event.target.value; show(); });
    }
    showAbout();
    showAdvice();
    showTree();
    showTogether();
    showGpu();
    showOverhead();
    showShares();
    showCounters();
    showFacts();
    show();
    byId("timeline").on("plotly_selected", (event) => {
      if (event?.range?.x) choose(event.range.x[0], event.range.x[1]);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    document.body.dataset.ready = "1";
  }

  start();
})();
