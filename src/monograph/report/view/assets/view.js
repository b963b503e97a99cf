"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  // All text of a model goes through text nodes: no name can be markup.
  const el = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "on") for (const [kind, act] of Object.entries(value)) made.addEventListener(kind, act);
      else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
    }
    made.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : String(c))));
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
    box.replaceChildren(document.importNode(parsed.documentElement, true));
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
    box.replaceChildren(el("button", { class: "close", "aria-label": "close", on: { click: hide } }, "\u00d7"), el("h2", {}, title), ...parts);
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
      el("ol", { class: "fired" }, ...rewrites.slice(0, 40).map(([pass, f]) => el("li", {}, el("b", {}, ruleName(f)), ` in ${pass.name}`, el("br"), el("code", {}, `${f.before} \u2192 ${f.after}`)))));
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
        ["own error", s.own === undefined ? s.unchecked : `${Number(s.own).toPrecision(2)} of its tolerance`], ["runs on the host", s.host], ["ops", s.ops.join(", ")]]),
      el("h2", {}, "ONNX nodes"), el("div", { class: "links" }, ...(nodes.length ? nodes : ["none is known"])),
      el("p", {}, el("button", { id: "show-code", on: { click: showCode } }, "show the generated code")), text);
    if (panes.after && centre) panes.after.centre(i);
    if (panes.before && s.nodes.length) panes.before.centre(s.nodes[s.nodes.length - 1]);
  };

  // ---- graphs on canvases: only what is in view is drawn
  const W = 150, H = 34;
  class Pane {
    constructor(box, title, labels, hues, edges, places, pick, isChosen) {
      Object.assign(this, { labels, hues, edges, places, pick, isChosen, scale: 1, x: 0, y: 0, lit: new Set() });
      this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": `${title}; arrows move, plus and minus zoom` });
      const zoom = (label, act) => el("button", { title: label, "aria-label": label, on: { click: act } }, label === "whole graph" ? "fit" : label === "closer" ? "+" : "\u2212");
      box.append(this.canvas, el("h2", {}, `${title} (${count(labels.length)})`), el("div", { class: "zoom" }, zoom("closer", () => this.zoom(1.4)), zoom("farther", () => this.zoom(1 / 1.4)), zoom("whole graph", () => this.fit())));
      this.rows = new Map();
      places.forEach(([, y], i) => { if (!this.rows.has(y)) this.rows.set(y, []); this.rows.get(y).push(i); });
      this.heights = [...this.rows.keys()].sort((a, b) => a - b);
      this.longEdges = [];
      this.below = places.map(() => []);
      for (const [a, b] of edges) (places[b][1] - places[a][1] > 2000 ? this.longEdges : this.below[a]).push(places[b][1] - places[a][1] > 2000 ? [a, b] : b);
      this.listen();
    }
    resize() {
      const box = this.canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
      if (!box.width) return;
      this.canvas.width = box.width * ratio;
      this.canvas.height = box.height * ratio;
      this.ratio = ratio;
      if (this.seen) this.x += (this.width - box.width) / 2 / this.scale; else { this.seen = true; this.start(); }
      this.width = box.width;
      this.draw();
    }
    start() {
      const { width } = this.canvas.getBoundingClientRect();
      const top = this.heights.length ? this.rows.get(this.heights[0]) : [];
      const middle = top.length ? top.reduce((s, i) => s + this.places[i][0], 0) / top.length : 0;
      this.scale = 0.8;
      this.x = middle - width / 2 / this.scale;
      this.y = -60;
    }
    fit() {
      const box = this.canvas.getBoundingClientRect();
      const right = Math.max(...this.heights.map((h) => Math.max(...this.rows.get(h).map((i) => this.places[i][0])))) + W;
      const bottom = (this.heights[this.heights.length - 1] || 0) + H;
      this.scale = Math.min(1, box.width / right, box.height / (bottom + 60));
      this.x = right / 2 - W / 4 - box.width / 2 / this.scale;
      this.y = -40 / this.scale;
      this.draw();
    }
    zoom(by, px, py) {
      const box = this.canvas.getBoundingClientRect();
      const cx = px === undefined ? box.width / 2 : px, cy = py === undefined ? box.height / 2 : py;
      const next = Math.min(3, Math.max(0.005, this.scale * by));
      this.x += cx / this.scale - cx / next;
      this.y += cy / this.scale - cy / next;
      this.scale = next;
      this.draw();
    }
    centre(i) {
      const box = this.canvas.getBoundingClientRect();
      if (!box.width) return;
      if (this.scale < 0.35) this.scale = 0.8;
      this.x = this.places[i][0] - box.width / 2 / this.scale;
      this.y = this.places[i][1] - box.height / 2 / this.scale;
      this.draw();
    }
    draw() { if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.paint(); }); } }
    paint() {
      if (!this.ratio) return;
      const c = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const k = this.scale * this.ratio;
      c.setTransform(1, 0, 0, 1, 0, 0);
      c.clearRect(0, 0, this.canvas.width, this.canvas.height);
      c.setTransform(k, 0, 0, k, -this.x * k, -this.y * k);
      const right = this.x + this.canvas.width / k, bottom = this.y + this.canvas.height / k;
      const first = this.heights.findIndex((h) => h > this.y - 2100);
      c.strokeStyle = colour("--edge");
      c.lineWidth = Math.max(1, 0.7 / this.scale);
      c.globalAlpha = 0.75;
      const curve = (a, b) => {
        const [x1, y1] = this.places[a], [x2, y2] = this.places[b];
        if (Math.max(y1, y2) < this.y || Math.min(y1, y2) > bottom || Math.max(x1, x2) < this.x || Math.min(x1, x2) > right) return;
        const m = (y1 + y2) / 2;
        c.moveTo(x1, y1 + H / 2);
        c.bezierCurveTo(x1, m, x2, m, x2, y2 - H / 2);
      };
      c.beginPath();
      for (const [a, b] of this.longEdges) curve(a, b);
      const seen = [];
      for (let r = Math.max(0, first); r < this.heights.length && this.heights[r] < bottom + H; r++) {
        const y = this.heights[r];
        for (const i of this.rows.get(y)) {
          for (const b of this.below[i]) curve(i, b);
          const x = this.places[i][0];
          if (y > this.y - H && x > this.x - W && x < right + W) seen.push(i);
        }
      }
      c.stroke();
      c.globalAlpha = 1;
      const text = this.scale > 0.35;
      c.font = "11px system-ui, sans-serif";
      c.textAlign = "center";
      c.textBaseline = "middle";
      for (const i of seen) {
        const [x, y] = this.places[i];
        const on = this.isChosen(i), lit = this.lit.size === 0 || this.lit.has(i);
        c.globalAlpha = lit ? 1 : 0.25;
        c.fillStyle = `hsl(${this.hues[i]} 48% 46%)`;
        if (text) { c.beginPath(); c.roundRect(x - W / 2, y - H / 2, W, H, 6); c.fill(); } else c.fillRect(x - W / 2, y - H / 2, W, H);
        if (on || (this.lit.size && lit)) {
          c.strokeStyle = colour("--mark");
          c.lineWidth = Math.max(3, 2 / this.scale);
          c.strokeRect(x - W / 2 - 1, y - H / 2 - 1, W + 2, H + 2);
        }
        if (text) {
          c.fillStyle = "#fff";
          const [top, under] = this.labels[i];
          c.fillText(top, x, under ? y - 6 : y, W - 10);
          if (under) { c.globalAlpha *= 0.8; c.fillText(under.length > 26 ? `\u2026${under.slice(-25)}` : under, x, y + 8, W - 10); }
        }
      }
      c.globalAlpha = 1;
    }
    at(px, py) {
      const x = this.x + px / this.scale, y = this.y + py / this.scale;
      for (const h of this.heights) if (Math.abs(h - y) <= H / 2) for (const i of this.rows.get(h)) if (Math.abs(this.places[i][0] - x) <= W / 2) return i;
      return -1;
    }
    listen() {
      const canvas = this.canvas, touches = new Map();
      let moved = 0;
      canvas.addEventListener("pointerdown", (e) => { touches.set(e.pointerId, [e.offsetX, e.offsetY]); moved = 0; canvas.setPointerCapture(e.pointerId); });
      canvas.addEventListener("pointermove", (e) => {
        const before = touches.get(e.pointerId);
        if (!before) { canvas.style.cursor = this.at(e.offsetX, e.offsetY) >= 0 ? "pointer" : "grab"; return; }
        if (touches.size === 2) {
          const [other] = [...touches].filter(([id]) => id !== e.pointerId).map(([, p]) => p);
          const far = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
          this.zoom(far([e.offsetX, e.offsetY]) / far(before), (e.offsetX + other[0]) / 2, (e.offsetY + other[1]) / 2);
        } else { this.x -= (e.offsetX - before[0]) / this.scale; this.y -= (e.offsetY - before[1]) / this.scale; }
        moved += Math.abs(e.offsetX - before[0]) + Math.abs(e.offsetY - before[1]);
        touches.set(e.pointerId, [e.offsetX, e.offsetY]);
        this.draw();
      });
      const end = (e) => {
        const was = touches.delete(e.pointerId);
        if (was && moved < 5 && e.type === "pointerup") { const i = this.at(e.offsetX, e.offsetY); if (i >= 0) this.pick(i); }
      };
      canvas.addEventListener("pointerup", end);
      canvas.addEventListener("pointercancel", end);
      canvas.addEventListener("wheel", (e) => { e.preventDefault(); this.zoom(Math.exp(-e.deltaY * (e.ctrlKey ? 0.01 : 0.0016)), e.offsetX, e.offsetY); }, { passive: false });
      canvas.addEventListener("keydown", (e) => {
        const step = 60 / this.scale, moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
        if (moves[e.key]) { this.x += moves[e.key][0]; this.y += moves[e.key][1]; this.draw(); } else if (e.key === "+" || e.key === "=") this.zoom(1.3);
        else if (e.key === "-") this.zoom(1 / 1.3); else if (e.key === "0") this.fit(); else return;
        e.preventDefault();
        e.stopPropagation();
      });
    }
  }
  const hueOf = (names) => { const seen = new Map(); return names.map((n) => { if (!seen.has(n)) seen.set(n, (seen.size * 47 + 210) % 360); return seen.get(n); }); };

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
  const stepRow = (i) => {
    const s = data.steps[i];
    return el("tr", { "data-step": i, tabindex: 0 }, cell(i, true), cell(s.kind + (s.host ? " (host)" : ""), false, "tight"), el("td", { class: "names", title: s.origin.join(", ") }, s.origin.join(", ")), cell(s.makes, false, "tight"),
      cell(seconds(s.seconds), true), cell(meter(s.share), true), cell(meter(s.of_peak), true), cell(s.own === undefined ? "" : Number(s.own).toPrecision(2), true, s.right === false ? "bad" : ""));
  };

  const cards = (pairs) => el("div", { class: "cards" }, ...pairs.filter(([, v]) => v !== undefined && v !== null && v !== "").map(([label, value, kind]) => el("div", { class: "card" }, el("b", { class: kind || (String(value).length > 14 ? "long" : null) }, value), el("span", {}, label))));
  const sections = {
    overview(box) {
      const f = data.facts, measured = f.run_seconds !== undefined;
      box.append(cards([["ONNX nodes", count(f.nodes)], ["ops before, after the passes", `${count(f.ops_before)} \u2192 ${count(f.ops_after)}`], ["steps (kernels)", count(f.steps)], ["launches of a run", f.launches],
        ["parameters", count(f.parameters)], ["weights in the file", bytes(f.weight_bytes)], ["memory for temporaries", bytes(f.arena_bytes)],
        ["a run", measured ? seconds(f.run_seconds) : "not run"], ["its steps together", measured ? seconds(f.step_seconds) : ""], ["floor: peaks of this machine", f.floor_seconds ? seconds(f.floor_seconds) : ""], ["threads", f.threads], ["device", f.device], ["precision", f.precision], ["streams of the graph", f.streams], ["between launches, one by one", f.gap_seconds === undefined ? "" : seconds(f.gap_seconds)],
        ["wrong steps", f.steps_wrong === undefined ? "" : f.steps_wrong, f.steps_wrong ? "bad" : "good"]]));
      if (f.peers) {
        const slowest = Math.max(...Object.values(f.peers));
        box.append(el("h2", {}, "Time beside peers"), table([["runtime"], ["median of a run", true], ["", false]], Object.entries(f.peers), ([name, s]) => {
          const bar = meter(s / slowest);
          return el("tr", {}, cell(name), cell(seconds(s), true), el("td", {}, bar.lastChild));
        }));
      }
      box.append(el("h2", {}, "Inputs and outputs"), table([["input"], [(f.sizes || []).some(Boolean) ? "sizes in this report" : ""]], f.inputs, (x, i) => el("tr", {}, cell(el("code", {}, x)), cell(el("code", {}, (f.sizes || [])[i] || "")))), table([["output"]], f.outputs, (x) => el("tr", {}, cell(el("code", {}, x)))));
      box.append(el("h2", {}, "What runs where"), table([["launch"], ["steps", true]], data.launches, (x) => el("tr", {}, cell(x.text), cell(`${x.first}\u2013${x.last}`, true))));
      const host = data.steps.map((s, i) => [s, i]).filter(([s]) => s.host);
      if (host.length) box.append(el("h2", {}, "Steps on the host, and why"), table([["step"], ["reason"]], host, ([s, i]) => el("tr", {}, cell(stepButton(i)), cell(s.host))));
      if (measured) {
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
      panes.before = new Pane(left, "before: ONNX nodes", data.nodes.map((n) => [n[1], n[0]]), hueOf(data.nodes.map((n) => n[1])), data.edges, data.places, (i) => selectNode(i, false), (i) => i === chosen.node || (chosen.step >= 0 && data.steps[chosen.step].nodes.includes(i)));
      panes.after = new Pane(right, "after: steps", data.steps.map((s, i) => [`${i} ${s.kind}`, s.makes]), hueOf(data.steps.map((s) => s.kind)), data.step_edges, data.step_places, (i) => selectStep(i, false), (i) => i === chosen.step || (chosen.node >= 0 && stepsOf[chosen.node].includes(i)));
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
        const missed = data.rules.filter((r) => r.passes.includes(pass.name) && r.misses.length).map((r) => el("details", {}, el("summary", {}, el("b", {}, r.name), ` `, el("code", {}, r.equation)), el("ol", { class: "fired" }, ...r.misses.map((m) => el("li", {}, m.reason, " ", ...link(m.nodes))))));
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
        if (by) rows.sort((a, b) => (data.steps[b][by] || 0) - (data.steps[a][by] || 0));
        const sort = (name) => () => { by = name; draw(); };
        holder.replaceChildren(table([["step", true, sort("")], ["kind"], ["ONNX nodes"], ["makes"], ["time", true, sort("seconds")], ["share", true, sort("share")], ["of peak", true, sort("of_peak")], ["own error", true, sort("own")]], rows, stepRow));
      };
      filter.addEventListener("input", draw);
      box.append(el("div", { class: "bar" }, filter), holder);
      draw();
    },
    timeline() {}, memory() {}, errors() {},
    decoding(box) {
      box.append(table([["position", true], ["time", true], ["tokens/s", true], ["of the floor", true]], data.decoding.positions, (p) => el("tr", {}, cell(p.position, true), cell(seconds(p.median), true), cell(rate(p.tokens_per_second), true), cell(meter(p.of_floor), true))));
    },
    compare(box) {
      const none = () => el("p", { class: "dim" }, "none");
      const figures = { peak_flops: ["peak of the machine: operations", (n) => `${rate(n / 1e9)} GFLOP/s`], peak_bytes: ["peak of the machine: memory", (n) => `${rate(n / 1e9)} GB/s`] };
      const other = data.against, change = (a, b) => (a ? `${b >= a ? "+" : "\u2212"}${Math.abs(100 * (b / a - 1)).toFixed(1)}%` : "");
      box.append(el("p", {}, `Before: ${other.model} on ${other.target}, Monograph ${other.version}. Now: ${data.model} on ${data.target}, Monograph ${data.version}.`));
      box.append(table([["figure"], ["before", true], ["now", true], ["change", true]], other.facts.filter((f) => f[1] !== f[2]), ([name, a, b, low]) => {
        const [label, text] = figures[name] || [name.replaceAll("_", " "), name.endsWith("seconds") ? seconds : name.includes("bytes") ? bytes : count];
        return el("tr", {}, cell(label), cell(text(a), true), cell(text(b), true), cell(change(a, b), true, low ? (b < a ? "good" : "bad") : ""));
      }));
      box.append(el("h2", {}, "Steps that changed"), !other.steps.length ? none() : table([["step", true], ["kind"], ["ONNX nodes"], [""], ["before", true], ["now", true], ["change", true]], other.steps, (s) => el("tr", s.step === null ? {} : { "data-step": s.step, tabindex: 0 }, cell(s.step === null ? "" : s.step, true), cell(s.kind), el("td", { class: "names" }, s.nodes.join(", ")), cell(s.is), cell(seconds(s.before), true), cell(seconds(s.now), true), cell(s.before && s.now ? change(s.before, s.now) : "", true, s.now > s.before ? "bad" : "good"))));
      box.append(el("h2", {}, "Rules that fired another number of times"), !other.rules.length ? none() : table([["rule"], ["before", true], ["now", true]], other.rules, ([n, a, b]) => el("tr", {}, cell(n), cell(a, true), cell(b, true))));
    },
  };

  const boot = async () => {
    data = await unpack("data");
    stepsOf = data.nodes.map(() => []);
    data.steps.forEach((s, i) => s.nodes.forEach((n) => stepsOf[n].push(i)));
    $("subtitle").textContent = `${data.target}, Monograph ${data.version}`;
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
