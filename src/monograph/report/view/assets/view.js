"use strict";
// The page of a report: its parts, the selection that links them, and its tables.
(() => {
  const $ = (id) => document.getElementById(id);
  const kept = (parts) => parts.filter((c) => c !== null && c !== undefined && c !== "").map((c) => (c instanceof Node ? c : String(c)));
  // All text of a model goes through text nodes: no name can be markup.
  const el = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "on") for (const [kind, act] of Object.entries(value)) made.addEventListener(kind, act);
      else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
    }
    made.append(...kept(children));
    return made;
  };
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const seconds = (s) => {
    if (s === undefined || s === null) return "";
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) if (s >= size) return `${(s / size).toPrecision(3)} ${unit}`;
    return `${(s * 1e9).toPrecision(3)} ns`;
  };
  const bytes = (n) => {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return `${(n / size).toPrecision(3)} ${unit}`;
    return `${n} B`;
  };
  const count = (n) => Number(n).toLocaleString("en");
  const rate = (x) => (x >= 1000 ? count(Math.round(x)) : x.toPrecision(3));
  // JSON has no infinity: the report writes it as text.
  const number = (x) => (x === "inf" ? Infinity : x === undefined || x === null ? x : Number(x));
  const tolerance = (x) => { const n = number(x); return n === undefined ? "" : n === 0 ? "0" : Number.isFinite(n) ? (n < 1e-3 ? n.toExponential(1) : n.toPrecision(2)) : String(x); };
  const percent = (x) => (x === undefined || x === null ? "" : `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}%`);
  let data, stepsOf, code = null, pictures = null;
  const drawn = new Set();
  const chosen = { node: -1, step: -1 };
  const panes = {};

  // ---- tabs
  const open = (name) => {
    for (const tab of document.querySelectorAll("[data-tab]")) {
      const on = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
      $(tab.dataset.tab).hidden = !on;
    }
    if (!drawn.has(name)) { drawn.add(name); sections[name]($(name).querySelector(".filled")); depict($(name)); }
    $(`tab-${name}`).scrollIntoView({ block: "nearest", inline: "nearest" });
    if (name === "graph") for (const pane of Object.values(panes)) pane.resize();
    if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
  };
  // Pictures are many elements: they are unpacked when they are looked at first.
  const depict = async (section) => {
    const box = section.querySelector("[data-picture]");
    if (!box) return;
    pictures = pictures || unpack("pictures");
    const parsed = new DOMParser().parseFromString((await pictures)[box.dataset.picture], "image/svg+xml");
    const drawing = document.importNode(parsed.documentElement, true);
    let width = 1, base = 0;
    const wider = (by) => () => {
      const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
      if (width === 1) base = drawing.getBoundingClientRect().width;
      width = Math.min(32, Math.max(1, width * by));
      drawing.style.width = width === 1 ? "" : `${base * width}px`;
      box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
    };
    const zoom = (text, label, by) => el("button", { title: label, "aria-label": label, on: { click: wider(by) } }, text);
    box.replaceChildren(drawing);
    box.before(el("div", { class: "wider" }, zoom("+", "larger picture", 1.5), zoom("\u2212", "smaller picture", 1 / 1.5)));
    if (chosen.step >= 0) for (const on of box.querySelectorAll(`[data-step="${chosen.step}"]`)) on.classList.add("on");
  };
  const shownTabs = () => [...document.querySelectorAll("[data-tab]")].filter((t) => !t.hidden);

  // ---- selection, linked both ways
  const labelOf = (i) => data.nodes[i][0];
  const nodeButton = (i) => el("button", { "data-node": i, title: data.nodes[i][1], on: { click: () => selectNode(i) } }, labelOf(i));
  const stepButton = (i) => el("button", { "data-go-step": i, on: { click: () => selectStep(i) } }, `step ${i}: ${data.steps[i].kind}`);
  const facts = (rows) => {
    const list = el("dl");
    for (const [label, value] of rows) if (value !== "" && value !== undefined && value !== null) list.append(el("dt", {}, label), el("dd", {}, value));
    return list;
  };
  const show = (title, ...parts) => {
    const box = $("details");
    box.replaceChildren(el("button", { class: "close", "aria-label": "close", on: { click: hide } }, "\u00d7"), el("h2", {}, title), ...kept(parts));
    box.hidden = false;
    box.scrollTop = 0;
    aside(true);
  };
  const hide = () => { $("details").hidden = true; mark(-1, -1); aside(false); };
  // The details lie beside the content, never over the step or the node that they are about.
  const aside = (on) => {
    document.body.classList.toggle("aside", on);
    for (const pane of Object.values(panes)) pane.resize();
    const both = $("graph").querySelector(".panes");
    if (on && both && !$("graph").hidden && innerWidth <= 900) both.scrollIntoView({ block: "start" });
  };
  const mark = (node, step) => {
    chosen.node = node;
    chosen.step = step;
    for (const on of document.querySelectorAll("[data-step].on")) on.classList.remove("on");
    if (step >= 0) for (const on of document.querySelectorAll(`[data-step="${step}"]`)) on.classList.add("on");
    for (const pane of Object.values(panes)) pane.draw();
  };
  const rewritesOf = (node) => {
    const found = [];
    for (const pass of data.passes) for (const fired of pass.fired) if (fired.nodes.includes(node)) found.push([pass, fired]);
    return found;
  };
  const ruleName = (fired) => (fired.rule < 0 ? "rewrite" : data.rules[fired.rule].name);
  const selectNode = (i, centre = true) => {
    const [label, op, source] = data.nodes[i];
    const steps = stepsOf[i], rewrites = rewritesOf(i);
    mark(i, steps.length ? steps[0] : -1);
    const gone = rewrites.length ? `no step: ${[...new Set(rewrites.map(([, f]) => ruleName(f)))].join(", ")}` : "no step: computed before the run, from constants or shapes";
    show(`${label}`, facts([["ONNX op", op], ["Python", source]]),
      el("h2", {}, "ended in"), steps.length ? el("div", { class: "links" }, ...steps.map(stepButton)) : el("p", { class: "dim" }, gone),
      rewrites.length ? el("h2", {}, "rewrites") : null,
      !rewrites.length ? null : el("ol", { class: "fired" }, ...rewrites.slice(0, 40).map(([pass, f]) => el("li", {}, el("b", {}, ruleName(f)), ` in ${pass.name}`, el("br"), el("code", {}, `${f.before} \u2192 ${f.after}`)))));
    if (panes.before && centre) panes.before.centre(i);
    if (panes.after && steps.length) panes.after.centre(steps[0]);
  };
  const selectStep = (i, centre = true) => {
    const s = data.steps[i];
    mark(s.nodes.length ? s.nodes[s.nodes.length - 1] : -1, i);
    const nodes = s.nodes.map(nodeButton);
    const text = el("div");
    const showCode = async () => {
      code = code || await unpack("code");
      const at = code.of[i];
      text.replaceChildren(at < 0 ? el("p", { class: "dim" }, "The code of this step is not in the page: it runs on the host, or the page has no room.") : el("pre", { tabindex: 0, id: "source" }, code.texts[at]));
    };
    show(`step ${i}: ${s.kind}`,
      facts([["makes", s.makes], ["time", s.seconds === undefined ? "" : `${seconds(s.seconds)} (${percent(s.share)})`], ["of the peak", percent(s.of_peak)],
        ["operations", s.flops ? count(s.flops) : ""], ["bytes", s.bytes ? bytes(s.bytes) : ""], ["waiting", s.waiting === undefined ? "" : percent(s.waiting)],
        ["own error", s.own === undefined ? "" : `${tolerance(s.own)} of its tolerance`], ["not compared", s.unchecked], ["runs on the host", s.host], ["ops", s.ops.join(", ")]]),
      el("h2", {}, "ONNX nodes"), el("div", { class: "links" }, ...(nodes.length ? nodes : ["none is known"])),
      el("p", {}, el("button", { id: "show-code", on: { click: showCode } }, "show the generated code")), text);
    if (panes.after && centre) panes.after.centre(i);
    if (panes.before && s.nodes.length) panes.before.centre(s.nodes[s.nodes.length - 1]);
  };

  const Pane = paneOf({ el, count });
  const tone = (i) => data.palette[i % data.palette.length];
  const tonesOf = (names) => { const seen = new Map(); return names.map((n) => { if (!seen.has(n)) seen.set(n, tone(seen.size)); return seen.get(n); }); };

  // ---- tables
  const table = (columns, rows, build, limit = 300) => {
    const body = el("tbody"), box = el("div");
    let shown = 0;
    const more = el("button", { on: { click: () => add(shown + 1000) } });
    const add = (until) => {
      for (; shown < Math.min(until, rows.length); shown++) body.append(build(rows[shown], shown));
      more.hidden = shown >= rows.length;
      more.textContent = `show more of ${count(rows.length)}`;
    };
    box.append(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([label, numeric, act]) => el("th", { class: numeric ? "n" : null, scope: "col" }, act ? el("button", { on: { click: act } }, label) : label)))), body)), more);
    add(limit);
    return box;
  };
  const cell = (value, numeric, kind) => el("td", { class: [numeric ? "n" : "", kind || ""].join(" ").trim() || null }, value);
  const meter = (x) => { if (x === undefined || x === null) return ""; const inner = el("i"); inner.style.width = `${Math.min(100, 100 * x)}%`; return el("span", {}, percent(x), el("span", { class: "meter" }, inner)); };
  const named = (names) => el("td", { class: "names", title: names.join(", ") }, names.join(", "));
  const stepRow = (i) => {
    const s = data.steps[i];
    return el("tr", { "data-step": i, tabindex: 0 }, cell(i, true), cell(s.kind + (s.host ? " (host)" : ""), false, "tight"), cell(seconds(s.seconds), true), cell(meter(s.share), true), cell(meter(s.of_peak), true),
      cell(tolerance(s.own), true, s.right === false ? "bad" : ""), named(s.origin), cell(s.makes, false, "tight"));
  };

  const cards = (pairs) => el("div", { class: "cards" }, ...pairs.filter(([, v]) => v !== undefined && v !== null && v !== "").map(([label, value, kind]) => el("div", { class: "card" }, el("b", { class: kind || (String(value).length > 14 ? "long" : null) }, value), el("span", {}, label))));
  const sections = {
    overview(box) {
      const f = data.facts, measured = f.run_seconds !== undefined;
      box.append(cards([["ONNX nodes", count(f.nodes)], ["ops before, after the passes", `${count(f.ops_before)} \u2192 ${count(f.ops_after)}`], ["steps (kernels)", count(f.steps)], ["launches of a run, host steps among them", data.launches.length ? count(data.launches.length) : ""],
        ["parameters", count(f.parameters)], ["weights in the file", bytes(f.weight_bytes)], ["memory for temporaries", bytes(f.arena_bytes)],
        ["a run", measured ? seconds(f.run_seconds) : "not run"], ["its steps together", measured ? seconds(f.step_seconds) : ""], ["its steps at the peaks of this machine", f.floor_seconds ? seconds(f.floor_seconds) : ""], ["threads", f.threads], ["device", f.device], ["precision", f.precision], ["streams of the graph", f.streams], ["between launches, one by one", f.gap_seconds === undefined ? "" : seconds(f.gap_seconds)],
        ["wrong steps", f.steps_wrong === undefined ? "" : f.steps_wrong, f.steps_wrong ? "bad" : "good"]]));
      if (f.peers) {
        const slowest = Math.max(...Object.values(f.peers));
        box.append(el("h2", {}, "Time beside peers"), table([["runtime"], ["median of a run", true], ["", false]], Object.entries(f.peers), ([name, s]) => {
          const bar = meter(s / slowest);
          return el("tr", {}, cell(name), cell(seconds(s), true), el("td", {}, bar.lastChild));
        }));
      }
      box.append(el("h2", {}, "Inputs and outputs"), table([["input"], [(f.sizes || []).some(Boolean) ? "sizes in this report" : ""]], f.inputs, (x, i) => el("tr", {}, cell(el("code", {}, x)), cell(el("code", {}, (f.sizes || [])[i] || "")))), table([["output"]], f.outputs, (x) => el("tr", {}, cell(el("code", {}, x)))));
      box.append(el("h2", {}, "What runs where"), el("p", {}, f.launches), table([["launch"], ["steps", true]], data.launches, (x) => el("tr", {}, cell(x.text), cell(x.first === x.last ? x.first : `${x.first}\u2013${x.last}`, true))));
      const host = data.steps.map((s, i) => [s, i]).filter(([s]) => s.host);
      if (host.length) box.append(el("h2", {}, "Steps on the host, and why"), table([["step"], ["reason"]], host, ([s, i]) => el("tr", {}, cell(stepButton(i)), cell(s.host))));
      if (measured) {
        const slowest = data.steps.map((s, i) => [s, i]).sort(([a], [b]) => (b.seconds || 0) - (a.seconds || 0)).slice(0, 5);
        box.append(el("h2", {}, "Slowest steps"), table([["step", true], ["kind"], ["time", true], ["share", true], ["of peak", true], ["ONNX nodes"]], slowest, ([s, i]) => el("tr", { "data-step": i, tabindex: 0 }, cell(i, true), cell(s.kind, false, "tight"), cell(seconds(s.seconds), true), cell(meter(s.share), true), cell(meter(s.of_peak), true), named(s.origin))));
        const kinds = new Map();
        for (const s of data.steps) { const k = kinds.get(s.kind) || { kind: s.kind, n: 0, seconds: 0 }; k.n++; k.seconds += s.seconds || 0; kinds.set(s.kind, k); }
        const rows = [...kinds.values()].sort((a, b) => b.seconds - a.seconds);
        box.append(el("h2", {}, "Time by kind of step"), table([["kind"], ["steps", true], ["time", true], ["share", true]], rows, (k) => el("tr", {}, cell(k.kind), cell(k.n, true), cell(seconds(k.seconds), true), cell(meter(k.seconds / f.step_seconds), true))));
      }
      for (const [title, text] of data.texts || []) box.append(el("h2", {}, title), el("pre", { tabindex: 0 }, text));
      for (const line of data.notes) box.append(el("p", { class: "bad" }, line));
    },
    graph(box) {
      const find = el("input", { type: "search", id: "find", size: 30, placeholder: "find a node, an op or a step (/)", "aria-label": "find a node, an op or a step" });
      const found = el("div", { class: "links", id: "found" });
      find.addEventListener("input", () => {
        const text = find.value.trim().toLowerCase();
        found.replaceChildren();
        if (!text) return;
        const nodes = data.nodes.map((n, i) => [n, i]).filter(([n]) => n[0].toLowerCase().includes(text) || n[1].toLowerCase().includes(text)).slice(0, 12);
        const steps = data.steps.map((s, i) => [s, i]).filter(([s, i]) => `step ${i}: ${s.kind}`.includes(text)).slice(0, 6);
        found.append(...nodes.map(([, i]) => nodeButton(i)), ...steps.map(([, i]) => stepButton(i)));
      });
      const range = el("input", { type: "range", id: "graph-pass", min: 0, max: data.passes.length, value: 0, "aria-label": "pass" });
      const told = el("span", { class: "dim" }, "all nodes");
      range.addEventListener("input", () => {
        const pass = data.passes[range.value - 1];
        panes.before.lit = new Set(pass ? pass.fired.flatMap((f) => f.nodes) : []);
        told.textContent = pass ? `${range.value}. ${pass.name}: ${pass.fired.length} rewrites, ${panes.before.lit.size} nodes marked` : "all nodes";
        panes.before.draw();
      });
      const left = el("div", { class: "pane", id: "pane-before" }), right = el("div", { class: "pane", id: "pane-after" });
      box.append(el("div", { class: "bar" }, find, el("label", {}, "pass "), range, told), found, el("div", { class: "panes" }, left, right));
      panes.before = new Pane(left, "before: ONNX nodes", data.nodes.map((n) => [n[1], n[0]]), tonesOf(data.nodes.map((n) => n[1])), data.edges, data.places, (i) => selectNode(i, false), (i) => i === chosen.node || (chosen.step >= 0 && data.steps[chosen.step].nodes.includes(i)));
      panes.after = new Pane(right, "after: steps", data.steps.map((s, i) => [`${i} ${s.kind}`, s.makes]), data.steps.map((s) => tone(data.kinds[s.kind])), data.step_edges, data.step_places, (i) => selectStep(i, false), (i) => i === chosen.step || (chosen.node >= 0 && stepsOf[chosen.node].includes(i)));
      if (chosen.step >= 0) requestAnimationFrame(() => panes.after.centre(chosen.step));
    },
    passes(box) {
      const range = el("input", { type: "range", id: "pass", min: 0, max: data.passes.length - 1, value: 0, "aria-label": "pass" });
      const body = el("div", { class: "pass" }), title = el("b", { id: "pass-name" });
      const draw = () => {
        const at = Number(range.value), pass = data.passes[at];
        title.textContent = `${at + 1} of ${data.passes.length}: ${pass.name}`;
        const groups = new Map();
        for (const f of pass.fired) { if (!groups.has(f.rule)) groups.set(f.rule, []); groups.get(f.rule).push(f); }
        const link = (nodes) => nodes.slice(0, 6).map((i) => el("button", { on: { click: () => { open("graph"); selectNode(i); } } }, labelOf(i)));
        const fired = [...groups].map(([rule, list]) => {
          const r = data.rules[rule];
          return el("details", { open: groups.size < 4 ? "" : null }, el("summary", {}, el("b", {}, r ? r.name : "rewrite"), ` \u00d7 ${list.length} `, r ? el("code", {}, r.equation) : null, r ? el("span", { class: "dim" }, r.exact ? " keeps every bit" : " rounds differently") : null),
            el("ol", { class: "fired" }, ...list.slice(0, 60).map((f) => el("li", {}, el("code", {}, `${f.before} \u2192 ${f.after}`), " ", ...link(f.nodes)))), list.length > 60 ? el("p", { class: "dim" }, `and ${list.length - 60} more`) : null);
        });
        const missed = data.rules.filter((r) => r.passes.includes(pass.name) && r.misses.length).map((r) => el("details", {}, el("summary", {}, el("b", {}, r.name), " ", el("code", {}, r.equation), " ", el("span", { class: "dim" }, r.misses[0].reason)), el("ol", { class: "fired" }, ...r.misses.map((m) => el("li", {}, m.reason, " ", ...link(m.nodes))))));
        body.replaceChildren(el("p", {}, el("span", { class: "dim" }, `stage ${pass.stage}: `), pass.purpose), el("p", {}, `ops: ${count(pass.ops[0])} \u2192 ${count(pass.ops[1])}`),
          el("h2", {}, `Rewrites (${pass.fired.length})`), ...(fired.length ? fired : [el("p", { class: "dim" }, "none fired")]), el("h2", {}, "Nearest misses, and why"), ...(missed.length ? missed : [el("p", { class: "dim" }, "none was near")]));
      };
      range.addEventListener("input", draw);
      const busy = data.passes.findIndex((p) => p.fired.length);
      range.value = Math.max(0, busy);
      box.append(el("div", { class: "bar" }, title, range), body);
      draw();
    },
    steps(box) {
      let order = data.steps.map((_, i) => i), by = data.facts.run_seconds !== undefined ? "seconds" : "";
      const holder = el("div"), filter = el("input", { type: "search", placeholder: "filter by kind or node", "aria-label": "filter by kind or node" });
      const draw = () => {
        const text = filter.value.trim().toLowerCase();
        const rows = order.filter((i) => !text || data.steps[i].kind.includes(text) || data.steps[i].origin.some((n) => n.toLowerCase().includes(text)));
        if (by) rows.sort((a, b) => (number(data.steps[b][by]) || 0) - (number(data.steps[a][by]) || 0));
        const sort = (name) => () => { by = name; draw(); };
        holder.replaceChildren(table([["step", true, sort("")], ["kind"], ["time", true, sort("seconds")], ["share", true, sort("share")], ["of peak", true, sort("of_peak")], ["own error", true, sort("own")], ["ONNX nodes"], ["makes"]], rows, stepRow));
      };
      filter.addEventListener("input", draw);
      box.append(el("div", { class: "bar" }, filter), holder);
      draw();
    },
    timeline() {}, memory() {},
    errors(box) {
      const checked = data.steps.map((s, i) => i).filter((i) => data.steps[i].own !== undefined);
      const wrong = checked.filter((i) => data.steps[i].right === false), left = data.steps.map((s, i) => i).filter((i) => data.steps[i].unchecked);
      box.append(wrong.length ? el("p", { class: "bad" }, `${count(wrong.length)} of ${count(checked.length)} steps are wrong; the first is step ${wrong[0]}.`)
        : el("p", { class: "good" }, `None of ${count(checked.length)} steps is wrong by itself. If results are not those that you expect, compare with the model that you trust: monograph diff A B.`));
      if (left.length) box.append(el("p", {}, `Not compared: ${left.slice(0, 12).map((i) => `step ${i} (${data.steps[i].unchecked})`).join(", ")}`));
      const worst = [...checked].sort((a, b) => (data.steps[a].right === false ? 0 : 1) - (data.steps[b].right === false ? 0 : 1) || (number(data.steps[b].own) || 0) - (number(data.steps[a].own) || 0));
      box.append(el("h2", {}, "Largest errors"), table([["step", true], ["kind"], ["of its tolerance", true], ["added up so far", true], ["ONNX nodes"], ["makes"]], worst, (i) => {
        const s = data.steps[i];
        return el("tr", { "data-step": i, tabindex: 0 }, cell(i, true), cell(s.kind, false, "tight"), cell(tolerance(s.own), true, s.right === false ? "bad" : ""), cell(tolerance(s.drift), true), named(s.origin), cell(s.makes, false, "tight"));
      }, 50));
    },
    decoding(box) {
      box.append(table([["position", true], ["time", true], ["tokens/s", true], ["of the floor", true]], data.decoding.positions, (p) => el("tr", {}, cell(p.position, true), cell(seconds(p.median), true), cell(rate(p.tokens_per_second), true), cell(meter(p.of_floor), true))));
    },
    compare(box) {
      const none = () => el("p", { class: "dim" }, "none");
      const figures = {
        nodes: ["ONNX nodes", count], ops_before: ["ops before the passes", count], ops_after: ["ops after the passes", count], steps: ["steps (kernels)", count], host_steps: ["steps on the host", count],
        weight_bytes: ["weights in the file", bytes], arena_bytes: ["memory for temporaries", bytes], run_seconds: ["a run", seconds], step_seconds: ["its steps together", seconds],
        floor_seconds: ["its steps at the peaks of the machine", seconds], gap_seconds: ["between launches, one by one", seconds], steps_wrong: ["wrong steps", count], peak_flops: ["peak of the machine: operations", (n) => `${rate(n / 1e9)} GFLOP/s`], peak_bytes: ["peak of the machine: memory", (n) => `${rate(n / 1e9)} GB/s`],
      };
      const other = data.against, change = (a, b) => (a ? `${b >= a ? "+" : "\u2212"}${Math.abs(100 * (b / a - 1)).toFixed(1)}%` : "");
      box.append(el("p", {}, `Before: ${other.model} on ${other.target}, Monograph ${other.version}. Now: ${data.model} on ${data.target}, Monograph ${data.version}.`));
      if (other.machine && data.machine && other.machine !== data.machine) box.append(el("p", { class: "bad" }, `The machines differ: ${other.machine} before, ${data.machine} now.`));
      box.append(table([["figure"], ["before", true], ["now", true], ["change", true]], other.facts.filter((f) => f[1] !== f[2]), ([name, a, b, low]) => {
        const [label, text] = figures[name] || [name.replaceAll("_", " "), name.endsWith("seconds") ? seconds : name.includes("bytes") ? bytes : count];
        return el("tr", {}, cell(label), cell(text(a), true), cell(text(b), true), cell(change(a, b), true, low ? (b < a ? "good" : "bad") : ""));
      }));
      box.append(el("h2", {}, "Steps that changed"), !other.steps.length ? none() : table([["step", true], ["kind"], ["ONNX nodes"], [""], ["before", true], ["now", true], ["change", true]], other.steps, (s) => el("tr", s.step === null ? {} : { "data-step": s.step, tabindex: 0 }, cell(s.step === null ? "" : s.step, true), cell(s.kind), named(s.nodes), cell(s.is), cell(seconds(s.before), true), cell(seconds(s.now), true), cell(s.before && s.now ? change(s.before, s.now) : "", true, s.now > s.before ? "bad" : "good"))));
      box.append(el("h2", {}, "Rules that fired another number of times"), !other.rules.length ? none() : table([["rule"], ["before", true], ["now", true]], other.rules, ([n, a, b]) => el("tr", {}, cell(n), cell(a, true), cell(b, true))));
    },
  };

  const boot = async () => {
    data = await unpack("data");
    stepsOf = data.nodes.map(() => []);
    data.steps.forEach((s, i) => s.nodes.forEach((n) => stepsOf[n].push(i)));
    $("subtitle").textContent = [data.model, [data.target, data.facts.threads && `${data.facts.threads} thread${data.facts.threads > 1 ? "s" : ""}`, data.facts.device, data.machine].filter(Boolean).join(", "), `Monograph ${data.version}`].join(" \u00b7 ");
    const without = (name) => !$(name).querySelector("[data-picture]");
    const empty = { timeline: without("timeline"), memory: without("memory"), errors: without("errors"), decoding: !data.decoding, compare: !data.against };
    for (const tab of document.querySelectorAll("[data-tab]")) {
      tab.hidden = Boolean(empty[tab.dataset.tab]);
      tab.addEventListener("click", () => open(tab.dataset.tab));
    }
    document.addEventListener("click", (e) => { const on = e.target.closest("[data-step]"); if (on) selectStep(Number(on.dataset.step)); });
    document.addEventListener("keydown", (e) => {
      const typing = /INPUT|SELECT|TEXTAREA/.test(e.target.tagName), tabs = shownTabs();
      if (e.key === "Escape") hide();
      else if (e.key === "Enter" && e.target.dataset && e.target.dataset.step) selectStep(Number(e.target.dataset.step));
      else if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
      else if (/^[1-9]$/.test(e.key) && tabs[e.key - 1]) { open(tabs[e.key - 1].dataset.tab); tabs[e.key - 1].focus(); }
      else if ((e.key === "j" || e.key === "k") && data.steps.length) {
        selectStep(Math.min(data.steps.length - 1, Math.max(0, chosen.step + (e.key === "j" ? 1 : -1))));
        const row = document.querySelector("section:not([hidden]) tr.on");
        if (row) row.scrollIntoView({ block: "nearest" });
      }
      else if (e.key === "/") { e.preventDefault(); open("graph"); $("find").focus(); }
      else if ((e.key === "ArrowLeft" || e.key === "ArrowRight") && e.target.dataset && e.target.dataset.tab) {
        const at = tabs.indexOf(e.target), next = tabs[(at + (e.key === "ArrowRight" ? 1 : tabs.length - 1)) % tabs.length];
        open(next.dataset.tab);
        next.focus();
      }
    });
    addEventListener("resize", () => { for (const pane of Object.values(panes)) pane.resize(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const pane of Object.values(panes)) pane.draw(); });
    const asked = location.hash.slice(1);
    open(shownTabs().some((t) => t.dataset.tab === asked) ? asked : "overview");
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  };
  boot();
})();
