"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const TIP = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";
const AXES = {
  dimensions: { label: "dimensions", value: (p) => p.dimensions, text: (v) => String(Math.round(v)) },
  bytes: { label: "bytes per image (float32)", value: (p) => p.bytes, text: bytes },
  time: { label: "pooling time per image, ms", value: (p) => p.pool_ms, text: (v) => Number(v.toPrecision(2)) + " ms" },
};
const STORED = { ...AXES.bytes, label: "bytes per image" };

function bytes(v) {
  return v < 1024 ? Math.round(v) + " B" : v < 1048576 ? Number((v / 1024).toPrecision(3)) + " KB" : Number((v / 1048576).toPrecision(3)) + " MB";
}

function make(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function niceTicks(low, high, log) {
  if (log) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.ceil(Math.log10(high)); e++)
      for (const m of high / low > 30 ? [1, 3] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8]) {
        const v = m * 10 ** e;
        if (v >= low * 0.999 && v <= high * 1.001) found.push(v);
      }
    return found;
  }
  const raw = (high - low) / 5, base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 5, 10].find((m) => m * base >= raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-12; v += step) found.push(v);
  return found;
}

function draw(box, points, axis, hidden, y) {
  box.textContent = "";
  const shown = points.filter((p) => !hidden.has(p.method) && axis.value(p) != null && y.value(p) != null);
  const W = Math.max(320, Math.min(1100, box.clientWidth || 960)), H = W < 600 ? 300 : 420, L = 56, R = 20, T = 14, B = 54;
  const svg = make(box, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": y.label + " against " + axis.label });
  if (!shown.length) { make(svg, "text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "Nothing to show."); return; }
  const xs = shown.map(axis.value), lows = shown.map((p) => y.value(p) - (y.error(p) || 0)), highs = shown.map((p) => y.value(p) + (y.error(p) || 0));
  let x0 = Math.min(...xs) / 1.15, x1 = Math.max(...xs) * 1.15, y0 = Math.min(...lows), y1 = Math.max(...highs);
  if (y.log) { y0 /= 1.2; y1 *= 1.2; } else { const pad = Math.max((y1 - y0) * 0.07, 0.005); y0 = Math.max(0, y0 - pad); y1 = Math.min(1, y1 + pad); }
  const px = (v) => L + ((Math.log(v) - Math.log(x0)) / (Math.log(x1) - Math.log(x0))) * (W - L - R);
  const py = (v) => H - B - (y.log ? (Math.log(v) - Math.log(y0)) / (Math.log(y1) - Math.log(y0)) : (v - y0) / (y1 - y0)) * (H - T - B);
  for (const v of niceTicks(y0, y1, y.log)) {
    make(svg, "line", { x1: L, x2: W - R, y1: py(v), y2: py(v), class: "grid" });
    make(svg, "text", { x: L - 8, y: py(v) + 4, "text-anchor": "end" }, Number((100 * v).toPrecision(3)) + " %");
  }
  const count = (v) => xs.filter((x) => x === v).length; // sizes that most points have are labelled first
  const unique = [...new Set(xs)].sort((a, b) => count(b) - count(a) || a - b), kept = [];
  for (const v of axis === AXES.time ? niceTicks(x0, x1, true) : unique) {
    if (kept.some((other) => Math.abs(px(v) - px(other)) < 46)) continue;
    kept.push(v);
    make(svg, "line", { x1: px(v), x2: px(v), y1: T, y2: H - B, class: "grid", "stroke-dasharray": "2 4" });
    make(svg, "text", { x: px(v), y: H - B + 20, "text-anchor": "middle" }, axis.text(v));
  }
  make(svg, "text", { x: (L + W - R) / 2, y: H - 8, "text-anchor": "middle" }, axis.label + ", logarithmic");
  const methods = [...new Set(shown.map((p) => p.method))];
  for (const method of methods) {
    const here = shown.filter((p) => p.method === method).sort((a, b) => axis.value(a) - axis.value(b));
    const group = make(svg, "g", { "data-method": method });
    const colour = here[0].colour;
    if (here.length > 1) make(group, "polyline", { points: here.map((p) => px(axis.value(p)) + "," + py(y.value(p))).join(" "), fill: "none", stroke: colour, "stroke-width": 2 });
    else if (!y.log) make(group, "line", { x1: L, x2: W - R, y1: py(y.value(here[0])), y2: py(y.value(here[0])), stroke: colour, "stroke-dasharray": "1 5", "stroke-linecap": "round" });
    for (const p of here) {
      const x = px(axis.value(p)), e = y.error(p);
      if (e) make(group, "line", { x1: x, x2: x, y1: py(y.value(p) - e), y2: py(y.value(p) + e), stroke: colour, "stroke-width": 2 });
      const dot = make(group, "circle", { cx: x, cy: py(y.value(p)), r: 5, fill: colour });
      const area = make(group, "circle", { cx: x, cy: py(y.value(p)), r: 13, fill: "transparent", tabindex: 0, "data-point": p.method + " " + p.dimensions });
      make(area, "title", {}, p.method + ", " + p.dimensions + " dimensions: " + (100 * y.value(p)).toFixed(1) + " %");
      const on = (event) => { dot.setAttribute("r", 7); tip(event, p); };
      const off = () => { dot.setAttribute("r", 5); TIP.hidden = true; };
      area.addEventListener("pointerenter", on); area.addEventListener("focus", on);
      area.addEventListener("pointerleave", off); area.addEventListener("blur", off);
    }
  }
}

function tip(event, p) {
  const lines = [p.method + ", " + p.dimensions + " dimensions", "test " + p.test_text + " %" + (p.val == null ? ", as " + p.code : ", validation " + p.val_text + " %"), p.seeds + " seeds, " + bytes(p.bytes) + (p.pool_ms == null ? "" : ", " + p.pool_ms.toPrecision(2) + " ms")];
  for (const name in p.metrics) lines.push(name + " " + p.metrics[name].text + " %");
  if (p.kernel_error != null) lines.push("kernel error " + (100 * p.kernel_error).toFixed(1) + " %");
  TIP.textContent = "";
  for (const line of lines) { const row = document.createElement("div"); row.textContent = line; TIP.appendChild(row); }
  TIP.hidden = false;
  const box = event.target.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - TIP.offsetWidth / 2), document.documentElement.clientWidth - TIP.offsetWidth - 8);
  TIP.style.left = left + window.scrollX + "px";
  TIP.style.top = box.top + window.scrollY - TIP.offsetHeight - 6 + "px";
}

function sortable(table) {
  const heads = [...table.querySelectorAll("th")];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  }));
}

