"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const FOR = [230, 92, 0], AGAINST = [10, 110, 220], LINKS = 8;

function unpack(packed) {
  const text = atob(packed.bytes), values = new Float32Array(text.length);
  for (let i = 0; i < text.length; i++) {
    const code = (text.charCodeAt(i) << 24) >> 24;
    values[i] = (packed.scale * code * Math.abs(code)) / 16129;
  }
  return values;
}

function coarse(values, [height, width], [rows, columns]) {
  const sums = new Float32Array(rows * columns);
  values.forEach((v, i) => { sums[Math.floor((Math.floor(i / width) * rows) / height) * columns + Math.floor(((i % width) * columns) / width)] += v; });
  return sums;
}

function rowOfTriangle(triangle, count, r) {
  const row = new Float32Array(count);
  for (let c = 0; c < count; c++) {
    const i = Math.min(r, c), j = Math.max(r, c);
    row[c] = triangle[i * count - (i * (i - 1)) / 2 + j - i];
  }
  return row;
}

function largest(values, without) {
  let most = 0;
  values.forEach((v, i) => { if (i !== without) most = Math.max(most, Math.abs(v)); });
  return most || 1;
}

function paint(canvas, values, [rows, columns], most, opacity) {
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const pixels = new ImageData(columns, rows);
  values.forEach((v, i) => {
    const colour = v > 0 ? FOR : AGAINST, strength = Math.min(1, Math.abs(v) / most);
    pixels.data.set([...colour, Math.round(255 * opacity * strength)], 4 * i);
  });
  small.getContext("2d").putImageData(pixels, 0, 0);
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
}

function link(canvas, values, [rows, columns], from, most, opacity) { // curves to the regions that one works with and against
  const pen = canvas.getContext("2d"), unit = canvas.width / 640;
  const centre = (i) => [((i % columns) + 0.5) * (canvas.width / columns), (Math.floor(i / columns) + 0.5) * (canvas.height / rows)];
  const strongest = Array.from(values.keys()).filter((i) => i !== from && Math.abs(values[i]) > Math.max(0.15 * most, 0.05 * Math.abs(values[from])));
  strongest.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  const [x, y] = centre(from);
  pen.lineCap = "round";
  for (const i of strongest.slice(0, LINKS).reverse()) {
    const [u, v] = centre(i), strength = Math.abs(values[i]) / most;
    const bend = [(x + u) / 2 - 0.18 * (v - y), (y + v) / 2 + 0.18 * (u - x)];
    for (const [colour, extra] of [[[255, 255, 255], 2.5], [values[i] > 0 ? FOR : AGAINST, 0]]) {
      pen.strokeStyle = pen.fillStyle = `rgba(${colour}, ${opacity})`;
      pen.lineWidth = (1.5 + 5 * strength + extra) * unit;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.quadraticCurveTo(...bend, u, v);
      pen.stroke();
      pen.beginPath();
      pen.arc(u, v, (4 + 4 * strength + extra / 2) * unit, 0, 7);
      pen.fill();
    }
  }
}

function outline(cell, place, [rows, columns]) {
  cell.hidden = place === null;
  if (place === null) return;
  const [row, column] = place;
  Object.assign(cell.style, { top: (100 * row) / rows + "%", left: (100 * column) / columns + "%", height: 100 / rows + "%", width: 100 / columns + "%" });
}

const breakable = (name) => name.replaceAll("_", "_\u200b"); // a line may break after an underscore
const signed = (v) => (v < 0 ? "−" : "+") + Math.abs(v).toFixed(Math.abs(v) < 0.1 ? 3 : 2);
const total = (values, keep) => values.reduce((sum, v, i) => (keep(v, i) ? sum + v : sum), 0);

