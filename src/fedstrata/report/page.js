"use strict";
// Draws the figures that the page holds when they come into view, in the reader's colours, and again when these, the
// axis or the shown methods change. Tables can be sorted. The board uses this file too.
const held = JSON.parse(document.getElementById("held").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const against = document.getElementById("against");
const off = new Set(); // methods that are not shown
const stale = new Set(); // figures that must be drawn again when they come into view
const waiting = []; // figures in view that are next
let chosen = null; // "light" or "dark"; null: as the system has it

const theme = () => chosen ?? (system.matches ? "dark" : "light");
const plots = () => [...document.querySelectorAll("[data-figure]")];

// ---- plotly: beside the page, or packed into it ------------------------------------------------------------------------

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function load() {
  const packed = document.getElementById("plotly");
  if (window.Plotly || !packed) return;
  await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
  const script = document.createElement("script");
  script.textContent = await unpack(packed.textContent);
  packed.remove();
  document.head.append(script);
}

function apologise() {
  const said = "This browser is too old to draw the figures (Chrome 80, Firefox 113, Safari 16.4 or newer can). ";
  for (const plot of plots()) plot.textContent = said + "Their numbers stand in the tables.";
}

const ready = load();

// ---- figures -----------------------------------------------------------------------------------------------------------

function legendRows(data, width, letter) {
  const names = data.filter((line) => line.showlegend !== false && line.name).map((line) => line.name.length);
  return Math.ceil(names.length / Math.max(1, Math.floor(width / (45 + letter * Math.max(...names)))));
}

function styled(line, axis, colours) {
  const own = { ...line };
  if (line.meta?.[axis]) own.x = line.meta[axis];
  if (line.meta?.scale) own.colorscale = held.scales[colours][line.meta.scale];
  if (off.has(line.legendgroup)) own.visible = "legendonly";
  return own;
}

function made(name, colours) {
  const { data, layout } = held.figures[name];
  const axis = against?.value;
  const own = { ...layout, template: held.templates[colours], uirevision: axis };
  if (axis && data.some((line) => line.meta?.[axis])) {
    own.xaxis = { ...layout.xaxis, title: { ...layout.xaxis.title, text: held.axes[axis] } };
  }
  if (layout.annotations) own.annotations = layout.annotations.filter(({ name }) => !off.has(name));
  return { data: data.map((line) => styled(line, axis, colours)), layout: own };
}

function draw(plot, colours, width) {
  const { data, layout } = made(plot.dataset.figure, colours);
  const own = { ...layout, ...(width ? { width } : {}) };
  if (layout.showlegend !== false) { // a long legend must not squeeze what it explains
    own.height = layout.height + 20 * Math.max(0, legendRows(data, width ?? plot.clientWidth, 7.5) - 2);
  }
  const fresh = !plot.classList.contains("js-plotly-plot");
  const drawn = Plotly.react(plot, data, own, { responsive: true, displayModeBar: false, displaylogo: false });
  if (fresh) listen(plot);
  return drawn;
}

function listen(plot) { // a legend hides its method everywhere
  const group = ({ curveNumber, data }) => data[curveNumber].legendgroup;
  const filtered = (name) => [...chips].some((chip) => chip.dataset.method === name);
  plot.on("plotly_legendclick", (event) => !filtered(group(event)) || (toggle(group(event)), false));
  plot.on("plotly_legenddoubleclick", (event) => !filtered(group(event)) || (only(group(event)), false));
}

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      target.dataset.near = isIntersecting ? "yes" : "";
      if (isIntersecting) refresh(target);
    }
    if (!waiting.length) document.documentElement.dataset.drawn = "yes"; // a long table may leave no figure in view
  },
  { rootMargin: "300px" },
);

function refresh(plot) {
  if (!waiting.includes(plot)) waiting.push(plot);
  if (waiting.length === 1) ready.then(() => setTimeout(drawNext), apologise);
}

function drawNext() { // one at a time, so that the page can be scrolled meanwhile
  const plot = waiting[0];
  if (plot?.isConnected && plot.dataset.near && stale.delete(plot.dataset.figure)) draw(plot, theme());
  waiting.shift();
  if (waiting.length) setTimeout(drawNext);
  else document.documentElement.dataset.drawn = "yes";
}

function redraw() {
  const colours = theme();
  document.documentElement.dataset.theme = colours;
  themeButton.textContent = colours === "dark" ? "Light colours" : "Dark colours";
  for (const plot of plots()) {
    stale.add(plot.dataset.figure);
    if (plot.dataset.near) refresh(plot);
  }
}

function drawToPrint() { // a sheet of paper is narrower than most windows
  document.documentElement.dataset.theme = "light";
  if (window.Plotly) for (const plot of plots()) draw(plot, "light", 680);
}

// ---- which methods are shown ---------------------------------------------------------------------------------------------

const chips = document.getElementsByClassName("chip");