document.querySelectorAll("article").forEach((article) => {
  const { points, stored } = DATA[article.dataset.study], hidden = new Set();
  let axis = AXES.dimensions, metric = "";
  const accuracy = {
    get label() { return metric || "test " + article.dataset.score; },
    value: (p) => (metric ? p.metrics[metric]?.value : p.test),
    error: (p) => (metric ? p.metrics[metric]?.error : p.test_error),
    log: false,
  };
  const kernel = { label: "kernel error", value: (p) => p.kernel_error, error: () => 0, log: true };
  const redraw = () => {
    draw(article.querySelector("[data-chart=accuracy]"), points, axis, hidden, accuracy);
    const few = article.querySelector("[data-chart=stored]");
    if (few) draw(few, [...points, ...stored], STORED, hidden, { ...accuracy, label: "test " + article.dataset.score, value: (p) => p.test, error: (p) => p.test_error });
    const box = article.querySelector("[data-chart=kernel]");
    if (box) draw(box, points, AXES.dimensions, hidden, kernel);
    article.querySelectorAll("tbody tr").forEach((row) => { row.hidden = hidden.has(row.dataset.method); });
  };
  article.querySelectorAll(".tabs").forEach((tabs) => tabs.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
    tabs.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", other === button));
    if (button.dataset.axis) axis = AXES[button.dataset.axis];
    else metric = button.dataset.score;
    redraw();
  })));
  const legend = article.querySelector(".legend");
  for (const method of [...new Set(points.map((p) => p.method))]) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.style.background = points.find((p) => p.method === method).colour;
    button.append(dot, method);
    button.addEventListener("click", () => {
      if (!hidden.delete(method)) hidden.add(method);
      button.setAttribute("aria-pressed", String(!hidden.has(method)));
      redraw();
    });
    legend.appendChild(button);
  }
  article.querySelectorAll("table.sortable").forEach(sortable);
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
  redraw();
});
