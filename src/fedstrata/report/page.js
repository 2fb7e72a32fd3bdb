"use strict";
// Draws the figures that the page holds, in the reader's colours, and redraws them when these or the axis change.
const held = JSON.parse(document.getElementById("held").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const against = document.getElementById("against");
let chosen = null; // "light" or "dark"; null: as the system has it

const theme = () => chosen ?? (system.matches ? "dark" : "light");

function wrapped(text = "", pixels = 200) {
  // the title of an axis is cut where it is longer than the axis
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && 8 * (lines.at(-1).length + word.length) > pixels) lines.push("");
    lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.join("<br>");
}

function draw(plot, colours, width) {
  const { data, layout } = held.figures[plot.dataset.figure];
  const axis = against?.value;
  const lines = data.map((line) => (line.meta?.[axis] ? { ...line, x: line.meta[axis] } : line));
  const own = { ...layout, template: held.templates[colours], uirevision: axis, ...(width ? { width } : {}) };
  const across = data.some((line) => line.meta?.[axis]) ? held.axes[axis] : layout.xaxis?.title?.text;
  own.xaxis = { ...layout.xaxis, title: { ...layout.xaxis?.title, text: wrapped(across, plot.clientWidth - 60) } };
  own.yaxis = { ...layout.yaxis, title: { ...layout.yaxis?.title, text: wrapped(layout.yaxis?.title?.text, 190) } };
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
