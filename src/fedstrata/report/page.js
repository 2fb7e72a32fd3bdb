"use strict";
// Draws the figures that the page holds, in the reader's colours, and redraws them when these or the axis change.
const held = JSON.parse(document.getElementById("held").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const against = document.getElementById("against");
let chosen = null; // "light" or "dark"; null: as the system has it

const theme = () => chosen ?? (system.matches ? "dark" : "light");

function legendRows(data, width) {
  const names = data.filter((line) => line.showlegend !== false && line.name).map((line) => line.name.length);
  return Math.ceil(names.length / Math.max(1, Math.floor(width / (45 + 7.5 * Math.max(...names)))));
}

function draw(plot, colours, width) {
  const { data, layout } = held.figures[plot.dataset.figure];
  const axis = against?.value;
  const lines = data.map((line) => (line.meta?.[axis] ? { ...line, x: line.meta[axis] } : line));
  const own = { ...layout, template: held.templates[colours], uirevision: axis, ...(width ? { width } : {}) };
  if (axis && data.some((line) => line.meta?.[axis])) {
    own.xaxis = { ...layout.xaxis, title: { ...layout.xaxis.title, text: held.axes[axis] } };
  }
  if (layout.showlegend !== false) { // a long legend must not squeeze what it explains
    own.height = layout.height + 20 * Math.max(0, legendRows(data, width ?? plot.clientWidth) - 2);
  }
  return Plotly.react(plot, lines, own, { responsive: true, displayModeBar: false, displaylogo: false });
}

function drawAll(colours = theme(), width = null) {
  document.documentElement.dataset.theme = colours;
  themeButton.textContent = colours === "dark" ? "Light colours" : "Dark colours";
  return Promise.all([...document.querySelectorAll("[data-figure]")].map((plot) => draw(plot, colours, width)));
}

themeButton.addEventListener("click", () => {
  chosen = theme() === "dark" ? "light" : "dark";
  drawAll();
});
against?.addEventListener("change", () => drawAll());
system.addEventListener("change", () => chosen === null && drawAll());
addEventListener("beforeprint", () => drawAll("light", 680)); // a sheet of paper is narrower than most windows
addEventListener("afterprint", () => drawAll());
addEventListener("click", ({ target }) => {
  if (!target.dataset?.save) return;
  const plot = target.closest("figure").querySelector("[data-figure]");
  Plotly.downloadImage(plot, { format: target.dataset.save, filename: plot.dataset.figure, scale: 2 });
});
drawAll().then(() => (document.documentElement.dataset.drawn = "yes"));