document.querySelectorAll("article").forEach((article) => {
  const data = DATA[article.dataset.image], grid = data.grid, count = grid[0] * grid[1];
  const views = data.views.map((view) => ({ ...view, target: breakable(view.target), against: view.against && breakable(view.against), triangle: view.pairs && unpack(view.pairs), sums: coarse(view.regions, data.map, grid) }));
  for (const view of views) if (!view.triangle) view.triangle = views[0].triangle.map((v, i) => v + views[2].triangle[i]); // difference plus other
  const neighbours = data.neighbours.map((near) => ({ ...near, values: unpack(near.pairs) }));
  const stage = article.querySelector(".stage.main"), slider = article.querySelector("input");
  const buttons = [...article.querySelectorAll(".neighbour")], tabs = [...article.querySelectorAll(".tabs button")];
  const state = { view: 0, region: null, pinned: false, near: null, nearPinned: false };

  const place = (r) => [Math.floor(r / grid[1]), r % grid[1]];
  const words = (r) => `row ${place(r)[0] + 1}, column ${place(r)[1] + 1}`;

  function shared(near, region) { // of the training image: all of it, or what one region of the image is matched with
    const [rows, columns] = near.grid, size = rows * columns, sums = new Float32Array(size);
    const only = region === null ? null : Math.floor(((place(region)[0] + 0.5) * rows) / grid[0]) * columns + Math.floor(((place(region)[1] + 0.5) * columns) / grid[1]);
    near.values.forEach((v, i) => { if (only === null || Math.floor(i / size) === only) sums[i % size] += v; });
    return sums;
  }

  function sharedHere(near) { // of the image
    const size = near.grid[0] * near.grid[1], sums = new Float32Array(size);
    near.values.forEach((v, i) => { sums[Math.floor(i / size)] += v; });
    return sums;
  }

  function show() {
    const view = views[state.view], opacity = slider.value / 100;
    article.style.setProperty("--grey", Math.min(1, opacity * 1.1));
    article.style.setProperty("--dim", 1 - 0.15 * opacity);
    let values = view.regions, size = data.map, most = largest(values), chosen = null, text = "";
    const names = view.against ? [view.against, view.target] : ["against", view.target];
    let [low, high] = names.map((name) => (name === "against" ? name : "for " + name));
    if (state.near !== null) {
      const near = neighbours[state.near];
      values = sharedHere(near);
      size = near.grid;
      most = largest(values);
      chosen = near.strongest[0];
      [low, high] = ["unlike", "alike"];
      text = "The regions that make the image similar to the training image. Outlined in both: the strongest pair.";
    } else if (state.region !== null) {
      const whole = view.sums[state.region], row = rowOfTriangle(view.triangle, count, state.region);
      const other = (v, i) => i !== state.region;
      const helps = total(row, (v, i) => other(v, i) && v > 0), hinders = total(row, (v, i) => other(v, i) && v < 0);
      chosen = place(state.region);
      text = `Region at ${words(state.region)}: ${signed(whole)} in all`;
      if (helps || hinders) {
        [values, size, most] = [row, grid, largest(row, state.region)];
        [low, high] = ["works against", "works with"];
        text += `. By itself ${signed(row[state.region])}, with other regions ${signed(helps)} and ${signed(hinders)}.`;
      } else text += ": this pooling takes regions one at a time.";
    } else text = view.against ? `Orange speaks for ${view.target}, blue for ${view.against}.` : `Orange speaks for ${view.target}, blue against it.`;
    paint(stage.querySelector("canvas"), values, size, most, opacity);
    if (values !== view.regions && state.near === null) link(stage.querySelector("canvas"), values, size, state.region, most, Math.min(1, opacity + 0.2));
    outline(stage.querySelector(".cell"), chosen, state.near === null ? grid : size);
    stage.dataset.shown = Array.from(values, (v) => v.toPrecision(3)).join(" ");
    article.querySelector(".low").textContent = `${signed(-most)} ${low}`;
    article.querySelector(".high").textContent = `${signed(most)} ${high}`;
    article.querySelector(".readout").textContent = text;
    buttons.forEach((button, k) => {
      const near = neighbours[k], region = state.near === null ? state.region : null, map = shared(near, region);
      paint(button.querySelector("canvas"), map, near.grid, largest(map), opacity);
      outline(button.querySelector(".cell"), state.near === k ? near.strongest[1] : null, near.grid);
      button.setAttribute("aria-pressed", String(state.near === k));
    });
    tabs.forEach((tab, k) => tab.setAttribute("aria-pressed", String(k === state.view)));
    article.querySelectorAll(".facts [data-view]").forEach((part) => { part.hidden = Number(part.dataset.view) !== state.view; });
  }

  function at(event) {
    const box = stage.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * grid[0]), column = Math.floor(((event.clientX - box.left) / box.width) * grid[1]);
    return row < 0 || column < 0 || row >= grid[0] || column >= grid[1] ? null : row * grid[1] + column;
  }

  function choose(region, pinned) {
    if (region === state.region && pinned === state.pinned && state.near === null) return;
    Object.assign(state, { region, pinned, near: null, nearPinned: false });
    show();
  }

  stage.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse" && !state.pinned) choose(at(event), false); });
  stage.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !state.pinned) choose(null, false); });
  stage.addEventListener("click", (event) => {
    const region = at(event);
    if (state.pinned && region === state.region) choose(null, false);
    else choose(region, true);
  });
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") choose(null, false);
    if (!step) return;
    event.preventDefault();
    const strongest = views[state.view].sums.reduce((best, v, i, all) => (Math.abs(v) > Math.abs(all[best]) ? i : best), 0);
    if (state.region === null) return choose(strongest, true);
    const [row, column] = place(state.region), within = (v, most) => Math.min(Math.max(v, 0), most - 1);
    choose(within(row + step[0], grid[0]) * grid[1] + within(column + step[1], grid[1]), true);
  });
  tabs.forEach((tab, k) => tab.addEventListener("click", () => { Object.assign(state, { view: k, near: null, nearPinned: false }); show(); }));
  buttons.forEach((button, k) => {
    const peek = (near) => { if (!state.nearPinned) { state.near = near; show(); } };
    button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") peek(k); });
    button.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") peek(null); });
    button.addEventListener("click", () => {
      const off = state.nearPinned && state.near === k;
      Object.assign(state, { near: off ? null : k, nearPinned: !off, region: null, pinned: false });
      show();
    });
  });
  slider.addEventListener("input", show);
  article.querySelectorAll("canvas").forEach((canvas) => { canvas.width = canvas.height = canvas.closest(".main") ? 640 : 300; });
  show();
});