function hideParts() {
  for (const chip of chips) chip.setAttribute("aria-pressed", !off.has(chip.dataset.method));
  for (const part of document.querySelectorAll("[data-methods]")) {
    part.hidden = JSON.parse(part.dataset.methods).every((name) => off.has(name));
  }
}

function showMethods() {
  hideParts();
  redraw();
  dispatchEvent(new Event("methods")); // the board hides them in its tables too
}

function toggle(name) {
  if (!off.delete(name)) off.add(name);
  if (off.size === chips.length) off.clear(); // nothing at all is of no use
  showMethods();
}

function only(name) {
  const others = [...chips].map((chip) => chip.dataset.method).filter((own) => own !== name);
  const alone = !off.has(name) && others.every((own) => off.has(own));
  off.clear();
  if (!alone) others.forEach((own) => off.add(own));
  showMethods();
}

// ---- files -----------------------------------------------------------------------------------------------------------------

function download(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function savePaper(name, inches) { // for a column of text: light, small letters, a width in inches
  const { data, layout } = made(name, "light");
  const shown = data.filter((line) => line.visible !== "legendonly");
  const width = 96 * inches;
  const rows = layout.showlegend === false ? 0 : legendRows(shown, width, 6);
  const height = Math.round((layout.height ?? 340) * (inches < 5 ? 0.66 : 0.85) + 16 * Math.max(0, rows - 1));
  const margin = Object.fromEntries(Object.entries(layout.margin).map(([side, space]) => [side, 0.82 * space])); // as letters
  const figure = { data: shown, layout: { ...layout, template: held.templates.paper, width, height, margin } };
  const address = await Plotly.toImage(figure, { format: "svg", width, height });
  const svg = decodeURIComponent(address.slice(address.indexOf(",") + 1));
  const sized = svg.replace(/(<svg[^>]*?) width="[^"]*" height="[^"]*"/, `$1 width="${inches}in" height="${height / 96}in"`);
  download(sized, `${name}${inches < 5 ? "" : "-wide"}.svg`);
}

async function save(button) {
  const plot = button.closest("figure").querySelector("[data-figure]");
  const name = plot.dataset.figure;
  await ready;
  if (button.dataset.save === "svg") await savePaper(name, Number(button.dataset.inches ?? 3.5));
  else await Plotly.downloadImage(plot, { format: "png", filename: name, scale: 2 });
}

// ---- tables ----------------------------------------------------------------------------------------------------------------

const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, min: 60, h: 3600 };

function valueOf(cell) { // a number in its unit, a word, or null
  const text = cell.textContent.trim();
  const found = text.replace(/,(?=\d{3})/g, "").match(/^([+-]?\d[\d.]*(?:e[+-]?\d+)?)\s*(kB|MB|GB|TB|min\b|h\b)?/);
  return found ? found[1] * (UNITS[found[2]] ?? 1) : ["-", "", "never"].includes(text) ? null : text;
}

function sortBy(head, at) {
  const body = head.closest("table").tBodies[0];
  const keyed = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[at]) }));
  const numbers = keyed.some(({ value }) => typeof value === "number");
  const ways = numbers ? ["descending", "ascending", null] : ["ascending", "descending", null];
  const way = ways[(ways.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
  const sign = way === "descending" ? -1 : 1;
  const compare = (one, other) => (numbers ? one - other : String(one).localeCompare(other, undefined, { numeric: true }));
  keyed.sort((one, other) => {
    if (!way) return one.row.dataset.place - other.row.dataset.place; // as it was
    if (one.value === null || other.value === null) return (one.value === null) - (other.value === null);
    return sign * compare(one.value, other.value);
  });
  for (const { row } of keyed) body.append(row);
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  if (way) head.setAttribute("aria-sort", way);
}

function makeSortable(table) {
  if (table.tBodies[0].rows.length < 2) return;
  [...table.tBodies[0].rows].forEach((row, at) => (row.dataset.place = at));
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(head, at));
    head.append(button);
  });
}

// ---- what the reader does --------------------------------------------------------------------------------------------------

themeButton.addEventListener("click", () => {
  chosen = theme() === "dark" ? "light" : "dark";
  redraw();
});
against?.addEventListener("change", redraw);
system.addEventListener("change", () => chosen === null && redraw());
addEventListener("beforeprint", drawToPrint);
addEventListener("afterprint", () => {
  plots().forEach((plot) => window.Plotly && draw(plot, theme()));
  redraw();
});
addEventListener("click", ({ target }) => {
  if (target.dataset?.save) save(target);
  const chip = target.closest?.(".chip");
  if (chip) toggle(chip.dataset.method);
});
addEventListener("dblclick", ({ target }) => {
  const chip = target.closest?.(".chip");
  if (chip) only(chip.dataset.method);
});
document.querySelectorAll("main table").forEach(makeSortable);
document.documentElement.dataset.theme = theme();
redraw();
plots().forEach((plot) => seen.observe(plot));
