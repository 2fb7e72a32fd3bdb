"use strict";
// Keeps the list of runs and the figures of the chosen ones current. Which are chosen stands in the address.
const link = document.getElementById("link");
let source = null; // the stream of events

const chosen_runs = () => new URLSearchParams(location.search).getAll("run");
const address = (runs) => "?" + new URLSearchParams(runs.map((run) => ["run", run]));

// ---- the figures ----------------------------------------------------------------------------------------------------

function section_of(key) {
  const found = document.getElementById(`section-${key}`);
  if (found) return found;
  const section = make("section", { id: `section-${key}`, ariaLabel: held.sections[key] });
  section.append(make("h2", {}, held.sections[key]), make("div", { className: "figures" }));
  const keys = Object.keys(held.sections);
  const after = keys.slice(keys.indexOf(key) + 1).map((later) => document.getElementById(`section-${later}`));
  document.getElementById("sections").insertBefore(section, after.find(Boolean) ?? null);
  return section;
}

function figure_of(name) {
  const found = document.getElementById(`figure-${name}`);
  if (found) return found;
  const plot = make("div", { className: "plot", role: "img" });
  plot.dataset.figure = name;
  const save = ["png", "svg"].map((kind) => {
    const button = make("button", { type: "button" }, kind.toUpperCase());
    button.dataset.save = kind;
    return button;
  });
  const parts = [make("h3"), make("figcaption"), plot, make("div", { className: "save" }, ...save)];
  return make("figure", { id: `figure-${name}` }, ...parts);
}

function take_figures({ title, outcome, methods, warnings, order: names, changed }) {
  document.title = title ? `${title} - fedstrata` : "Board - fedstrata";
  document.getElementById("title").textContent = title;
  document.getElementById("title").hidden = !title;
  document.getElementById("outcome").textContent = outcome;
  document
    .getElementById("warnings")
    .replaceChildren(...warnings.map((said) => make("p", { className: "warning" }, said)));
  take_methods(methods);
  for (const [name, figure] of Object.entries(changed)) {
    held.figures[name] = figure;
    stale.add(name);
  }
  for (const name of Object.keys(held.figures).filter((name) => !names.includes(name))) drop(name);
  for (const name of names) {
    const { section, title, said, layout, methods: own } = held.figures[name];
    const figure = figure_of(name);
    const [head, caption, plot, save] = figure.children;
    if (own.length) figure.dataset.methods = JSON.stringify(own);
    head.textContent = title;
    caption.textContent = said;
    plot.ariaLabel = `${title}. ${said}`;
    plot.style.minHeight = `${layout.height ?? 340}px`;
    for (const button of save.children) button.ariaLabel = `Save ${title} as ${button.textContent}`;
    const grid = section_of(section).lastChild;
    const place = names.filter((other) => held.figures[other].section === section).indexOf(name);
    if (grid.children[place] !== figure) grid.insertBefore(figure, grid.children[place] ?? null);
    if (plot.dataset.near === undefined) seen.observe(plot);
    if (plot.dataset.near) refresh(plot);
  }
  for (const section of document.querySelectorAll("#sections > section")) {
    if (!section.lastChild.children.length) section.remove();
  }
  for (const jump of document.querySelectorAll("nav a")) jump.hidden = !document.querySelector(jump.hash);
  hideParts();
}

let told_methods = "";

function take_methods(buttons) { // the server wrote them, and every name in them is escaped
  if (buttons === told_methods) return;
  told_methods = buttons;
  document.getElementById("methods").innerHTML = buttons;
  const there = [...chips].map((chip) => chip.dataset.method);
  for (const name of [...off].filter((name) => !there.includes(name))) off.delete(name);
}

function drop(name) {
  const figure = document.getElementById(`figure-${name}`);
  seen.unobserve(figure.children[2]);
  Plotly.purge(figure.children[2]);
  figure.remove();
  delete held.figures[name];
  stale.delete(name);
}

// ---- what is chosen, and the stream ---------------------------------------------------------------------------------

function choose(runs) {
  history.pushState(null, "", runs.length ? address(runs) : location.pathname);
  follow();
}

function follow() {
  const before = source;
  const runs = chosen_runs();
  document.body.classList.toggle("open", runs.length > 0);
  mark();
  const outcome = "Open a run to watch it; tick several to lay them over each other.";
  if (!runs.length) {
    take_figures({ title: "", outcome, methods: "", warnings: [], order: [], changed: {} });
    take_details([]);
  }
  if (runs.length && !Object.keys(held.figures).length) document.getElementById("outcome").textContent = "Reading ...";
  const stream = new EventSource("events" + location.search);
  stream.addEventListener("runs", (event) => {
    if (stream !== source) return;
    take_runs(JSON.parse(event.data));
    open_what_runs();
  });
  stream.addEventListener("federation", (event) => {
    if (stream === source) take_federation(JSON.parse(event.data));
  });
  stream.addEventListener("details", (event) => {
    if (stream === source && runs.length) take_details(JSON.parse(event.data));
  });
  stream.addEventListener("figures", (event) => {
    if (stream === source && runs.length) take_figures(JSON.parse(event.data));
  });
  stream.addEventListener("open", () => say("Live", false));
  stream.addEventListener("error", () => {
    const lost = stream.readyState === EventSource.CLOSED;
    if (stream === source) say(lost ? "Not connected; reload the page" : "Not connected; trying again ...", true);
  });
  source = stream;
  if (before) setTimeout(() => before.close(), 500); // the server keeps what it has read while somebody watches
}

let looked = location.search !== ""; // whether the page was opened for certain runs, or has opened some

function open_what_runs() { // whoever opens the board while a run goes on wants to see that one
  if (looked) return;
  looked = true;
  const running = [...rows.values()].filter((row) => row.state === "running").sort((a, b) => b.changed - a.changed);
  if (!running.length) return;
  history.replaceState(null, "", address([running[0].path]));
  follow();
}

function say(text, lost) {
  link.textContent = text;
  link.classList.toggle("lost", lost);
}

addEventListener("popstate", follow);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) source.close(); // nobody looks
  else follow();
});
setInterval(show, 30000); // how long ago, and what is left
for (const [key, name] of Object.entries(held.sections)) {
  document.querySelector("nav").append(make("a", { href: `#section-${key}`, hidden: true }, name));
}
for (const [key, name] of Object.entries(held.axes)) against.append(make("option", { value: key }, name));
follow();
