"use strict";
// Keeps the list of runs and the figures of the chosen ones current. Which are chosen stands in the address.
const body = document.querySelector("#runs tbody");
const filter = document.getElementById("filter");
const all = document.getElementById("all");
const link = document.getElementById("link");
const rows = new Map(); // path -> what the server last said of a run
const lines = new Map(); // path -> its line in the table
let order = { key: "changed", down: true };
let source = null; // the stream of events

const chosen_runs = () => new URLSearchParams(location.search).getAll("run");
const address = (runs) => "?" + new URLSearchParams(runs.map((run) => ["run", run]));

function make(tag, attributes = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...inside);
  return element;
}

// ---- the list -------------------------------------------------------------------------------------------------------

function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  if (past < 90) return "now";
  if (past < 5400) return `${Math.round(past / 60)} min ago`;
  if (past < 129600) return `${Math.round(past / 3600)} h ago`;
  return new Date(1000 * seconds).toISOString().slice(0, 10);
}

function fill(line, row) {
  const [, run, state, method, data, rounds, accuracy, when] = line.cells;
  run.firstChild.textContent = row.path === "." ? "this folder" : row.path;
  state.firstChild.textContent = row.state;
  state.firstChild.className = `state ${row.state}`;
  state.firstChild.title = row.why;
  method.textContent = row.method;
  data.textContent = row.data;
  rounds.replaceChildren(`${row.rounds}`, make("span", { className: "planned" }, row.planned ? ` / ${row.planned}` : ""));
  accuracy.textContent = row.accuracy === null ? "-" : `${(100 * row.accuracy).toFixed(1)} %`;
  when.textContent = row.changed ? ago(row.changed) : "-";
}

function line_of(path) {
  const box = make("input", { type: "checkbox", ariaLabel: `Show ${path} with others` });
  box.addEventListener("change", () =>
    choose(box.checked ? [...chosen_runs(), path] : chosen_runs().filter((run) => run !== path)),
  );
  const open = make("a", { href: address([path]) });
  open.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab or window
    event.preventDefault();
    choose([path]);
  });
  const cells = ["pick", "text run", "text", "text method", "text data", "", "", "when"];
  const line = make("tr", {}, ...cells.map((className) => make("td", { className })));
  line.cells[0].append(box);
  line.cells[1].append(open);
  line.cells[2].append(make("span"));
  return line;
}

function sort() {
  const value = (path) => rows.get(path)[order.key] ?? -1;
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  const paths = [...rows.keys()].sort((a, b) => compare(a, b));
  paths.sort((a, b) => (order.down ? -1 : 1) * compare(value(a), value(b)));
  const focused = document.activeElement;
  paths.forEach((path, at) => {
    if (body.rows[at] !== lines.get(path)) body.insertBefore(lines.get(path), body.rows[at] ?? null);
  });
  if (document.activeElement !== focused) focused.focus({ preventScroll: true }); // moving a line takes the focus away
  for (const head of document.querySelectorAll("[data-key]")) {
    if (head.dataset.key === order.key) head.ariaSort = order.down ? "descending" : "ascending";
    else head.removeAttribute("aria-sort");
  }
}

function mark() {
  const chosen = new Set(chosen_runs());
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const [path, line] of lines) {
    const row = rows.get(path);
    const text = `${row.path} ${row.state} ${row.method} ${row.data}`.toLowerCase();
    line.hidden = !words.every((word) => text.includes(word));
    shown += !line.hidden;
    line.classList.toggle("chosen", chosen.has(path));
    line.querySelector("input").checked = chosen.has(path);
  }
  const listed = [...lines].filter(([, line]) => !line.hidden).map(([path]) => path);
  all.checked = listed.length > 0 && listed.every((path) => chosen.has(path));
  document.getElementById("count").textContent =
    shown === rows.size ? `${rows.size} runs` : `${shown} of ${rows.size} runs`;
}

function take_runs({ changed, gone, all: anew }) {
  const kept = new Set(changed.map((row) => row.path));
  for (const path of anew ? [...rows.keys()].filter((path) => !kept.has(path)) : gone) {
    lines.get(path)?.remove();
    lines.delete(path);
    rows.delete(path);
  }
  for (const row of changed) {
    rows.set(row.path, row);
    if (!lines.has(row.path)) lines.set(row.path, line_of(row.path));
    fill(lines.get(row.path), row);
  }
  sort();
  mark();
}

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

function take_figures({ title, outcome, warnings, order: names, changed }) {
  document.title = title ? `${title} - fedstrata` : "Board - fedstrata";
  document.getElementById("title").textContent = title;
  document.getElementById("title").hidden = !title;
  document.getElementById("outcome").textContent = outcome;
  document
    .getElementById("warnings")
    .replaceChildren(...warnings.map((said) => make("p", { className: "warning" }, said)));
  for (const [name, figure] of Object.entries(changed)) {
    held.figures[name] = figure;
    stale.add(name);
  }
  for (const name of Object.keys(held.figures).filter((name) => !names.includes(name))) drop(name);
  for (const name of names) {
    const { section, title, said, layout } = held.figures[name];
    const figure = figure_of(name);
    const [head, caption, plot, save] = figure.children;
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
  if (!runs.length) take_figures({ title: "", outcome, warnings: [], order: [], changed: {} });
  else if (!Object.keys(held.figures).length) document.getElementById("outcome").textContent = "Reading ...";
  const stream = new EventSource("events" + location.search);
  stream.addEventListener("runs", (event) => stream === source && take_runs(JSON.parse(event.data)));
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

function say(text, lost) {
  link.textContent = text;
  link.classList.toggle("lost", lost);
}

for (const head of document.querySelectorAll("[data-key]")) {
  head.firstChild.addEventListener("click", () => {
    const { key } = head.dataset;
    order = { key, down: order.key === key ? !order.down : ["changed", "accuracy", "rounds"].includes(key) };
    sort();
  });
}
filter.addEventListener("input", mark);
all.addEventListener("change", () => {
  const listed = [...body.rows].filter((line) => !line.hidden).map((line) => line.cells[1].firstChild);
  const paths = listed.map((open) => new URLSearchParams(open.search).get("run"));
  const others = chosen_runs().filter((run) => !paths.includes(run));
  choose(all.checked ? [...others, ...paths] : others);
});
addEventListener("popstate", follow);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) source.close(); // nobody looks
  else follow();
});
setInterval(() => rows.forEach((row, path) => fill(lines.get(path), row)), 30000);
for (const [key, name] of Object.entries(held.sections)) {
  document.querySelector("nav").append(make("a", { href: `#section-${key}`, hidden: true }, name));
}
for (const [key, name] of Object.entries(held.axes)) against.append(make("option", { value: key }, name));
follow();
