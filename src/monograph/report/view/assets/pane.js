"use strict";
// A graph on a canvas: it zooms and moves, and draws only what is in view.
const paneOf = ({ el, count }) => {
  const W = 150, H = 34;
  return class Pane {
    constructor(box, title, labels, tones, edges, places, pick, isChosen) {
      Object.assign(this, { labels, tones, edges, places, pick, isChosen, scale: 1, x: 0, y: 0, lit: new Set() });
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
      if (!this.heights.length) return;
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
        c.fillStyle = this.tones[i];
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
  };
};
